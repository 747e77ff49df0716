"""Golden explanations: what gradients, blanks, attention and flows say of one prediction, by torch and networkx, as tests/golden/explain.json; of a text, and of an
image, whose patches are its tokens and blanked by zeros.
Run: python3 tools/golden/explain.py tests/golden
(made with transformers 5.22.2, torch 2.15.0, networkx 3.6.1)

Cases are models that lie there already.  Formulas are those on top of src/see/explain_score.c and flow.c."""
import json
import os
import sys

import networkx as nx
import numpy as np
import torch
import transformers as tf
from PIL import Image

OUT = sys.argv[1]
STEPS = 32


def hidden_of(model, ids, replace=None):
    """Log-probabilities, and what the first layer read; replace: what it reads instead.  ids: of tokens, or pixels (1,C,H,W)."""
    if hasattr(model, "vit"):
        layer = model.vit.layers[0]
    else:
        layer = model.bert.encoder.layer[0] if hasattr(model, "bert") else model.transformer.h[0]
    found = {}

    def hook(_, args, kwargs):
        x = args[0] if args else kwargs["hidden_states"]
        x = (x if replace is None else replace).detach().requires_grad_(True)
        found["x"] = x
        if args:
            return (x,) + args[1:], kwargs
        return args, {**kwargs, "hidden_states": x}

    handle = layer.register_forward_pre_hook(hook, with_kwargs=True)
    given = {"pixel_values" if ids.dim() == 4 else "input_ids": ids}
    out = model(**given, output_attentions=True, output_hidden_states=True)
    handle.remove()
    logits = out.logits if out.logits.dim() == 2 else out.logits[:, -1]
    return torch.log_softmax(logits, -1), found["x"], out


def flow(layers, top):
    """Greatest flow from the tokens that the prediction reads to each token of the text."""
    n = len(top)
    scores = []
    for sink in range(n):
        g = nx.DiGraph()
        for i in range(n):
            if top[i] > 0:
                g.add_edge("s", (len(layers), i), capacity=top[i])
        for level, a in enumerate(layers):
            for i in range(n):
                for j in range(n):
                    if a[i][j] > 0:
                        g.add_edge((level + 1, i), (level, j), capacity=a[i][j])
        scores.append(nx.maximum_flow_value(g, "s", (0, sink)) if (0, sink) in g else 0.0)
    return scores


def explained(folder, text, blank):
    tok = tf.AutoTokenizer.from_pretrained(os.path.join(OUT, folder))
    config = tf.AutoConfig.from_pretrained(os.path.join(OUT, folder))
    kind = tf.AutoModelForSequenceClassification if "Sequence" in config.architectures[0] else tf.AutoModelForCausalLM
    model = kind.from_pretrained(os.path.join(OUT, folder), attn_implementation="eager").eval()
    enc = tok(text, return_special_tokens_mask=True)
    ids, special = torch.tensor([enc["input_ids"]]), enc["special_tokens_mask"]
    blank_id = tok.convert_tokens_to_ids(blank)

    def without(tokens):
        one = ids.clone()
        one[0, [t for t in tokens if not special[t]]] = blank_id
        return one

    return dict(folder=folder, text=text, blank=blank, **scores(model, ids, ids.shape[1], without))


def explained_image(folder, path, size, patch):
    """The directory gets a processor: size x size, to -1..1.  Pixels are resized by Pillow, as fovea resizes them."""
    model = tf.AutoModelForImageClassification.from_pretrained(os.path.join(OUT, folder), attn_implementation="eager").eval()
    tf.ViTImageProcessor(size={"height": size, "width": size}).save_pretrained(os.path.join(OUT, folder))
    image = Image.open(os.path.join(OUT, path)).convert("RGB").resize((size, size), Image.BILINEAR)
    pixels = (torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].double() / 255 * 2 - 1).float()
    wide = size // patch

    def without(tokens):
        one = pixels.clone()
        for t in tokens:
            if t:
                y, x = (t - 1) // wide * patch, (t - 1) % wide * patch
                one[:, :, y:y + patch, x:x + patch] = 0
        return one

    return dict(folder=folder, text=path, **scores(model, pixels, 1 + wide * wide, without))


def scores(model, ids, n, without):
    """without(tokens): the input with these blanked, special ones never"""
    log_p, x, out = hidden_of(model, ids)
    out.hidden_states[-1].retain_grad()
    label = int(log_p.argmax())
    log_p[0, label].backward()
    grad_last = out.hidden_states[-1].grad[0].norm(dim=1)
    top = (grad_last / grad_last.sum()).double()
    gradient = (x.grad * x)[0].sum(-1)
    base_p, base, _ = hidden_of(model, without(range(n)))
    integrated = torch.zeros(n)
    for k in range(STEPS):
        p, at, _ = hidden_of(model, ids, base.detach() + (k + 0.5) / STEPS * (x - base).detach())
        p[0, label].backward()
        integrated += (at.grad * (x - base).detach())[0].sum(-1) / STEPS
    occlusion = []
    for t in range(n):
        occlusion.append((log_p[0, label] - hidden_of(model, without([t]))[0][0, label]).item())
    means = [a[0].mean(0).double() for a in out.attentions]
    mixed = [(a + torch.eye(n)) / (a + torch.eye(n)).sum(-1, keepdim=True) for a in means]
    rolled = torch.eye(n).double()
    for a in mixed:
        rolled = a @ rolled
    return dict(steps=STEPS, label=label, log_p=float(log_p[0, label]),
                log_p_blank=float(base_p[0, label]), attention=(top @ means[-1]).tolist(), rollout=(top @ rolled).tolist(),
                flow=flow([a.tolist() for a in mixed], top.tolist()), gradient=gradient.tolist(), integrated=integrated.tolist(),
                occlusion=occlusion)


if __name__ == "__main__":
    cases = [explained("tasks/classify-bert", "the cat sat on the mat and it was good", "[MASK]"),
             explained_image("models/vit-classify", "images/rgb.png", 12, 4)]
    with open(os.path.join(OUT, "explain.json"), "w") as f:
        json.dump({"cases": cases}, f, indent=1)
        f.write("\n")
