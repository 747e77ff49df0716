"""Golden cases of mT5.  Run: python3 tools/golden/mt5.py tests/golden/models   (versions: families.py)"""
import json
import os

import torch
from transformers import (MT5Config, MT5EncoderModel, MT5ForConditionalGeneration, MT5ForQuestionAnswering, MT5ForSequenceClassification,
                          MT5ForTokenClassification, MT5Model)

from families import build, case, mask_of, tokens
from generated import end_with, sequences

V, T = 35, 9
SMALL = dict(vocab_size=V, d_model=12, d_kv=5, d_ff=20, num_layers=2, num_decoder_layers=1, num_heads=3,
             relative_attention_num_buckets=8, relative_attention_max_distance=10)
ids, mask = tokens(V, 3, T, low=2), mask_of([9, 4, 2], T)
ids[mask == 0] = 0
for i, n in enumerate((9, 4, 2)):
    ids[i, n - 1] = 1
batch = dict(input_ids=ids, attention_mask=mask)
labels = tokens(V, 3, 6, seed=2, low=2)
labels[1, 4:] = -100
names = dict(id2label={i: f"L{i}" for i in range(3)}, label2id={f"L{i}": i for i in range(3)})


def as_published(folder):
    """config.json as the published ones: nothing is tied."""
    path = os.path.join(folder, "config.json")
    with open(path) as f:
        config = json.load(f)
    config["tie_word_embeddings"] = False
    with open(path, "w") as f:
        json.dump(config, f, indent=2)


case("mt5", build(MT5Model, MT5Config(**SMALL)), **batch, decoder_input_ids=tokens(V, 3, 5, seed=4))
case("mt5-encoder", build(MT5EncoderModel, MT5Config(**SMALL)), **batch)
model = build(MT5ForConditionalGeneration, MT5Config(**SMALL), spread=0.4)
model.lm_head.weight = torch.nn.Parameter(torch.randn(V, 12, generator=torch.Generator().manual_seed(3)))
end_with(model, ids, mask)
case("mt5-text", model, change=as_published, **batch, labels=labels, extra=sequences(model, ids, mask))
case("mt5-tied", build(MT5ForConditionalGeneration, MT5Config(**dict(SMALL, feed_forward_proj="gated-silu")), spread=0.1), **batch, labels=labels)
case("mt5-token", build(MT5ForTokenClassification, MT5Config(**SMALL, **names)), **batch,
     labels=torch.where(mask == 1, tokens(3, 3, T, seed=3, low=0), -100))
case("mt5-sequence", build(MT5ForSequenceClassification, MT5Config(**SMALL, **names)), **batch, labels=torch.tensor([2, 0, 1]))
case("mt5-span", build(MT5ForQuestionAnswering, MT5Config(**SMALL)), **batch, start_positions=torch.tensor([1, 0, 0]),
     end_positions=torch.tensor([5, 2, 1]))
