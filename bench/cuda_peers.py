#!/usr/bin/env python3
"""PyTorch on a GPU, for bench/cuda.py: a peer is made, compiled and warmed up, says "ready", and times itself for every line
it is sent, for at least as many seconds as that says, answering with work a second.

    bench/cuda_peers.py NAME [key=number ...]     attention is given its sizes behind the seconds instead
    bench/cuda_peers.py start FILE                seconds from the start of Python to a first token, weights from FILE
    bench/cuda_peers.py model DIR                 writes what that and fovea start from: GPT-2 124M, random, bf16

The models are as plain as PyTorch runs fastest: fused attention, one product for q, k and v, tied output weights.
"""
import math
import os
import statistics
import sys
import time

STARTED = time.perf_counter()

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

DEVICE = "cuda"


class Layer(nn.Module):
    """A block of GPT-2 (norm first, gelu by tanh) or of BERT (norm last, gelu by erf)."""

    def __init__(self, width, heads, first, gelu):
        super().__init__()
        self.heads, self.first, self.gelu = heads, first, gelu
        self.norm = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x, causal, cache=None, place=None, seen=None):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = (c.index_copy_(2, place, new) for c, new in zip(cache, (k, v)))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=causal)
        return self.out(y.transpose(1, 2).reshape(b, t, d))

    def forward(self, x, causal=False, cache=None, place=None, seen=None):
        mlp = lambda h: self.down(F.gelu(self.up(h), approximate=self.gelu))
        if self.first:
            x = x + self.attend(self.norm[0](x), causal, cache, place, seen)
            return x + mlp(self.norm[1](x))
        x = self.norm[0](x + self.attend(x, causal))
        return self.norm[1](x + mlp(x))


