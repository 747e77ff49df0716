"""Golden cases of BERT4Rec, against a model written here in PyTorch after the paper's equations.
Run: python3 tools/golden/bert4rec.py tests/golden/models   (versions: families.py)"""
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
             hidden_act="gelu", layer_norm_eps=1e-12)
ITEMS = 11


def parameters(k, seed=7):
    g, p, D = torch.Generator().manual_seed(seed), {}, k["hidden_size"]

    def linear(name, a, b):
        p[name + ".weight"], p[name + ".bias"] = 0.4 * torch.randn(b, a, generator=g), 0.4 * torch.randn(b, generator=g)

    def norm(name):
        p[name + ".weight"], p[name + ".bias"] = 1 + 0.2 * torch.randn(D, generator=g), 0.2 * torch.randn(D, generator=g)

    p["item_embeddings.weight"] = 0.4 * torch.randn(ITEMS + 1, D, generator=g)
    p["position_embeddings.weight"] = 0.4 * torch.randn(k["max_position_embeddings"], D, generator=g)
    norm("embedding_norm")
    for i in range(k["num_hidden_layers"]):
        norm(f"layers.{i}.attention_norm")
        norm(f"layers.{i}.feed_forward_norm")
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            linear(f"layers.{i}.attention.{part}", D, D)
        linear(f"layers.{i}.feed_forward.fc1", D, k["intermediate_size"])
        linear(f"layers.{i}.feed_forward.fc2", k["intermediate_size"], D)
    linear("head.dense", D, D)
    norm("head.norm")
    p["head.bias"] = 0.4 * torch.randn(ITEMS, generator=g)
    return {name: t.requires_grad_() for name, t in p.items()}


def run(p, k, ids, mask):
    """(B,T) -> (B,T,D), attention maps, hidden states."""
    D, H = k["hidden_size"], k["num_attention_heads"]
    B, T = ids.shape

    def linear(name, x):
        return F.linear(x, p[name + ".weight"], p[name + ".bias"])

    def norm(name, x):
        return F.layer_norm(x, (D,), p[name + ".weight"], p[name + ".bias"], k["layer_norm_eps"])

    x = norm("embedding_norm", p["item_embeddings.weight"][ids] + p["position_embeddings.weight"][:T])
    maps, hidden = [], []
    for i in range(k["num_hidden_layers"]):
        hidden.append(x)
        at = f"layers.{i}."
        q, key, v = (linear(at + "attention." + n, x).reshape(B, T, H, D // H).transpose(1, 2) for n in ("q_proj", "k_proj", "v_proj"))
        w = (q @ key.transpose(2, 3) / math.sqrt(D // H)).masked_fill(mask[:, None, None] == 0, -math.inf).softmax(-1)
        maps.append(w)
        x = norm(at + "attention_norm", x + linear(at + "attention.out_proj", (w @ v).transpose(1, 2).reshape(B, T, D)))
        x = norm(at + "feed_forward_norm", x + linear(at + "feed_forward.fc2", F.gelu(linear(at + "feed_forward.fc1", x))))
    return norm("head.norm", F.gelu(linear("head.dense", x))), maps, hidden + [x]


def case(name, ids, mask, labels, last=None):
    p = parameters(SMALL)
    x, maps, hidden = run(p, SMALL, ids, mask)
    if last is not None:
        x = x.flatten(0, 1)[last]
    logits = x @ p["item_embeddings.weight"][:ITEMS].T + p["head.bias"]
    loss = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=-100)
    loss.backward()
    found = dict(logits=logits, loss=loss)
    found.update({"grad." + n: t.grad for n, t in p.items()})
    found.update({f"attentions.{i}": m for i, m in enumerate(maps)})
    found.update({f"hidden_states.{i}": h for i, h in enumerate(hidden)})
    folder = os.path.join(sys.argv[1], name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    inputs = dict(input_ids=ids, attention_mask=mask, labels=labels, last_positions=last)
    save_file({n: v.contiguous() for n, v in inputs.items() if v is not None}, os.path.join(folder, "in.safetensors"))
    save_file({n: v.detach().clone().contiguous() for n, v in found.items()}, os.path.join(folder, "out.safetensors"))
    save_file({n: t.detach().contiguous() for n, t in p.items()}, os.path.join(folder, "model.safetensors"))
    names = {str(i): f"item {i}" for i in range(ITEMS)}
    json.dump(dict(model_type="bert4rec", architectures=["Bert4RecModel"], id2label=names,
                   label2id={v: int(i) for i, v in names.items()}, **SMALL), open(os.path.join(folder, "config.json"), "w"), indent=2)
    print(name)


ids = tokens(ITEMS, 3, 6, low=0)
mask = torch.ones(3, 6, dtype=torch.uint8)
mask[1, 4:] = 0
labels = torch.full((3, 6), -100)
for b, t in ((0, 1), (0, 5), (1, 3), (2, 0)):
    labels[b, t] = ids[b, t]
    ids[b, t] = ITEMS
case("bert4rec", ids, mask, labels)
case("bert4rec-last", ids, mask, torch.tensor([3, 0, 9]), last=torch.tensor([5, 9, 14]))
