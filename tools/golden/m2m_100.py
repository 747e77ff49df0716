"""Golden cases of M2M-100.  Run: python3 tools/golden/m2m_100.py tests/golden/models   (versions: families.py)"""
from transformers import M2M100Config, M2M100ForConditionalGeneration, M2M100Model

from families import build, case, mask_of, tokens
from generated import end_with, keep_config, sequences

V, T, PAD = 35, 9, 1
SMALL = dict(vocab_size=V, d_model=12, encoder_layers=2, decoder_layers=2, encoder_attention_heads=3, decoder_attention_heads=2,
             encoder_ffn_dim=20, decoder_ffn_dim=17, max_position_embeddings=16)
ids, mask = tokens(V, 3, T, low=3), mask_of([9, 4, 2], T)
ids[mask == 0] = PAD
batch = dict(input_ids=ids, attention_mask=mask)
labels = tokens(V, 3, 6, seed=2, low=3)
labels[1, 4:] = -100

case("m2m_100", build(M2M100Model, M2M100Config(**SMALL)), **batch, decoder_input_ids=tokens(V, 3, 5, seed=4, low=2))
case("m2m_100-left", build(M2M100Model, M2M100Config(**dict(SMALL, d_model=18, activation_function="gelu", scale_embedding=False))),
     input_ids=ids.flip(1), attention_mask=mask.flip(1), decoder_input_ids=tokens(V, 3, 5, seed=4, low=2))
model = build(M2M100ForConditionalGeneration, M2M100Config(**SMALL), spread=0.4)
end_with(model, ids, mask)
case("m2m_100-text", model, extra=sequences(model, ids, mask), **batch, labels=labels)
# the language of the target is the first token
model = build(M2M100ForConditionalGeneration, M2M100Config(**dict(SMALL, tie_word_embeddings=True)), spread=0.4, seed=9)
model.generation_config.forced_bos_token_id = 31
case("m2m_100-language", model, change=keep_config(model), **batch, labels=labels,
     extra=sequences(model, ids, mask, ("max_length=9,num_beams=1", "max_length=9,num_beams=3")))
