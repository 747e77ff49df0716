#!/usr/bin/env python3
"""Golden numbers for tests/test_ops_nn.c and tests/test_nn.c, from PyTorch and transformers.

Made with Python 3.11, torch 2.15.0, transformers 5.22.2, safetensors 0.8.0:

    python3 tools/golden/nn.py tests/golden

Everything is computed in f64 and stored as f32, so the files hold rounded truth rather than PyTorch's own rounding.
Ids, lengths and positions are stored as i32, masks as f32 with 1 for what takes part.
"""
import math
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

torch.manual_seed(20)
torch.set_default_dtype(torch.float64)


def store(out, prefix, **tensors):
    for name, t in tensors.items():
        t = torch.as_tensor(t).detach()
        out[f"{prefix}.{name}"] = (t.float() if t.is_floating_point() else t.int()).contiguous().clone()


def f32(*shape, scale=1.0):
    """Random numbers that f32 holds exactly, so both sides start from the same input."""
    return (torch.randn(shape) * scale).float().double()


def leaf(t):
    return t.clone().requires_grad_(True)


def with_grads(out, prefix, fn, **inputs):
    """Stores inputs, y = fn(inputs), a random dy and the gradient of every input."""
    leaves = {k: leaf(v) for k, v in inputs.items()}
    y = fn(**leaves)
    dy = f32(*y.shape)
    y.backward(dy)
    store(out, prefix, y=y, dy=dy, **inputs, **{"d" + k: v.grad for k, v in leaves.items() if v.grad is not None})


def ops():
    o = {}
    with_grads(o, "layernorm", lambda x, gain, bias: F.layer_norm(x, (7,), gain, bias, 1e-3),
               x=f32(5, 7), gain=f32(7), bias=f32(7))
    with_grads(o, "rmsnorm", lambda x, gain: F.rms_norm(x, (7,), gain, 1e-3), x=f32(5, 7), gain=f32(7))

    x = f32(4, 3, 5) * 2 + 1
    mean, var = f32(3), f32(3).abs() + 0.5
    store(o, "batchnorm", mean=mean, var=var)
    moved = [mean.clone(), var.clone()]
    with_grads(o, "batchnorm", lambda x, gain, bias: F.batch_norm(x, *moved, gain, bias, True, 0.1, 1e-3),
               x=x, gain=f32(3), bias=f32(3))
    store(o, "batchnorm", mean_after=moved[0], var_after=moved[1])
    still = [mean.clone(), var.clone()]
    with_grads(o, "batchnorm_eval", lambda x, gain, bias: F.batch_norm(x, *still, gain, bias, False, 0.1, 1e-3),
               x=x, gain=f32(3), bias=f32(3))

    # The order of the paper, v first; torch.nn.utils.parametrizations begins with u.
    layer = torch.nn.utils.spectral_norm(torch.nn.Linear(6, 4, bias=False), eps=1e-6)
    with torch.no_grad():
        for t in (layer.weight_orig, layer.weight_u, layer.weight_v):
            t.copy_(t.float().double())
    store(o, "spectral", w=layer.weight_orig, u=layer.weight_u, v=layer.weight_v)
    layer(torch.zeros(1, 6))
    dy = f32(4, 6)
    layer.weight.backward(dy)
    store(o, "spectral", y=layer.weight, dy=dy, dw=layer.weight_orig.grad, u_after=layer.weight_u, v_after=layer.weight_v)

    conv = dict(
        conv1d=(F.conv1d, (2, 4, 9), (6, 2, 3), 6, dict(stride=2, padding=1, dilation=2, groups=2)),
        conv2d=(F.conv2d, (2, 3, 6, 7), (4, 3, 3, 2), 4, dict(stride=2, padding=1)),
        conv2d_depth=(F.conv2d, (2, 4, 5, 5), (4, 1, 3, 3), 4, dict(padding=1, groups=4)),
        conv2d_point=(F.conv2d, (2, 3, 4, 3), (5, 3, 1, 1), 5, dict()),
        conv1d_t=(F.conv_transpose1d, (2, 4, 5), (4, 3, 3), 6, dict(stride=3, padding=1, groups=2, output_padding=2)),
        conv2d_t=(F.conv_transpose2d, (2, 3, 4, 3), (3, 4, 3, 2), 4, dict(stride=2, padding=1, output_padding=1)),
        conv2d_td=(F.conv_transpose2d, (1, 2, 3, 4), (2, 3, 2, 2), 3, dict(stride=2, dilation=3, output_padding=2)),
    )
    for name, (fn, xs, ws, bs, opt) in conv.items():
        with_grads(o, name, lambda x, w, b, fn=fn, opt=opt: fn(x, w, b, **opt), x=f32(*xs), w=f32(*ws), b=f32(bs))
    for h, w in ((7, 9), (3, 2)):
        with_grads(o, f"bilinear{h}", lambda x: F.interpolate(x, size=(h, w), mode="bilinear", align_corners=False),
                   x=f32(2, 2, 4, 5))
    with_grads(o, "nearest", lambda x: F.interpolate(x, scale_factor=3, mode="nearest"), x=f32(2, 2, 2, 3))

    labels = torch.tensor([3, -100, 0, 10, 7, 3])
    store(o, "entropy", labels=labels)
    with_grads(o, "entropy", lambda x: F.cross_entropy(x, labels, reduction="none", label_smoothing=0.1), x=f32(6, 11, scale=3))
    with_grads(o, "bce", lambda x, t: F.binary_cross_entropy_with_logits(x, t), x=f32(3, 4, scale=4), t=torch.rand(3, 4).float().double())
    with_grads(o, "mse", lambda x, t: F.mse_loss(x, t), x=f32(3, 4), t=f32(3, 4))
    with_grads(o, "mae", lambda x, t: F.l1_loss(x, t), x=f32(3, 4), t=f32(3, 4))
    sign = torch.tensor([[1.0, -1, 1, 1], [-1, -1, 1, -1], [1, 1, -1, 1]])
    store(o, "hinge", sign=sign)
    with_grads(o, "hinge", lambda x: F.relu(1 - sign * x).mean(), x=f32(3, 4))
    rope(o)
    return o


def rope(o):
    """Rotary positions: halves as transformers turns Llama, neighbours as it turns GPT-J; 6 of 8 dimensions turn."""
    from transformers.models.gptj.modeling_gptj import apply_rotary_pos_emb as neighbours
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb as halves

    x, pos = f32(2, 3, 2, 8), torch.tensor([[0, 1, 2], [5, 9, 100]])  # (B,T,H,W)
    freq = (1 / 10000 ** (torch.arange(0, 6, 2) / 6)).float().double()
    angle = pos[..., None] * freq
    store(o, "rope", pos=pos, freq=freq)

    def by_halves(x):
        emb = torch.cat((angle, angle), -1)
        turned, _ = halves(x[..., :6], x[..., :6], emb.cos(), emb.sin(), unsqueeze_dim=2)
        return torch.cat((turned, x[..., 6:]), -1).flatten(2)

    def by_neighbours(x):
        return torch.cat((neighbours(x[..., :6], angle.sin(), angle.cos()), x[..., 6:]), -1).flatten(2)

    with_grads(o, "rope_half", by_halves, x=x)
    with_grads(o, "rope_adjacent", by_neighbours, x=x)


def main():
    folder = sys.argv[1]
    save_file(ops(), f"{folder}/nn_ops.safetensors", {"torch": torch.__version__})


if __name__ == "__main__":
    main()
