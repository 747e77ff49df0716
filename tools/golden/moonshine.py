"""Golden cases of Moonshine.  Run: python3 tools/golden/moonshine.py tests/golden/models   (versions: families.py)"""
import torch
from transformers import MoonshineConfig, MoonshineForConditionalGeneration, MoonshineModel

from families import build, case, mask_of, pixels, tokens

V, N = 30, 384 * 4
SMALL = dict(vocab_size=V, hidden_size=10, intermediate_size=12, encoder_num_hidden_layers=2, decoder_num_hidden_layers=2,
             encoder_num_attention_heads=2, decoder_num_attention_heads=2, encoder_num_key_value_heads=2,
             decoder_num_key_value_heads=2, max_position_embeddings=32, pad_token_id=2)
clips = pixels(2, N) * 0.3
labels = tokens(V, 2, 6, seed=2, low=3)
labels[1, 4:] = -100


def text(model, **how):
    """Greedy and beam search, as generate() gives them."""
    rows = {}
    for name, options in (("greedy", {}), ("beams", dict(num_beams=3))):
        rows[f"sequences.{name}"] = model.generate(input_values=clips[:1], max_length=9, do_sample=False, **options, **how)
    return rows


case("moonshine", build(MoonshineModel, MoonshineConfig(**SMALL)), input_values=clips, decoder_input_ids=tokens(V, 2, 5))
model = build(MoonshineForConditionalGeneration, MoonshineConfig(**SMALL), spread=0.3)
case("moonshine-text", model, input_values=clips, labels=labels, extra=text(model))
case("moonshine-padded", build(MoonshineForConditionalGeneration, MoonshineConfig(**dict(SMALL, attention_bias=True))),
     input_values=clips, attention_mask=mask_of([N, 384 * 2 + 100], N), decoder_input_ids=tokens(V, 2, 5),
     labels=labels[:, :5].clamp(min=0))
