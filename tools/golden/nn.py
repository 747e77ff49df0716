#!/usr/bin/env python3
"""Golden numbers for tests/ops/test_ops_nn.c and tests/ops/test_nn.c, from PyTorch and transformers.

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
    adamw(o)
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


def adamw(o):
    """Three steps of torch.optim.AdamW, the gradients clipped to half their size."""
    w, grads = leaf(f32(20)), f32(3, 20)
    store(o, "adamw", before=w, grads=grads)
    step = torch.optim.AdamW([w], lr=0.05, betas=(0.9, 0.95), eps=1e-6, weight_decay=0.1)
    for g in grads:
        w.grad = 0.5 * g
        step.step()
    store(o, "adamw", after=w)


# ---- layers ----


def keep_layer(o, prefix, module, rename, fn, **inputs):
    """Rounds the module's parameters to f32, then stores them, the inputs, y, dy and all gradients under prefix."""
    with torch.no_grad():
        for t in module.parameters():
            t.copy_((torch.randn_like(t) * (0.3 if t.dim() > 1 else 0.5) + (0.5 if t.dim() == 1 else 0)).float().double())
    leaves = {k: leaf(v) for k, v in inputs.items()}
    y = fn(**leaves)
    dy = f32(*y.shape)
    y.backward(dy)
    store(o, prefix, y=y, dy=dy, **inputs, **{"d" + k: v.grad for k, v in leaves.items()})
    for name, t in module.named_parameters():
        for ours, part in rename(name, 3):
            store(o, prefix, **{ours: part(t), "grad." + ours: part(t.grad)})


def as_is(name, _):
    return [(name, lambda t: t)]


def torch_names(packed):
    """torch.nn's names of a layer as BART's, with in_proj in three parts unless packed."""
    words = {"linear1": "fc1", "linear2": "fc2", "multihead_attn": "encoder_attn"}

    def rename(name, parts):
        for a, b in words.items():
            name = name.replace(a, b)
        if "in_proj_" not in name:
            return [(name, lambda t: t)]
        head, kind = name.split("in_proj_")
        if packed:
            return [(f"{head}in_proj.{kind}", lambda t: t)]
        return [(f"{head}{p}_proj.{kind}", lambda t, i=i: t.chunk(parts)[i]) for i, p in enumerate("qkv")]

    def norms(name, parts):
        order = {"norm1": "self_attn_layer_norm", "norm2": "final_layer_norm"}
        if norms.decoder:
            order = {"norm1": "self_attn_layer_norm", "norm2": "encoder_attn_layer_norm", "norm3": "final_layer_norm"}
        first, _, rest = name.partition(".")
        return rename(f"{order[first]}.{rest}" if first in order else name, parts)

    norms.decoder = False
    return norms


def decoder_names():
    names = torch_names(False)
    names.decoder = True
    return names


def split_kv(name, _):
    """MultiheadAttention with other widths for memory: q_proj_weight and so on, but one in_proj_bias."""
    if name == "in_proj_bias":
        return [(f"{p}_proj.bias", lambda t, i=i: t.chunk(3)[i]) for i, p in enumerate("qkv")]
    return [(name.replace("_proj_weight", "_proj.weight"), lambda t: t)]


def layers():
    from torch import nn

    torch.manual_seed(21)
    o = {}
    keep = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    keep_memory = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    store(o, "masks", keep=keep.double(), memory=keep_memory.double())
    pad, pad_memory = keep == 0, keep_memory == 0
    future = torch.triu(torch.ones(5, 5, dtype=torch.bool), 1)
    x, memory = f32(2, 5, 8), f32(2, 4, 6)

    for packed in (False, True):
        mha = nn.MultiheadAttention(8, 2, batch_first=True)
        keep_layer(o, "mha_packed" if packed else "mha", mha, torch_names(packed),
                   lambda x, m=mha: m(x, x, x, key_padding_mask=pad, attn_mask=future, need_weights=False)[0], x=x)
    mha = nn.MultiheadAttention(8, 2, batch_first=True, kdim=6, vdim=6)
    keep_layer(o, "mha_cross", mha, split_kv,
               lambda x, memory: mha(x, memory, memory, key_padding_mask=pad_memory, need_weights=False)[0], x=x, memory=memory)

    for pre in (False, True):
        kind = "pre" if pre else "post"
        layer = nn.TransformerEncoderLayer(8, 2, 12, 0.0, "gelu" if pre else "relu", 1e-3, batch_first=True, norm_first=pre)
        keep_layer(o, "encoder_" + kind, layer, torch_names(False), lambda x, m=layer: m(x, src_key_padding_mask=pad), x=x)
        layer = nn.TransformerDecoderLayer(8, 2, 12, 0.0, "gelu" if pre else "relu", 1e-3, batch_first=True, norm_first=pre)
        keep_layer(o, "decoder_" + kind, layer, decoder_names(),
                   lambda x, memory, m=layer: m(x, memory, tgt_mask=future, memory_key_padding_mask=pad_memory),
                   x=x, memory=f32(2, 4, 8))
    families(o, x)
    relative(o)
    positions(o)
    return o


