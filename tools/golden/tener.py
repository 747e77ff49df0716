"""Golden cases of TENER with letters and a conditional random field, against a model written here in PyTorch, in double precision,
after the papers' equations (Yan et al. 2019; Ma and Hovy 2016 for letters; the field's log-partition over all sequences of labels).
Run: python3 tools/golden/tener.py tests/golden/models   (versions: families.py)"""
import itertools
import json
import math
import os
import shutil
import sys

import torch
from safetensors.torch import save_file
from torch.nn import functional as F

from families import tokens

SMALL = dict(vocab_size=17, hidden_size=8, num_hidden_layers=2, num_attention_heads=2, intermediate_size=12, word_embedding_size=6,
             char_embedding_size=4, char_hidden_size=5, max_word_bytes=7, max_position_embeddings=9, hidden_act="relu", layer_norm_eps=1e-5)
LABELS = 4


def parameters(k, seed=11):
    g, p, D, C = torch.Generator().manual_seed(seed), {}, k["hidden_size"], k["char_embedding_size"]
    H = k["num_attention_heads"]

    def normal(*shape, by=0.3):
        return (by * torch.randn(*shape, generator=g)).double()

    def linear(name, a, b, bias=True):
        p[name + ".weight"] = normal(b, a)
        if bias:
            p[name + ".bias"] = normal(b)

    p["word_embeddings.weight"], p["char_embeddings.weight"] = normal(k["vocab_size"], k["word_embedding_size"]), normal(257, C)
    linear("char_conv", 3 * C, k["char_hidden_size"])
    linear("in_proj", k["word_embedding_size"] + k["char_hidden_size"], D)
    for i in range(k["num_hidden_layers"]):
        at = f"layers.{i}."
        linear(at + "attention.q_proj", D, D, False)
        linear(at + "attention.v_proj", D, D, False)
        linear(at + "attention.out_proj", D, D)
        p[at + "attention.u"], p[at + "attention.v"] = normal(H, D // H), normal(H, D // H)
        for n in ("attention_norm", "feed_forward_norm"):
            p[at + n + ".weight"], p[at + n + ".bias"] = 1 + normal(D, by=0.2), normal(D, by=0.2)
        linear(at + "feed_forward.fc1", D, k["intermediate_size"])
        linear(at + "feed_forward.fc2", k["intermediate_size"], D)
    linear("classifier", D, LABELS)
    p["crf.transitions"] = normal(LABELS + 2, LABELS)
    return {n: t.float().double().requires_grad_() for n, t in p.items()}


def letters(p, k, ids):
    x = F.pad(F.embedding(ids, p["char_embeddings.weight"], padding_idx=0), (0, 0, 1, 1))
    near = torch.cat([x[..., i:i + k["max_word_bytes"], :] for i in range(3)], -1)
    return F.linear(near, p["char_conv.weight"], p["char_conv.bias"]).amax(-2)


def waves(T, W):
    apart = torch.arange(T)[:, None] - torch.arange(T)[None]
    turn = apart[..., None].double() * torch.exp(-math.log(10000) * torch.arange(W // 2).double() / max(W // 2 - 1, 1))
    return torch.cat([turn.sin(), turn.cos()], -1).float().double()  # (T,T,W): of t - j


def run(p, k, ids, mask, chars):
    D, H = k["hidden_size"], k["num_attention_heads"]
    B, T = ids.shape
    W = D // H

    def linear(name, x):
        return F.linear(x, p[name + ".weight"], p.get(name + ".bias"))

    def norm(name, x):
        return F.layer_norm(x, (D,), p[name + ".weight"], p[name + ".bias"], k["layer_norm_eps"])

    x = torch.cat([F.embedding(ids, p["word_embeddings.weight"], padding_idx=0), letters(p, k, chars)], -1)
    x = linear("in_proj", x)
    maps, hidden, r = [], [], waves(T, W)
    for i in range(k["num_hidden_layers"]):
        hidden.append(x)
        at = f"layers.{i}."
        q, v = (linear(at + "attention." + n, x).reshape(B, T, H, W).transpose(1, 2) for n in ("q_proj", "v_proj"))
        key = x.reshape(B, T, H, W).transpose(1, 2)
        a = (q + p[at + "attention.u"][:, None]) @ key.transpose(2, 3)
        a = a + torch.einsum("bhtw,tjw->bhtj", q + p[at + "attention.v"][:, None], r)
        w = a.masked_fill(mask[:, None, None] == 0, -math.inf).softmax(-1)
        maps.append(w)
        x = norm(at + "attention_norm", x + linear(at + "attention.out_proj", (w @ v).transpose(1, 2).reshape(B, T, D)))
        x = norm(at + "feed_forward_norm", x + linear(at + "feed_forward.fc2", linear(at + "feed_forward.fc1", x).relu()))
    return linear("classifier", x), maps, hidden + [x]


def field_loss(x, steps, labels):
    """Of one sequence, over every sequence of labels; positions with a negative label are left out."""
    at = [t for t in range(len(labels)) if labels[t] >= 0]

    def score(way):
        before, total = LABELS, 0
        for t, label in zip(at, way):
            total = total + steps[before, label] + x[t, label]
            before = label
        return total + steps[LABELS + 1, before]

    return torch.stack([score(w) for w in itertools.product(range(LABELS), repeat=len(at))]).logsumexp(0) - \
        score([int(labels[t]) for t in at])


def case(name, ids, mask, chars, labels, field=True):
    p = parameters(SMALL)
    if not field:
        del p["crf.transitions"]
    logits, maps, hidden = run(p, SMALL, ids, mask, chars)
    if field:
        loss = sum(field_loss(logits[b], p["crf.transitions"], labels[b]) for b in range(len(ids))) / (labels >= 0).sum()
    else:
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
    loss.backward()
    found = dict(logits=logits, loss=loss)
    found.update({"grad." + n: t.grad for n, t in p.items()})
    found.update({f"attentions.{i}": m for i, m in enumerate(maps)})
    found.update({f"hidden_states.{i}": h for i, h in enumerate(hidden)})
    folder = os.path.join(sys.argv[1], name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    save_file(dict(input_ids=ids, attention_mask=mask, char_ids=chars, labels=labels), os.path.join(folder, "in.safetensors"))
    save_file({n: v.detach().float().clone().contiguous() for n, v in found.items()}, os.path.join(folder, "out.safetensors"))
    save_file({n: t.detach().float().contiguous() for n, t in p.items()}, os.path.join(folder, "model.safetensors"))
    names = {str(i): f"LABEL_{i}" for i in range(LABELS)}
    json.dump(dict(model_type="tener", architectures=["TenerForTokenClassification"], crf=field, id2label=names,
                   label2id={v: int(i) for i, v in names.items()}, **SMALL), open(os.path.join(folder, "config.json"), "w"), indent=2)
    print(name, loss.item())


ids = tokens(SMALL["vocab_size"], 3, 6, low=1)
mask = torch.ones(3, 6, dtype=torch.uint8)
mask[1, 4:] = 0
ids[1, 4:] = 0
chars = tokens(257, 3, 6, SMALL["max_word_bytes"], seed=3, low=1)
chars[0, 1, 3:], chars[2, 4, 5:], chars[1, 4:] = 0, 0, 0
labels = tokens(LABELS, 3, 6, seed=2, low=0)
labels[0, 2], labels[1, 4:], labels[2, 0] = -100, -100, -100
case("tener", ids, mask, chars, labels)
case("tener-plain", ids, mask, chars, labels, field=False)
