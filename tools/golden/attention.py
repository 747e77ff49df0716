#!/usr/bin/env python3
"""Golden numbers for tests/ops/test_attention_op.c: whole multi-head attention with every mask, from PyTorch.

Made with Python 3.11, torch 2.15.0, safetensors 0.8.0:

    python3 tools/golden/attention.py tests/golden/attention.safetensors

Everything is computed in f64 and stored as f32.  Masks are stored as 1 for what takes part, whatever PyTorch's own
polarity is at that place.
"""
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

torch.manual_seed(21)
torch.set_default_dtype(torch.float64)

B, T, S, D, H = 2, 13, 7, 12, 3  # batch, rows, keys of the other sequence, width, heads
out = {}


def store(prefix, **tensors):
    for name, t in tensors.items():
        out[f"{prefix}.{name}"] = t.detach().float().contiguous().clone()


def f32(*shape):
    """Random numbers that f32 holds exactly."""
    return torch.randn(shape).float().double()


def mha(name, memory=None, causal=False, padding=None, mask=None, bias=None):
    """nn.MultiheadAttention: y, the attention weights of each head, and gradients of inputs, parameters and bias."""
    layer = torch.nn.MultiheadAttention(D, H, batch_first=True)
    for p in layer.parameters():
        p.data = f32(*p.shape) * 0.5
    x = f32(B, T, D).requires_grad_(True)
    other = x if memory is None else f32(B, memory, D).requires_grad_(True)
    keys = other.shape[1]
    inputs = {} if memory is None else {"memory": other}
    hide = None  # PyTorch: True does not take part; float is added
    if mask is not None:
        hide = ~mask.expand(B, H, T, keys).reshape(B * H, T, keys)
    if bias is not None:
        inputs["bias"] = bias.requires_grad_(True)
        hide = bias.expand(B, H, T, keys).reshape(B * H, T, keys)
    if causal:
        hide = torch.ones(T, keys, dtype=torch.bool).triu(1)
    y, weights = layer(x, other, other, key_padding_mask=None if padding is None else ~padding, attn_mask=hide,
                       average_attn_weights=False)
    dy = f32(*y.shape)
    y.backward(dy)
    store(name, x=x, y=y, dy=dy, weights=weights, dx=x.grad, w_in=layer.in_proj_weight, b_in=layer.in_proj_bias,
          w_out=layer.out_proj.weight, b_out=layer.out_proj.bias, dw_in=layer.in_proj_weight.grad,
          db_in=layer.in_proj_bias.grad, dw_out=layer.out_proj.weight.grad)
    store(name, **inputs, **{"d" + k: v.grad for k, v in inputs.items()})
    if padding is not None:
        store(name, padding=padding)
    if mask is not None:
        store(name, mask=mask)


def side_by_side(x):
    """(B,H,T,W) -> (B,T,H*W), fovea's layout."""
    return x.transpose(1, 2).reshape(x.shape[0], x.shape[2], -1)


def sdpa(name, heads, groups, rows, keys, wk, wv, mask=None, rel=None, **options):
    """F.scaled_dot_product_attention with its gradients."""
    q, k, v = f32(B, heads, rows, wk), f32(B, groups, keys, wk), f32(B, groups, keys, wv)
    for t in (q, k, v):
        t.requires_grad_(True)
    add = mask
    if rel is not None:  # a bias by distance: element `zero` for a key at the row's own position, clamped at both ends
        table, zero = rel
        table.requires_grad_(True)
        distance = torch.arange(keys)[None, :] - (torch.arange(rows)[:, None] + keys - rows)
        add = table[:, (distance + zero).clamp(0, table.shape[1] - 1)][None]
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=add, enable_gqa=heads != groups, **options)
    dy = f32(*y.shape)
    y.backward(dy)
    store(name, **{n: side_by_side(t) for n, t in dict(q=q, k=k, v=v, y=y, dy=dy, dq=q.grad, dk=k.grad, dv=v.grad).items()})
    if mask is not None:
        store(name, mask=mask)
    if rel is not None:
        store(name, rel=table, drel=table.grad)


def some(*shape):
    """A mask in which every row keeps its first key."""
    m = torch.rand(shape) < 0.6
    m[..., 0] = True
    return m


mha("full")
mha("causal", causal=True)
mha("padding", padding=some(B, T))
mha("mask", mask=some(T, T))
mha("head_mask", mask=some(B, H, T, T))
mha("bias", bias=f32(B, H, T, T))
mha("shared_bias", bias=f32(H, T, T))
mha("causal_padding", causal=True, padding=some(B, T))
mha("cross", memory=S)
mha("cross_padding", memory=S, padding=some(B, S))

distance = torch.arange(T)[:, None] - torch.arange(T)[None, :]
sdpa("grouped", 4, 2, T, T, 5, 5, is_causal=True)
sdpa("wide_values", 2, 2, T, S, 5, 9)
sdpa("window", 2, 2, T, T, 4, 4, mask=(distance >= 0) & (distance < 4))
sdpa("scale", 2, 1, S, T, 6, 3, scale=0.7)
sdpa("rel", 3, 3, T, T, 4, 4, rel=(f32(3, 9), 5))
sdpa("rel_cross", 2, 2, S, T, 4, 4, rel=(f32(2, 6), 3))

save_file(out, sys.argv[1])
