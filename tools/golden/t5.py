"""Golden cases of T5, 1.0 and 1.1.  Run: python3 tools/golden/t5.py tests/golden/models   (versions: families.py)"""
import json
import os

import torch
from safetensors.torch import load_file, save_file
from transformers import T5Config, T5EncoderModel, T5ForConditionalGeneration, T5ForQuestionAnswering, T5ForSequenceClassification, T5ForTokenClassification, T5Model

from families import build, case, mask_of, tokens
from generated import end_with, sequences

V, T = 35, 9
SMALL = dict(vocab_size=V, d_model=12, d_kv=5, d_ff=20, num_layers=2, num_decoder_layers=2, num_heads=3,
             relative_attention_num_buckets=8, relative_attention_max_distance=10, pad_token_id=0, eos_token_id=1,
             decoder_start_token_id=0)
ids, mask = tokens(V, 3, T, low=2), mask_of([9, 4, 1], T)
ids[mask == 0] = 0
batch = dict(input_ids=ids, attention_mask=mask)
labels = tokens(V, 3, 6, seed=2, low=2)
labels[1, 4:] = -100
after = dict(decoder_input_ids=torch.cat([torch.zeros(3, 1, dtype=torch.long), labels[:, :-1].clamp(min=0)], 1))


def as_published(folder):
    """config.json as version 1.1 has it: nothing is tied."""
    path = os.path.join(folder, "config.json")
    with open(path) as f:
        config = json.load(f)
    config["tie_word_embeddings"] = False
    config.pop("scale_decoder_outputs", None)
    with open(path, "w") as f:
        json.dump(config, f, indent=2)


def with_all_copies(folder):
    """The table under all its names, as older files have it."""
    path = os.path.join(folder, "model.safetensors")
    old = load_file(path)
    for name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"):
        old[name] = old["shared.weight"].clone()
    save_file(old, path, {"format": "pt"})


case("t5", build(T5Model, T5Config(**SMALL)), **batch, **after)
case("t5-encoder", build(T5EncoderModel, T5Config(**SMALL)), **batch)
names = dict(id2label={i: f"L{i}" for i in range(3)}, label2id={f"L{i}": i for i in range(3)})
case("t5-token", build(T5ForTokenClassification, T5Config(**SMALL, **names)), **batch,
     labels=torch.where(mask == 1, tokens(3, 3, T, seed=3, low=0), -100))
case("t5-far", build(T5EncoderModel, T5Config(**SMALL)), input_ids=tokens(V, 2, 31, seed=4))
model = build(T5ForConditionalGeneration, T5Config(**SMALL), seed=3, spread=0.5)
end_with(model, ids, mask)
case("t5-text", model, change=with_all_copies, extra=sequences(model, ids, mask), **batch, labels=labels)
config = T5Config(**dict(SMALL, num_decoder_layers=1), feed_forward_proj="gated-gelu", tie_word_embeddings=False)
for name, change in (("t5-gated", as_published), ("t5-gated-resaved", None)):
    model = build(T5ForConditionalGeneration, config, spread=0.4)
    model.lm_head.weight = torch.nn.Parameter(torch.randn(V, 12, generator=torch.Generator().manual_seed(3)))
    end_with(model, ids, mask)
    case(name, model, change=change, **batch, labels=labels, decoder_attention_mask=mask_of([6, 5, 6], 6),
         extra=sequences(model, ids, mask, ("max_new_tokens=9,num_beams=1", "max_new_tokens=9,num_beams=3")))
ended = ids.clone()
for i, n in enumerate((9, 4, 1)):
    ended[i, n - 1] = 1
case("t5-sequence", build(T5ForSequenceClassification, T5Config(**SMALL, **names)), input_ids=ended, attention_mask=mask,
     labels=torch.tensor([2, 0, 1]))
case("t5-span", build(T5ForQuestionAnswering, T5Config(**SMALL), spread=0.1), **batch, start_positions=torch.tensor([1, 0, 0]),
     end_positions=torch.tensor([5, 2, 0]))
