"""Golden cases of SASRec, against a model written here in PyTorch after the paper's equations.
Run: python3 tools/golden/sasrec.py tests/golden/models   (versions: families.py)"""
import json
import math
import os
import shutil
import sys

import torch
from safetensors.torch import save_file
from torch.nn import functional as F

from families import tokens

SMALL = dict(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12, max_position_embeddings=7,
             hidden_act="relu", layer_norm_eps=1e-8)
ITEMS = 11


def parameters(k, seed=7):
    g, p, D = torch.Generator().manual_seed(seed), {}, k["hidden_size"]

    def linear(name, a, b):
        p[name + ".weight"], p[name + ".bias"] = 0.4 * torch.randn(b, a, generator=g), 0.4 * torch.randn(b, generator=g)

    def norm(name):
        p[name + ".weight"], p[name + ".bias"] = 1 + 0.2 * torch.randn(D, generator=g), 0.2 * torch.randn(D, generator=g)

    p["item_embeddings.weight"] = 0.4 * torch.randn(ITEMS, D, generator=g)
    p["position_embeddings.weight"] = 0.4 * torch.randn(k["max_position_embeddings"], D, generator=g)
    for i in range(k["num_hidden_layers"]):
        norm(f"layers.{i}.attention_norm")
        norm(f"layers.{i}.feed_forward_norm")
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            linear(f"layers.{i}.attention.{part}", D, D)
        linear(f"layers.{i}.feed_forward.fc1", D, k["intermediate_size"])
        linear(f"layers.{i}.feed_forward.fc2", k["intermediate_size"], D)
    norm("norm")
    return {name: t.requires_grad_() for name, t in p.items()}


def run(p, k, ids):
    """(B,T) -> (B,T,D), attention maps, hidden states."""
    D, H = k["hidden_size"], k["num_attention_heads"]
    B, T = ids.shape

    def linear(name, x):
        return F.linear(x, p[name + ".weight"], p[name + ".bias"])

    def norm(name, x):
        return F.layer_norm(x, (D,), p[name + ".weight"], p[name + ".bias"], k["layer_norm_eps"])

    x = p["item_embeddings.weight"][ids] * math.sqrt(D) + p["position_embeddings.weight"][:T]
    maps, hidden, later = [], [], torch.ones(T, T).triu(1).bool()
    for i in range(k["num_hidden_layers"]):
        hidden.append(x)
        at = f"layers.{i}."
        h = norm(at + "attention_norm", x)
        q, key, v = (linear(at + "attention." + n, h).reshape(B, T, H, D // H).transpose(1, 2) for n in ("q_proj", "k_proj", "v_proj"))
        w = (q @ key.transpose(2, 3) / math.sqrt(D // H)).masked_fill(later, -math.inf).softmax(-1)
        maps.append(w)
        x = x + linear(at + "attention.out_proj", (w @ v).transpose(1, 2).reshape(B, T, D))
        x = x + linear(at + "feed_forward.fc2", linear(at + "feed_forward.fc1", norm(at + "feed_forward_norm", x)).relu())
    x = norm("norm", x)
    return x, maps, hidden + [x]


def case(name, ids, labels=None, last=None, candidates=None):
    p = parameters(SMALL)
    x, maps, hidden = run(p, SMALL, ids)
    table = p["item_embeddings.weight"]
    if last is not None:
        x = x.flatten(0, 1)[last]
    logits = torch.einsum("btd,btkd->btk", x, table[candidates]) if candidates is not None else x @ table.T
    found = dict(logits=logits)
    if labels is not None:
        found["loss"] = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=-100)
        found["loss"].backward()
        found.update({"grad." + n: t.grad for n, t in p.items()})
    found.update({f"attentions.{i}": m for i, m in enumerate(maps)})
    found.update({f"hidden_states.{i}": h for i, h in enumerate(hidden)})
    folder = os.path.join(sys.argv[1], name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    inputs = dict(input_ids=ids, labels=labels, last_positions=last, candidates=candidates)
    save_file({n: v.contiguous() for n, v in inputs.items() if v is not None}, os.path.join(folder, "in.safetensors"))
    save_file({n: v.detach().clone().contiguous() for n, v in found.items()}, os.path.join(folder, "out.safetensors"))
    save_file({n: t.detach().contiguous() for n, t in p.items()}, os.path.join(folder, "model.safetensors"))
    names = {str(i): f"item {i}" for i in range(ITEMS)}
    json.dump(dict(model_type="sasrec", architectures=["SasRecModel"], id2label=names, label2id={v: int(i) for i, v in names.items()},
                   **SMALL), open(os.path.join(folder, "config.json"), "w"), indent=2)
    print(name)


ids = tokens(ITEMS, 3, 6, low=0)
labels = tokens(ITEMS, 3, 6, seed=2, low=0)
labels[1, 4:] = -100
case("sasrec", ids, labels)
case("sasrec-last", ids, torch.tensor([3, 0, 9]), last=torch.tensor([5, 9, 14]))
case("sasrec-candidates", ids, candidates=tokens(ITEMS, 3, 6, 4, seed=3, low=0))
