"""Golden cases of BART.  Run: python3 tools/golden/bart.py tests/golden/models   (versions: families.py)"""
import torch
from transformers import BartConfig, BartForConditionalGeneration, BartForQuestionAnswering, BartForSequenceClassification, BartModel

from families import build, case, mask_of, sources, with_bias
from generated import end_with, keep_config, sequences

V, T, PAD, END = 35, 9, 1, 2
SMALL = dict(vocab_size=V, d_model=12, encoder_layers=2, decoder_layers=2, encoder_attention_heads=3, decoder_attention_heads=2,
             encoder_ffn_dim=20, decoder_ffn_dim=17, max_position_embeddings=16, pad_token_id=PAD, bos_token_id=0, eos_token_id=END,
             decoder_start_token_id=END, forced_eos_token_id=END)
ids, mask, batch, labels = sources(V, T, PAD, END)

case("bart", build(BartModel, BartConfig(**SMALL)), **batch)
model = with_bias(build(BartForConditionalGeneration, BartConfig(**SMALL), spread=0.4))
end_with(model, ids, mask)
model.config.forced_eos_token_id = model.generation_config.forced_eos_token_id = model.config.eos_token_id
case("bart-text", model, extra=sequences(model, ids, mask), **batch, labels=labels)
model = build(BartForConditionalGeneration, BartConfig(**dict(SMALL, scale_embedding=True, activation_function="relu")), spread=0.3)
model.generation_config.forced_bos_token_id = 0
case("bart-scaled", model, change=keep_config(model), **batch, labels=labels, decoder_attention_mask=mask_of([6, 5, 6], 6),
     extra=sequences(model, ids, mask, ("max_length=9,num_beams=1", "max_length=9,num_beams=3,no_repeat_ngram_size=3")))
case("bart-sequence", build(BartForSequenceClassification, BartConfig(**SMALL)), **batch, labels=torch.tensor([2, 0, 1]))
case("bart-span", build(BartForQuestionAnswering, BartConfig(**SMALL, num_labels=2)), **batch, start_positions=torch.tensor([1, 0, 0]),
     end_positions=torch.tensor([5, 2, 1]))