def families(o, x):
    """One layer each of Llama, T5 and GPT-2, causal or not, as transformers computes them."""
    from transformers import GPT2Config, LlamaConfig, T5Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding
    from transformers.models.t5.modeling_t5 import T5Block

    causal = torch.full((5, 5), -math.inf).triu(1)[None, None]
    cfg = LlamaConfig(hidden_size=8, intermediate_size=12, num_attention_heads=4, num_key_value_heads=2, head_dim=4,
                      rms_norm_eps=1e-3, attn_implementation="eager")
    llama, rotary = LlamaDecoderLayer(cfg, 0), LlamaRotaryEmbedding(cfg)
    at = torch.arange(5)[None].expand(2, 5)
    angle = at[..., None] * rotary.inv_freq.double()
    emb = torch.cat((angle, angle), -1)

    def run(x):
        y = llama(x, attention_mask=causal, position_embeddings=(emb.cos(), emb.sin()), position_ids=at)
        return y[0] if isinstance(y, tuple) else y

    keep_layer(o, "llama", llama, as_is, run, x=x)

    cfg = T5Config(d_model=8, d_kv=3, d_ff=12, num_heads=2, relative_attention_num_buckets=8, relative_attention_max_distance=6,
                   dropout_rate=0.0, layer_norm_epsilon=1e-3, feed_forward_proj="gated-gelu")
    t5 = T5Block(cfg, has_relative_attention_bias=True, layer_idx=0).eval()
    keep_layer(o, "t5", t5, as_is, lambda x: t5(x)[0], x=f32(2, 9, 8))

    cfg = GPT2Config(n_embd=8, n_head=2, n_inner=12, resid_pdrop=0.0, attn_pdrop=0.0, layer_norm_epsilon=1e-3,
                     attn_implementation="eager")
    gpt2 = GPT2Block(cfg, layer_idx=0).eval()

    def block(x):
        y = gpt2(x, attention_mask=causal)
        return y[0] if isinstance(y, tuple) else y

    keep_layer(o, "gpt2", gpt2, as_is, block, x=x)


def relative(o):
    """Transformer-XL, written out score by score: 3 earlier states and 4 new ones, 2 heads of 3."""
    names = "q_proj.weight k_proj.weight v_proj.weight r_net.weight out_proj.weight r_w_bias r_r_bias".split()
    shapes = [(6, 5), (6, 5), (6, 5), (6, 5), (5, 6), (2, 3), (2, 3)]
    p = {n: leaf(f32(*s)) for n, s in zip(names, shapes)}
    memory, places = leaf(f32(2, 7, 5)), f32(7, 5)
    q = (memory[:, 3:] @ p["q_proj.weight"].T).view(2, 4, 2, 3)
    k, v = ((memory @ p[f"{n}_proj.weight"].T).view(2, 7, 2, 3) for n in "kv")
    r = (places @ p["r_net.weight"].T).view(7, 2, 3)
    rows = []
    for i in range(4):
        scores = [torch.einsum("bhw,bhw->bh", q[:, i] + p["r_w_bias"], k[:, j])
                  + torch.einsum("bhw,hw->bh", q[:, i] + p["r_r_bias"], r[6 - (3 + i - j)]) for j in range(4 + i)]
        w = torch.softmax(torch.stack(scores, -1) / math.sqrt(3), -1)
        rows.append(torch.einsum("bhj,bjhw->bhw", w, v[:, : 4 + i]).flatten(1))
    y = torch.stack(rows, 1) @ p["out_proj.weight"].T
    dy = f32(*y.shape)
    y.backward(dy)
    store(o, "xl", y=y, dy=dy, memory=memory, dmemory=memory.grad, places=places)
    for n, t in p.items():
        store(o, "xl", **{n: t, "grad." + n: t.grad})


def positions(o):
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor
    from transformers.models.marian.modeling_marian import MarianSinusoidalPositionalEmbedding
    from transformers.models.t5.modeling_t5 import T5Attention

    torch.set_default_dtype(torch.float32)  # as the published models were made
    store(o, "sinusoid", halves=MarianSinusoidalPositionalEmbedding(40, 7).create_weight()
          if hasattr(MarianSinusoidalPositionalEmbedding, "create_weight") else MarianSinusoidalPositionalEmbedding(40, 7).weight)
    angle = torch.arange(40, dtype=torch.float64)[:, None] / 10000 ** (torch.arange(0, 6, 2, dtype=torch.float64) / 6)
    store(o, "sinusoid", pairs=torch.stack((angle.sin(), angle.cos()), -1).flatten(1))

    distance = torch.arange(-300, 301)
    for buckets, farthest in ((32, 128), (8, 20)):
        for both in (True, False):
            ids = T5Attention._relative_position_bucket(distance, both, buckets, farthest)
            store(o, f"t5_buckets_{buckets}", **{"both" if both else "one": ids})
    for heads in (4, 6):
        alibi = build_alibi_tensor(torch.ones(1, 3), heads, torch.float32).view(heads, 3)
        store(o, "alibi", **{f"slopes{heads}": alibi[:, 1]})

    kinds = dict(
        linear=dict(factor=4.0), dynamic=dict(factor=2.0),
        yarn=dict(factor=8.0, original_max_position_embeddings=128),
        llama3=dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=128))
    for kind, extra in kinds.items():
        cfg = LlamaConfig(hidden_size=64, num_attention_heads=2, max_position_embeddings=128,
                          rope_parameters=dict(rope_type=kind, rope_theta=10000.0, **extra))
        freq, sharpen = ROPE_INIT_FUNCTIONS[kind](cfg, None, seq_len=300)
        store(o, "rotary", **{kind: freq, kind + "_sharpen": torch.tensor([float(sharpen)])})


def main():
    folder = sys.argv[1]
    save_file(ops(), f"{folder}/nn_ops.safetensors", {"torch": torch.__version__})
    save_file(layers(), f"{folder}/nn_layers.safetensors", {"torch": torch.__version__})


if __name__ == "__main__":
    main()
