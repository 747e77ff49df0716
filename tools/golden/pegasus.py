"""Golden cases of PEGASUS.  Run: python3 tools/golden/pegasus.py tests/golden/models   (versions: families.py)"""
import torch
from transformers import PegasusConfig, PegasusForConditionalGeneration, PegasusModel

from families import build, case, mask_of, tokens
from generated import end_with, sequences

V, T = 35, 9
SMALL = dict(vocab_size=V, d_model=12, encoder_layers=2, decoder_layers=2, encoder_attention_heads=3, decoder_attention_heads=2,
             encoder_ffn_dim=20, decoder_ffn_dim=17, max_position_embeddings=16, scale_embedding=True, activation_function="relu")
ids, mask = tokens(V, 3, T, low=2), mask_of([9, 4, 2], T)
ids[mask == 0] = 0
batch = dict(input_ids=ids, attention_mask=mask)
labels = tokens(V, 3, 6, seed=2, low=2)
labels[1, 4:] = -100

case("pegasus", build(PegasusModel, PegasusConfig(**SMALL)), **batch, decoder_input_ids=tokens(V, 3, 5, seed=4))
model = build(PegasusForConditionalGeneration, PegasusConfig(**SMALL), spread=0.4)
model.final_logits_bias.normal_(0, 0.3, generator=torch.Generator().manual_seed(3))
end_with(model, ids, mask)
model.config.forced_eos_token_id = model.generation_config.forced_eos_token_id = model.config.eos_token_id
case("pegasus-text", model, extra=sequences(model, ids, mask), **batch, labels=labels)
case("pegasus-unscaled", build(PegasusForConditionalGeneration, PegasusConfig(**dict(SMALL, d_model=18, scale_embedding=False,
                                                                                     activation_function="gelu"))),
     **batch, labels=labels, decoder_attention_mask=mask_of([6, 5, 6], 6))
