"""Golden cases of mBART.  Run: python3 tools/golden/mbart.py tests/golden/models   (versions: families.py)"""
import torch
from transformers import MBartConfig, MBartForConditionalGeneration, MBartForQuestionAnswering, MBartForSequenceClassification, MBartModel

from families import build, case, mask_of, sources, with_bias
from generated import end_with, keep_config, sequences

V, T, PAD, END = 35, 9, 1, 2
SMALL = dict(vocab_size=V, d_model=12, encoder_layers=2, decoder_layers=2, encoder_attention_heads=3, decoder_attention_heads=2,
             encoder_ffn_dim=20, decoder_ffn_dim=17, max_position_embeddings=16, decoder_start_token_id=33)
ids, mask, batch, labels = sources(V, T, PAD, END)

case("mbart", build(MBartModel, MBartConfig(**SMALL)), **batch)
model = with_bias(build(MBartForConditionalGeneration, MBartConfig(**SMALL), spread=0.4))
end_with(model, ids, mask)
model.config.forced_eos_token_id = model.generation_config.forced_eos_token_id = model.config.eos_token_id
case("mbart-text", model, extra=sequences(model, ids, mask), **batch, labels=labels)
# as the models of fifty languages: the decoder begins with the end, and the first token is the language
model = build(MBartForConditionalGeneration, MBartConfig(**dict(SMALL, scale_embedding=True, activation_function="relu",
                                                                decoder_start_token_id=END)), spread=0.3)
model.generation_config.forced_bos_token_id = 34
case("mbart-fifty", model, change=keep_config(model), **batch, labels=labels, decoder_attention_mask=mask_of([6, 5, 6], 6),
     extra=sequences(model, ids, mask, ("max_length=9,num_beams=1", "max_length=9,num_beams=3")))
case("mbart-sequence", build(MBartForSequenceClassification, MBartConfig(**SMALL)), **batch, labels=torch.tensor([1, 0, 1]))
case("mbart-span", build(MBartForQuestionAnswering, MBartConfig(**SMALL, num_labels=2)), **batch,
     start_positions=torch.tensor([1, 0, 0]), end_positions=torch.tensor([5, 2, 1]))
