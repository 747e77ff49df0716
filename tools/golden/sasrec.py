"""Golden cases of SASRec, against a model written here in PyTorch after the paper's equations.
Run: python3 tools/golden/sasrec.py tests/golden/models   (versions: families.py)"""
import math

import torch
from torch.nn import functional as F

from families import tokens
from item_models import ITEMS, SMALL, Values, linear, norm, save

CONFIG = dict(SMALL, hidden_act="relu", layer_norm_eps=1e-8)


def parameters(k):
    v = Values(k["hidden_size"])
    v.table("item_embeddings.weight", ITEMS, k["hidden_size"])
    v.table("position_embeddings.weight", k["max_position_embeddings"], k["hidden_size"])
    v.layers(k)
    v.norm("norm")
    return v.all()


def run(p, k, ids):
    """(B,T) -> (B,T,D), attention maps, hidden states."""
    D, H = k["hidden_size"], k["num_attention_heads"]
    B, T = ids.shape

    x = p["item_embeddings.weight"][ids] * math.sqrt(D) + p["position_embeddings.weight"][:T]
    maps, hidden, later = [], [], torch.ones(T, T).triu(1).bool()
    for i in range(k["num_hidden_layers"]):
        hidden.append(x)
        at = f"layers.{i}."
        h = norm(p, at + "attention_norm", x, k)
        q, key, v = (linear(p, at + "attention." + n, h).reshape(B, T, H, D // H).transpose(1, 2) for n in ("q_proj", "k_proj", "v_proj"))
        w = (q @ key.transpose(2, 3) / math.sqrt(D // H)).masked_fill(later, -math.inf).softmax(-1)
        maps.append(w)
        x = x + linear(p, at + "attention.out_proj", (w @ v).transpose(1, 2).reshape(B, T, D))
        x = x + linear(p, at + "feed_forward.fc2", linear(p, at + "feed_forward.fc1", norm(p, at + "feed_forward_norm", x, k)).relu())
    x = norm(p, "norm", x, k)
    return x, maps, hidden + [x]


def case(name, ids, labels=None, last=None, candidates=None):
    p = parameters(CONFIG)
    x, maps, hidden = run(p, CONFIG, ids)
    table = p["item_embeddings.weight"]
    if last is not None:
        x = x.flatten(0, 1)[last]
        if candidates is not None:
            x = x[:, None]
    logits = torch.einsum("btd,btkd->btk", x, table[candidates]) if candidates is not None else x @ table.T
    found = dict(logits=logits)
    if labels is not None:
        found["loss"] = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=-100)
        found["loss"].backward()
    inputs = dict(input_ids=ids, labels=labels, last_positions=last, candidates=candidates)
    save(name, p, found, maps, hidden, inputs, dict(model_type="sasrec", architectures=["SasRecModel"], **CONFIG))


ids = tokens(ITEMS, 3, 6, low=0)
labels = tokens(ITEMS, 3, 6, seed=2, low=0)
labels[1, 4:] = -100
case("sasrec", ids, labels)
case("sasrec-last", ids, torch.tensor([3, 0, 9]), last=torch.tensor([5, 9, 14]))
case("sasrec-candidates", ids, candidates=tokens(ITEMS, 3, 6, 4, seed=3, low=0))
case("sasrec-last-candidates", ids, last=torch.tensor([5, 9, 14]), candidates=tokens(ITEMS, 3, 1, 4, seed=3, low=0))
