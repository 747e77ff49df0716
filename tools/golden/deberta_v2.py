"""Golden cases of DeBERTa v2 and v3.  Run: python3 tools/golden/deberta_v2.py tests/golden/models   (versions: families.py)"""
import json
import os

import torch
from transformers import (DebertaV2Config, DebertaV2ForMaskedLM, DebertaV2ForMultipleChoice, DebertaV2ForQuestionAnswering,
                          DebertaV2ForSequenceClassification, DebertaV2ForTokenClassification, DebertaV2Model)

from families import build, case, mask_of, tokens

V, T = 37, 9
V3 = dict(vocab_size=V, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20, max_position_embeddings=16,
          type_vocab_size=0, relative_attention=True, max_relative_positions=-1, position_buckets=4, norm_rel_ebd="layer_norm",
          share_att_key=True, pos_att_type="p2c|c2p", position_biased_input=False)
ids, mask = tokens(V, 3, T), mask_of([9, 4, 1], T)
ids[mask == 0] = 0
types = (torch.arange(T)[None, :] >= torch.tensor([3, 2, 9])[:, None]).long()
batch = dict(input_ids=ids, attention_mask=mask)
labels = dict(id2label={i: f"L{i}" for i in range(5)}, label2id={f"L{i}": i for i in range(5)})
words = torch.where((torch.arange(3 * T).reshape(3, T) % 3 == 1) & (mask == 1), tokens(V, 3, T, seed=2), -100)


def as_published(folder):
    """config.json as the published ones: kinds of attention in one word."""
    path = os.path.join(folder, "config.json")
    with open(path) as f:
        config = json.load(f)
    config["pos_att_type"] = "|".join(config["pos_att_type"])
    with open(path, "w") as f:
        json.dump(config, f, indent=2)


case("deberta-v2", build(DebertaV2Model, DebertaV2Config(**V3)), change=as_published, **batch)
case("deberta-v2-far", build(DebertaV2Model, DebertaV2Config(**dict(V3, position_buckets=6))), input_ids=tokens(V, 2, 31, seed=4))
case("deberta-v2-plain", build(DebertaV2Model, DebertaV2Config(**dict(V3, relative_attention=False, position_biased_input=True,
                                                                      type_vocab_size=2, hidden_act="relu"))),
     **batch, token_type_ids=types)
case("deberta-v2-masked", build(DebertaV2ForMaskedLM, DebertaV2Config(**V3)), **batch, labels=words)
case("deberta-v2-masked-new", build(DebertaV2ForMaskedLM, DebertaV2Config(**dict(V3, share_att_key=False), legacy=False)), **batch,
     labels=words)
# as the larger ones of version 2: a convolution, distances each by itself up to the farthest
case("deberta-v2-sequence", build(DebertaV2ForSequenceClassification, DebertaV2Config(
    **dict(V3, position_buckets=-1, max_relative_positions=5, pos_att_type="c2p", position_biased_input=True, share_att_key=False),
    conv_kernel_size=3, conv_act="gelu", **labels)), **batch, labels=torch.tensor([4, 0, 2]))
case("deberta-v2-token", build(DebertaV2ForTokenClassification, DebertaV2Config(**dict(V3, pos_att_type="p2c", norm_rel_ebd="none"),
                                                                                **labels)), **batch,
     labels=torch.where(mask == 1, tokens(5, 3, T, seed=3, low=0), -100))
case("deberta-v2-span", build(DebertaV2ForQuestionAnswering, DebertaV2Config(**V3, conv_kernel_size=5, conv_groups=3)), **batch,
     start_positions=torch.tensor([1, 0, 0]), end_positions=torch.tensor([5, 2, 0]))
case("deberta-v2-choice", build(DebertaV2ForMultipleChoice, DebertaV2Config(**V3)), labels=torch.tensor([1, 0]),
     **{k: torch.stack([v[:2], v[1:]], 1) for k, v in batch.items()})