class Gpt2(nn.Module):
    def __init__(self, vocab=50304, places=1024, width=768, layers=12, heads=12):
        super().__init__()
        self.words, self.places = nn.Embedding(vocab, width), nn.Embedding(places, width)
        self.layers = nn.ModuleList(Layer(width, heads, True, "tanh") for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, 0, 0.02)

    def loss(self, ids, labels):
        x = self.words(ids) + self.places.weight[: ids.size(1)]
        for layer in self.layers:
            x = layer(x, True)
        return F.cross_entropy(F.linear(self.norm(x), self.words.weight).flatten(0, 1), labels.flatten())

    def cache(self, batch, length, dtype):
        heads = self.layers[0].heads
        shape = (batch, heads, length, self.words.embedding_dim // heads)
        return [tuple(torch.zeros(shape, device=DEVICE, dtype=dtype) for _ in range(2)) for _ in self.layers]

    def step(self, ids, place, cache):
        """The next tokens behind ids, which stand at place in a cache of fixed size."""
        seen = (torch.arange(cache[0][0].size(2), device=DEVICE) <= place[:, None])[None, None]
        x = self.words(ids) + self.places(place)
        for layer, kept in zip(self.layers, cache):
            x = layer(x, False, kept, place, seen)
        return F.linear(self.norm(x[:, -1]), self.words.weight).argmax(-1, keepdim=True)


class Lora(nn.Module):
    """y + (alpha / r) B A x beside a frozen linear map, as PEFT computes it."""

    def __init__(self, inner, r=8, alpha=8):
        super().__init__()
        self.inner, self.scale = inner, alpha / r
        self.a, self.b = nn.Linear(inner.in_features, r, bias=False), nn.Linear(r, inner.out_features, bias=False)
        nn.init.zeros_(self.b.weight)

    def forward(self, x):
        return self.inner(x) + self.b(self.a(x)) * self.scale


class LlamaLayer(Layer):
    """RMS norms, rotary positions, no biases, gate and up in one product."""

    def __init__(self, width, heads, inner):
        nn.Module.__init__(self)
        self.heads = heads
        self.norm = nn.ModuleList(nn.RMSNorm(width, eps=1e-5) for _ in range(2))
        self.qkv, self.out = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
        self.up, self.down = nn.Linear(width, 2 * inner, bias=False), nn.Linear(inner, width, bias=False)

    def forward(self, x, angle, cache, place, seen):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm[0](x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        cos, sin, half = angle.cos().to(x.dtype), angle.sin().to(x.dtype), d // self.heads // 2
        turn = lambda y: y * cos + torch.cat((-y[..., half:], y[..., :half]), -1) * sin
        k, v = (c.index_copy_(2, place, new) for c, new in zip(cache, (turn(k), v)))
        y = F.scaled_dot_product_attention(turn(q), k, v, attn_mask=seen)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, d))
        gate, up = self.up(self.norm[1](x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Llama(Gpt2):
    """bench/configs/llama-110m.json"""

    def __init__(self, vocab=32000, width=768, layers=12, heads=12, inner=2048):
        nn.Module.__init__(self)
        self.words = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(LlamaLayer(width, heads, inner) for _ in range(layers))
        self.norm, self.score = nn.RMSNorm(width, eps=1e-5), self.words
        half = torch.arange(0, width // heads, 2) / (width // heads)
        self.frequency = torch.pow(1e4, -half).repeat(2).to(DEVICE)

    def step(self, ids, place, cache):
        seen = (torch.arange(cache[0][0].size(2), device=DEVICE) <= place[:, None])[None, None]
        x, angle = self.words(ids), place[:, None] * self.frequency
        for layer, kept in zip(self.layers, cache):
            x = layer(x, angle, kept, place, seen)
        return F.linear(self.norm(x[:, -1]), self.score.weight).argmax(-1, keepdim=True)


class DecoderLayer(nn.Module):
    """A layer of Qwen3, Pythia, Gemma or Phi-3: grouped heads, perhaps normed, of which a part may be rotated."""

    def __init__(self, o):
        super().__init__()
        self.o, bias = o, o.parallel
        kind = (lambda w: nn.LayerNorm(w)) if o.parallel else (lambda w: nn.RMSNorm(w, eps=1e-6))
        self.norm = nn.ModuleList(kind(o.width) for _ in range(2))
        self.head_norm = nn.ModuleList(kind(o.head) for _ in range(2 * o.head_norms))
        self.qkv = nn.Linear(o.width, (o.heads + 2 * o.groups) * o.head, bias=bias)
        self.out = nn.Linear(o.heads * o.head, o.width, bias=bias)
        self.up = nn.Linear(o.width, o.inner if o.parallel else 2 * o.inner, bias=bias)
        self.down = nn.Linear(o.inner, o.width, bias=bias)

    def mlp(self, x):
        if self.o.parallel:
            return self.down(F.gelu(self.up(x)))
        gate, up = self.up(x).chunk(2, -1)
        return self.down((F.gelu(gate, approximate="tanh") if self.o.gelu else F.silu(gate)) * up)

    def attend(self, x, angle, cache, place, seen):
        o, (b, t, _) = self.o, x.shape
        q, k, v = (y.view(b, t, -1, o.head) for y in self.qkv(x).split([o.heads * o.head] + 2 * [o.groups * o.head], -1))
        if o.head_norms:
            q, k = self.head_norm[0](q), self.head_norm[1](k)
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        cos, sin, wide = angle.cos().to(x.dtype), angle.sin().to(x.dtype), angle.size(-1)

        def turn(y):
            part, rest = y[..., :wide], y[..., wide:]
            part = part * cos + torch.cat((-part[..., wide // 2 :], part[..., : wide // 2]), -1) * sin
            return torch.cat((part, rest), -1) if rest.size(-1) else part

        k, v = (c.index_copy_(2, place, new) for c, new in zip(cache, (turn(k), v)))
        y = F.scaled_dot_product_attention(turn(q), k, v, attn_mask=seen, enable_gqa=o.groups < o.heads)
        return self.out(y.transpose(1, 2).reshape(b, t, o.heads * o.head))

    def forward(self, x, angle, cache, place, seen):
        if self.o.parallel:
            return x + self.attend(self.norm[0](x), angle, cache, place, seen) + self.mlp(self.norm[1](x))
        x = x + self.attend(self.norm[0](x), angle, cache, place, seen)
        return x + self.mlp(self.norm[1](x))


class Sizes:
    """Of a published model; bench/configs/NAME.json says the same."""

    def __init__(self, vocab, width, layers, heads, groups, head, inner, rotated=1.0, head_norms=0, parallel=0, gelu=0, tied=1):
        self.__dict__.update({key: value for key, value in locals().items() if key != "self"})


SIZES = {"qwen3-0.6b": Sizes(151936, 1024, 28, 16, 8, 128, 3072, head_norms=1),
         "pythia-410m": Sizes(50304, 1024, 24, 16, 16, 64, 4096, rotated=0.25, parallel=1, tied=0),
         "gemma-2b": Sizes(256000, 2048, 18, 8, 1, 256, 16384, gelu=1),
         "phi3-mini": Sizes(32064, 3072, 32, 32, 32, 96, 8192, tied=0)}


class Decoder(Llama):
    def __init__(self, o):
        nn.Module.__init__(self)
        self.o, self.words = o, nn.Embedding(o.vocab, o.width)
        self.layers = nn.ModuleList(DecoderLayer(o) for _ in range(o.layers))
        self.norm = nn.LayerNorm(o.width) if o.parallel else nn.RMSNorm(o.width, eps=1e-6)
        self.score = self.words if o.tied else nn.Linear(o.width, o.vocab, bias=False)
        wide = int(o.head * o.rotated)
        self.frequency = torch.pow(1e4, -(torch.arange(0, wide, 2) / wide)).repeat(2)

    def cache(self, batch, length, dtype):
        shape = (batch, self.o.groups, length, self.o.head)
        return [tuple(torch.zeros(shape, device=DEVICE, dtype=dtype) for _ in range(2)) for _ in self.layers]


class Bert(nn.Module):
    def __init__(self, vocab=30522, places=512, width=768, layers=12, heads=12):
        super().__init__()
        self.words, self.places, self.kinds = nn.Embedding(vocab, width), nn.Embedding(places, width), nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(Layer(width, heads, False, "none") for _ in range(layers))

    def forward(self, ids):
        x = self.norm(self.words(ids) + self.places.weight[: ids.size(1)] + self.kinds.weight[0])
        for layer in self.layers:
            x = layer(x)
        return x


class Vit(nn.Module):
    """bench/configs/vit-base.json and, with other sizes, vit-small-32.json; norm first, gelu by erf."""

    def __init__(self, width=768, layers=12, heads=12, side=224, patch=16, labels=1000):
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.first = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.places = nn.Parameter(torch.randn(1, 1 + (side // patch) ** 2, width) * 0.02)
        self.layers = nn.ModuleList(Layer(width, heads, True, "none") for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, labels)

    def forward(self, image):
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat((self.first.to(x.dtype).expand(len(x), -1, -1), x), 1) + self.places.to(x.dtype)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])

    def loss(self, image, labels):
        return F.cross_entropy(self(image), labels)


class SasRecLayer(Layer):
    """A pre-norm block with dropout on attention weights and before each sum."""

    def __init__(self, width, heads, dropout):
        super().__init__(width, heads, True, "none")
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm[0](x)).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=self.drop.p, is_causal=True)
        x = x + self.drop(self.out(y.transpose(1, 2).reshape(b, t, d)))
        return x + self.drop(self.down(F.gelu(self.up(self.norm[1](x)))))


class SasRec(nn.Module):
    """bench/configs/sasrec-beauty.json: the cross-entropy over all items at every position."""

    def __init__(self, items=12101, longest=50, width=64, layers=2, heads=2, dropout=0.5):
        super().__init__()
        self.items, self.places = nn.Embedding(items, width), nn.Embedding(longest, width)
        self.layers = nn.ModuleList(SasRecLayer(width, heads, dropout) for _ in range(layers))
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(dropout)

    def loss(self, ids, labels):
        x = self.drop(self.items(ids) * math.sqrt(self.items.embedding_dim) + self.places.weight[: ids.size(1)])
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(F.linear(self.norm(x), self.items.weight).flatten(0, 1), labels.flatten())


class Translator(nn.Module):
    """Transformer-base; dropout before each sum and behind the embeddings, or with everywhere=1 also where nn.Transformer
    has it: on attention weights and inside the feed-forward part."""

    def __init__(self, vocab, everywhere, width=512, heads=8, layers=6, inner=2048, dropout=0.1):
        super().__init__()
        self.words = nn.Embedding(vocab, width)
        nn.init.normal_(self.words.weight, 0, width**-0.5)
        self.body = nn.Transformer(width, heads, layers, layers, inner, dropout, batch_first=True)
        for part in self.body.modules():
            if everywhere:
                break
            if isinstance(part, nn.MultiheadAttention):
                part.dropout = 0.0
            elif isinstance(part, (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)):
                part.dropout.p = 0.0
        angle = torch.arange(512)[:, None] * torch.exp(torch.arange(0, width, 2) * (-math.log(1e4) / width))
        self.register_buffer("waves", torch.cat([angle.sin(), angle.cos()], -1))
        self.register_buffer("past", nn.Transformer.generate_square_subsequent_mask(512))
        self.drop = nn.Dropout(0.0 if everywhere else dropout)

    def loss(self, source, target, labels):
        put = lambda ids: self.drop(self.words(ids) * math.sqrt(self.words.embedding_dim) + self.waves[: ids.size(1)])
        t = target.size(1)
        y = self.body(put(source), put(target), tgt_mask=self.past[:t, :t], tgt_is_causal=True)
        return F.cross_entropy(F.linear(y, self.words.weight).flatten(0, 1), labels.flatten(), label_smoothing=0.1)


def ids(vocab, *shape):
    return torch.randint(0, vocab, shape, device=DEVICE)


# ---- peers: each returns what is timed, how much of it one call does, and how often it is called for one reading ----


def training(model, inputs, clip, mode=None):
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)

    def loss():
        with torch.autocast(DEVICE, torch.bfloat16):
            return model.loss(*inputs)

    compiled = torch.compile(loss, dynamic=False, mode=mode)

    def update():
        if mode:
            torch.compiler.cudagraph_mark_step_begin()
        compiled().backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return update


def train(batch, length=1024):
    return training(Gpt2().to(DEVICE), (ids(50257, batch, length), ids(50257, batch, length)), 1.0), batch * length, 4


def lora(batch=8, length=1024):
    """LoRA of rank 8, in f32, beside q, k, v of a frozen GPT-2 in bf16; compiled layer by layer, and the loss, as compiling the whole takes minutes."""
    model = Gpt2().to(DEVICE, torch.bfloat16).requires_grad_(False)
    for layer in model.layers:
        layer.qkv = Lora(layer.qkv).to(DEVICE)
        for p in (*layer.qkv.a.parameters(), *layer.qkv.b.parameters()):
            p.requires_grad_(True)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=1e-6, fused=True)
    part = torch.compile(Layer.forward, dynamic=False)
    score = torch.compile(lambda x, y: F.cross_entropy(F.linear(x, model.words.weight).flatten(0, 1), y.flatten()), dynamic=False)
    source, labels = ids(50257, batch, length), ids(50257, batch, length)

    def update():
        with torch.autocast(DEVICE, torch.bfloat16):
            x = model.words(source) + model.places.weight[:length]
            for layer in model.layers:
                x = part(layer, x, True)
            score(model.norm(x), labels).backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return update, batch * length, 4


def translate(batch=400, length=64, vocab=32000, everywhere=0):
    model = Translator(vocab, everywhere).to(DEVICE).train()
    return training(model, [ids(vocab, batch, length) for _ in range(3)], None), batch * length, 4


def forward(batch, length=128):
    model = torch.compile(Bert().to(DEVICE, torch.bfloat16).eval(), mode="reduce-overhead", dynamic=False)
    x = ids(30522, batch, length)
    return torch.inference_mode()(lambda: model(x)), batch, 5


def vit(batch, side=224):
    model = torch.compile(Vit().to(DEVICE, torch.bfloat16).eval(), mode="reduce-overhead", dynamic=False)
    x = torch.randn(batch, 3, side, side, device=DEVICE, dtype=torch.bfloat16)
    return torch.inference_mode()(lambda: model(x)), batch, 5


def train_vit(batch, side=32):
    model = Vit(width=384, heads=6, side=side, patch=4, labels=10).to(DEVICE)
    return training(model, (torch.randn(batch, 3, side, side, device=DEVICE), ids(10, batch)), 1.0), batch, 4


def train_sasrec(batch, length=50, graphs=0):
    """graphs=1: captured by torch.compile; the better of both is the peer."""
    model = SasRec().to(DEVICE).train()
    inputs = ids(12101, batch, length), ids(12101, batch, length)
    return training(model, inputs, 1.0, "reduce-overhead" if graphs else None), batch * length, 10


def decode(batch, prompt=32, new=128, llama=0):
    vocab = 32000 if llama else 50257
    return write_on((Llama if llama else Gpt2)(vocab=vocab).to(DEVICE, torch.bfloat16), vocab, batch, prompt, new)


def decode_sizes(name):
    def make(batch, prompt=32, new=128):
        torch.set_default_dtype(torch.bfloat16)
        with torch.device(DEVICE):
            model = Decoder(SIZES[name])
        torch.set_default_dtype(torch.float32)
        model.frequency = model.frequency.float()
        return write_on(model, SIZES[name].vocab, batch, prompt, new)

    return make


@torch.no_grad()
def write_on(model, vocab, batch, prompt, new):
    """One graph for a token, replayed; what was read before is taken as given."""
    model = model.eval().requires_grad_(False)
    cache = model.cache(batch, prompt + new, torch.bfloat16)
    compiled = torch.compile(lambda t, p: model.step(t, p, cache), dynamic=False, fullgraph=True)
    token, place = ids(vocab, batch, 1), torch.tensor([prompt], device=DEVICE)
    aside = torch.cuda.Stream()
    with torch.cuda.stream(aside):
        for _ in range(3):
            token.copy_(compiled(token, place))
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        token.copy_(compiled(token, place))
        place.add_(1)

    def write(graph_reads=(model, cache, token)):  # a graph holds addresses, not tensors
        place.fill_(prompt)
        for _ in range(new):
            graph.replay()

    return write, batch * new, 1


def product(size=8192):
    a, b = (torch.randn(size, size, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    return lambda: torch.mm(a, b.t()), 2e-12 * size**3, 10


class Flash3(torch.autograd.Function):
    """FlashAttention-3's own kernels, (batch, length, heads, width)."""

    @staticmethod
    def forward(ctx, q, k, v, causal):
        y, lse, *_ = torch.ops.flash_attn_3.fwd(q, k, v, is_causal=causal, softmax_scale=q.size(-1) ** -0.5, num_splits=1)
        ctx.save_for_backward(q, k, v, y, lse)
        ctx.causal = causal
        return y

    @staticmethod
    def backward(ctx, slope):
        q, k, v, y, lse = ctx.saved_tensors
        grads = [torch.empty_like(x) for x in (q, k, v)]
        torch.ops.flash_attn_3.bwd(slope, q, k, v, y, lse, *grads, softmax_scale=q.size(-1) ** -0.5, is_causal=ctx.causal)
        return *grads, None


def attention(width, length, causal, gradient, repeat=0, dropout=0.0, bias=0, mask=0, values=0, flash3=0, tokens=16384,
              all_heads=2048):
    """The best of PyTorch's kernels, which one is told on stderr; each is tried before one is chosen.  repeat=1: of those whose
    gradients are the same each time.  flash3=1: FlashAttention-3 instead, from the library that the environment names."""
    shape, values = (tokens // length, length, all_heads // width, width), values or width
    q, k, v = (torch.randn(*shape[:3], wide, device=DEVICE, dtype=torch.bfloat16, requires_grad=bool(gradient))
               for wide in (width, width, values))
    slope = torch.randn(*shape[:3], values, device=DEVICE, dtype=torch.bfloat16).transpose(1, 2)
    added = torch.randn(1, shape[2], length, length, device=DEVICE, dtype=torch.bfloat16) if bias else None
    if bias > 1: # with a gradient of its own
        added.requires_grad_()
    if mask:
        added = torch.rand(shape[0], 1, length, length, device=DEVICE) < 7 / 8

    def way(backend):
        def run():
            torch.use_deterministic_algorithms(bool(repeat))
            with sdpa_kernel(backend):
                y = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), attn_mask=added, dropout_p=dropout,
                                                   is_causal=bool(causal))
            if gradient:
                torch.autograd.grad(y, (q, k, v, added) if bias > 1 else (q, k, v), slope)
            torch.use_deterministic_algorithms(False)

        return run

    def flash():
        y = Flash3.apply(q, k, v, bool(causal))
        if gradient:
            torch.autograd.grad(y, (q, k, v), slope.transpose(1, 2))

    pairs = length * (length + 1) / 2 if causal else length * length
    wide = 4 * width + 3 * values if gradient else width + values # of all products
    work = 2e-12 * wide * shape[0] * shape[2] * pairs
    if flash3:
        torch.ops.load_library(os.environ["FLASH_ATTENTION_3"])
        return flash, work, 5
    best, least = None, math.inf
    for backend in (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION):
        try:
            taken = reading(way(backend), 1, 0, least=3)
        except RuntimeError: # it does not take this case
            torch.use_deterministic_algorithms(False)
            continue
        if taken < least:
            best, least = backend, taken
    print(f"attention {shape} causal={causal} gradient={gradient} repeat={repeat} dropout={dropout} bias={bias} mask={mask} "
          f"values={values}: {best.name}", file=sys.stderr)
    return way(best), work, 5


PEERS = {"train": train, "lora": lora, "translate": translate, "forward": forward, "vit": vit, "train_vit": train_vit,
         "train_sasrec": train_sasrec, "decode": decode, "gemm": product} | {name: decode_sizes(name) for name in SIZES}


def reading(call, times, seconds, least=5):
    """The median time of one call, of as many as take so long, as fovea's own benchmark does: a GPU that is given a moment's
    work is faster than one that is kept busy."""
    taken = []
    while len(taken) < 2 + least or sum(taken[2:]) * times < seconds: # two to warm up
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(times):
            call()
        end.record()
        end.synchronize()
        taken.append(begin.elapsed_time(end) * 1e-3 / times)
    return statistics.median(taken[2:])


def first_token(path):
    with torch.device("meta"):
        model = Gpt2(vocab=50257)
    model.load_state_dict(torch.load(path, mmap=True, map_location=DEVICE), assign=True)
    with torch.inference_mode():
        cache = model.eval().cache(1, 64, torch.bfloat16)
        model.step(ids(50257, 1, 32), torch.arange(32, device=DEVICE), cache).item()
    print(time.perf_counter() - STARTED)


def write_model(folder):
    """As transformers writes it, with a tokenizer of bytes; and plain.pt for first_token."""
    import tokenizers
    import transformers

    transformers.GPT2LMHeadModel(transformers.GPT2Config()).to(torch.bfloat16).save_pretrained(folder)
    torch.save(Gpt2(vocab=50257).to(torch.bfloat16).state_dict(), f"{folder}/plain.pt")
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    words = letters + [f"word{i}" for i in range(50256 - len(letters))] + ["<|endoftext|>"]
    t = tokenizers.Tokenizer(tokenizers.models.BPE({w: i for i, w in enumerate(words)}, []))
    t.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    t.decoder = tokenizers.decoders.ByteLevel()
    t.save(f"{folder}/tokenizer.json")


def numbers(pairs):
    return {key: float(value) if "." in value else int(value) for key, value in (pair.split("=") for pair in pairs)}


def main():
    name = sys.argv[1]
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    if name == "start":
        return first_token(sys.argv[2])
    if name == "model":
        return write_model(sys.argv[2])
    if name != "attention":
        call, amount, times = PEERS[name](**numbers(sys.argv[2:]))
        reading(call, 1, 0, least=2)
    torch.cuda.empty_cache()  # what others need meanwhile
    print("ready", flush=True)
    for line in sys.stdin:
        seconds, sizes = line.split()[0], line.split()[1:]
        if name == "attention":
            call, amount, times = attention(**numbers(sizes))
        print(amount / reading(call, times, float(seconds)), flush=True)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
