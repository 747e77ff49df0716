"""A golden case of Marian in the form all families share; marian.py makes the others.
Run: python3 tools/golden/family_marian.py tests/golden/models   (versions: families.py)"""
import torch
from transformers import MarianConfig, MarianMTModel

from families import build, case, mask_of, tokens

V, END = 33, 32
config = MarianConfig(vocab_size=V, d_model=12, encoder_layers=2, decoder_layers=2, encoder_attention_heads=3,
                      decoder_attention_heads=2, encoder_ffn_dim=20, decoder_ffn_dim=20, max_position_embeddings=16,
                      activation_function="swish", scale_embedding=True, pad_token_id=END, decoder_start_token_id=END,
                      eos_token_id=0, forced_eos_token_id=0)
model = build(MarianMTModel, config)
ids, mask = tokens(V - 1, 3, 7), mask_of([7, 4, 1], 7)
ids[mask == 0] = END
labels = tokens(V - 1, 3, 5, seed=2)
labels[1, 3:] = -100
case("marian", model, input_ids=ids, attention_mask=mask, labels=labels,
     decoder_input_ids=model.prepare_decoder_input_ids_from_labels(labels))
