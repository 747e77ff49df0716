"""What the golden cases of models of items share: first values of their parameters and the files of a case."""
import json
import math
import os
import shutil
import sys

import torch
from safetensors.torch import save_file
from torch.nn import functional as F

ITEMS = 11
SMALL = dict(hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12, max_position_embeddings=7)


class Values:
    """Parameters by name, drawn in the order in which they are asked for."""

    def __init__(self, width, seed=7):
        self.g, self.p, self.width = torch.Generator().manual_seed(seed), {}, width

    def table(self, name, *shape):
        self.p[name] = 0.4 * torch.randn(*shape, generator=self.g)

    def linear(self, name, a, b):
        self.table(name + ".weight", b, a)
        self.table(name + ".bias", b)

    def norm(self, name):
        self.p[name + ".weight"] = 1 + 0.2 * torch.randn(self.width, generator=self.g)
        self.p[name + ".bias"] = 0.2 * torch.randn(self.width, generator=self.g)

    def layers(self, k):
        for i in range(k["num_hidden_layers"]):
            self.norm(f"layers.{i}.attention_norm")
            self.norm(f"layers.{i}.feed_forward_norm")
            for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                self.linear(f"layers.{i}.attention.{part}", self.width, self.width)
            self.linear(f"layers.{i}.feed_forward.fc1", self.width, k["intermediate_size"])
            self.linear(f"layers.{i}.feed_forward.fc2", k["intermediate_size"], self.width)

    def all(self):
        return {name: t.requires_grad_() for name, t in self.p.items()}


def linear(p, name, x):
    return F.linear(x, p[name + ".weight"], p[name + ".bias"])


def norm(p, name, x, k):
    return F.layer_norm(x, (k["hidden_size"],), p[name + ".weight"], p[name + ".bias"], k["layer_norm_eps"])


def layer(p, at, x, hide, k, act):
    """A post-norm block, (B,T,D) -> (B,T,D), and its attention weights (B,H,T,T); hide: true where a query must not look."""
    B, T, D = x.shape
    H = k["num_attention_heads"]
    q, key, v = (linear(p, at + "attention." + n, x).reshape(B, T, H, D // H).transpose(1, 2) for n in ("q_proj", "k_proj", "v_proj"))
    w = (q @ key.transpose(2, 3) / math.sqrt(D // H)).masked_fill(hide, -math.inf).softmax(-1)
    x = norm(p, at + "attention_norm", x + linear(p, at + "attention.out_proj", (w @ v).transpose(1, 2).reshape(B, T, D)), k)
    return norm(p, at + "feed_forward_norm", x + linear(p, at + "feed_forward.fc2", act(linear(p, at + "feed_forward.fc1", x))), k), w


def write(name, inputs, found, p, config):
    """The files of a case below sys.argv[1]."""
    folder = os.path.join(sys.argv[1], name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    save_file({n: v.contiguous() for n, v in inputs.items() if v is not None}, os.path.join(folder, "in.safetensors"))
    save_file({n: v.detach().clone().contiguous() for n, v in found.items()}, os.path.join(folder, "out.safetensors"))
    save_file({n: t.detach().contiguous() for n, t in p.items()}, os.path.join(folder, "model.safetensors"))
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f, indent=2)
    print(name)


def save(name, p, found, maps, hidden, inputs, config):
    """A case of a model of items; parameters that have a gradient are found too."""
    found.update({"grad." + n: t.grad for n, t in p.items() if t.grad is not None})
    found.update({f"attentions.{i}": m for i, m in enumerate(maps)})
    found.update({f"hidden_states.{i}": h for i, h in enumerate(hidden)})
    names = {str(i): f"item {i}" for i in range(ITEMS)}
    write(name, inputs, found, p, {**config, "id2label": names, "label2id": {v: int(i) for i, v in names.items()}})
