"""Golden cases of ModernBERT.  Run: python3 tools/golden/modernbert.py tests/golden/models   (versions: families.py)"""
import json
import os

import torch
from transformers import (ModernBertConfig, ModernBertForMaskedLM, ModernBertForQuestionAnswering,
                          ModernBertForSequenceClassification, ModernBertForTokenClassification, ModernBertModel)

from families import build, case, mask_of, tokens

V, T = 37, 9
SMALL = dict(vocab_size=V, hidden_size=12, intermediate_size=10, num_hidden_layers=3, num_attention_heads=3,
             max_position_embeddings=17, local_attention=4, pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1,
             sep_token_id=2)
# no row of padding is further from a token than a local layer sees: transformers makes such rows the mean of everything
ids, mask = tokens(V, 3, T), mask_of([9, 7, 8], T)
ids[mask == 0] = 0
batch = dict(input_ids=ids, attention_mask=mask)
labels = dict(id2label={i: f"L{i}" for i in range(3)}, label2id={f"L{i}": i for i in range(3)})
biased = dict(norm_bias=True, attention_bias=True, mlp_bias=True, classifier_bias=True)


def as_published(folder):
    """config.json as the first files have it: no list of layers, the rotation's bases outside."""
    path = os.path.join(folder, "config.json")
    with open(path) as f:
        config = json.load(f)
    rope = config.pop("rope_parameters")
    del config["layer_types"]
    config.update(global_attn_every_n_layers=2, global_rope_theta=rope["full_attention"]["rope_theta"],
                  local_rope_theta=rope["sliding_attention"]["rope_theta"])
    with open(path, "w") as f:
        json.dump(config, f, indent=2)


case("modernbert", build(ModernBertModel, ModernBertConfig(**SMALL)), **batch)
case("modernbert-one", build(ModernBertModel, ModernBertConfig(**SMALL)), input_ids=ids[:, :1])
case("modernbert-biased", build(ModernBertModel, ModernBertConfig(**SMALL, **biased, hidden_activation="silu")), **batch,
     position_ids=torch.arange(T)[None].repeat(3, 1) * 2)
case("modernbert-published", build(ModernBertModel, ModernBertConfig(**SMALL, global_attn_every_n_layers=2)),
     change=as_published, **batch)
words = torch.where((torch.arange(3 * T).reshape(3, T) % 3 == 1) & (mask == 1), tokens(V, 3, T, seed=2), -100)
case("modernbert-masked", build(ModernBertForMaskedLM, ModernBertConfig(**SMALL)), **batch, labels=words)
case("modernbert-masked-apart", build(ModernBertForMaskedLM, ModernBertConfig(**SMALL, **biased, tie_word_embeddings=False,
                                                                              decoder_bias=False)), **batch, labels=words)
for pooling in ("cls", "mean"):
    case("modernbert-" + pooling, build(ModernBertForSequenceClassification,
                                        ModernBertConfig(**SMALL, **labels, classifier_pooling=pooling)), **batch,
         labels=torch.tensor([2, 0, 1]))
case("modernbert-token", build(ModernBertForTokenClassification, ModernBertConfig(**SMALL, **labels)), **batch,
     labels=torch.where(mask == 1, tokens(3, 3, T, seed=3, low=0), -100))
case("modernbert-span", build(ModernBertForQuestionAnswering, ModernBertConfig(**SMALL)), **batch,
     start_positions=torch.tensor([1, 0, 0]), end_positions=torch.tensor([5, 2, 0]))
