"""Golden rollouts: Abnar and Zuidema's product of layers, from the attentions that transformers gave for the marian models
(marian-*.safetensors).  Run: python3 tools/golden/see.py tests/golden   (made with numpy 2.4.6, safetensors)"""
import sys

import numpy as np
from safetensors.numpy import load_file, save_file

out = sys.argv[1]


def step(a):
    """Half stays, half is read; rows that see nothing stay whole."""
    mixed = a + np.eye(a.shape[0])
    return mixed / mixed.sum(-1, keepdims=True)


def rollouts(layers):
    total, all_of_them = np.eye(layers[0].shape[0]), []
    for a in layers:
        total = step(a) @ total
        all_of_them.append(total)
    return np.stack(all_of_them)


def cross_rollouts(decoder, cross, encoder):
    """The decoder's state as shares of target and source tokens, layer by layer: the other order of what fovea does."""
    target, source = np.eye(decoder[0].shape[0]), np.zeros(cross[0].shape)
    memory, all_of_them = rollouts(encoder)[-1], []
    for own, over in zip(decoder, cross):
        target, source = step(own) @ target, step(own) @ source
        share = 1 / (1 + over.sum(-1, keepdims=True))
        target, source = share * target, share * source + share * (over @ memory)
        all_of_them.append(source)
    return np.stack(all_of_them)


tensors = {}
for name in ("marian-shared", "marian-apart"):
    g = load_file(f"{out}/{name}.safetensors")
    for b in range(3):
        maps = {k: [g[f"{k}_attentions.{i}"][b].astype(np.float64).mean(0) for i in range(2)] for k in ("encoder", "decoder", "cross")}
        tensors[f"{name}.{b}.encoder"] = rollouts(maps["encoder"])
        tensors[f"{name}.{b}.decoder"] = rollouts(maps["decoder"])
        tensors[f"{name}.{b}.cross"] = cross_rollouts(maps["decoder"], maps["cross"], maps["encoder"])
save_file({k: v.astype(np.float32) for k, v in tensors.items()}, f"{out}/see.safetensors")
