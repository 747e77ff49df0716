#!/usr/bin/env python3
"""Products, BERT-base and decoding over numbers of threads, beside PyTorch, in turns: the rows of docs/benchmarks.md for x86.

    bench/cores.py [--rows gemm bert decode one attention train] [--threads 1 2 8 16] [--rounds 3] [--seconds 0.3] [--busy] [--pin] [--most 100]

Needs build/fovea (make) and PyTorch.  PyTorch's BERT is written out below with its own operators (eager, inference_mode), so
transformers is not needed.  A figure is the median over rounds of a program's own median.  --busy: another process keeps one
core busy meanwhile.  --pin: both programs are bound to the same CPUs, no two of one core where there are so many cores (one_per_core.py).
Products have a second peer, and their ratio is to the better one: in f32 OpenBLAS, which numpy from PyPI is built with; in int8, where PyTorch runs
oneDNN's dynamically quantised linear (f32 rows in and out, as fovea's), the bare product of bytes to 32 bits, also oneDNN's.
--dtypes int8: BERT-base with int8 weights, without a peer.  --most ends the script after so many seconds, between rows.
"""
import argparse
import array
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

import one_per_core
from timing import times

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOVEA = os.environ.get("FOVEA", os.path.join(ROOT, "build", "fovea"))
CONFIGS = os.path.join(ROOT, "bench", "configs")


def fovea(args, *what):
    """The JSON line of one benchmark; None where it fails."""
    pin = one_per_core.bind(args.pin, what[what.index("-t") + 1])
    command = [FOVEA, "bench", *map(str, what), "--seconds", str(args.seconds), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=pin)
    lines = [json.loads(x) for x in done.stdout.splitlines() if x.startswith("{")]
    if done.returncode or not lines:
        print(f"{' '.join(command)}: {done.stderr.strip()}", file=sys.stderr)
        return None
    return lines


def gpt2_shapes(c):
    d = c["n_embd"]
    yield from (("wte.weight", (c["vocab_size"], d)), ("wpe.weight", (c["n_positions"], d)))
    for i in range(c["n_layer"]):
        for part, rows, cols in (("attn.c_attn", d, 3 * d), ("attn.c_proj", d, d), ("mlp.c_fc", d, 4 * d), ("mlp.c_proj", 4 * d, d)):
            yield from ((f"h.{i}.{part}.weight", (rows, cols)), (f"h.{i}.{part}.bias", (cols,)))
        for part in ("ln_1", "ln_2"):
            yield from ((f"h.{i}.{part}.weight", (d,)), (f"h.{i}.{part}.bias", (d,)))
    yield from (("ln_f.weight", (d,)), ("ln_f.bias", (d,)))


def bert_shapes(c):
    d, f = c["hidden_size"], c["intermediate_size"]
    for part, rows in (("word", c["vocab_size"]), ("position", c["max_position_embeddings"]), ("token_type", c["type_vocab_size"])):
        yield f"embeddings.{part}_embeddings.weight", (rows, d)
    norms = ["embeddings.LayerNorm"]
    for i in range(c["num_hidden_layers"]):
        at = f"encoder.layer.{i}."
        linears = [("attention.self." + x, d, d) for x in ("query", "key", "value")] + [("attention.output.dense", d, d)]
        for part, rows, cols in linears + [("intermediate.dense", f, d), ("output.dense", d, f)]:
            yield from ((f"{at}{part}.weight", (rows, cols)), (f"{at}{part}.bias", (rows,)))
        norms += [at + "attention.output.LayerNorm", at + "output.LayerNorm"]
    for norm in norms:
        yield from ((norm + ".weight", (d,)), (norm + ".bias", (d,)))
    yield from (("pooler.dense.weight", (d, d)), ("pooler.dense.bias", (d,)))


def llama_shapes(c):
    """Token table and output are one tensor, as in bench/configs."""
    d, f = c["hidden_size"], c["intermediate_size"]
    kv = d // c["num_attention_heads"] * c["num_key_value_heads"]
    yield from (("model.embed_tokens.weight", (c["vocab_size"], d)), ("model.norm.weight", (d,)))
    linears = (("self_attn.q_proj", d, d), ("self_attn.k_proj", kv, d), ("self_attn.v_proj", kv, d), ("self_attn.o_proj", d, d),
               ("mlp.gate_proj", f, d), ("mlp.up_proj", f, d), ("mlp.down_proj", d, f))
    for i in range(c["num_hidden_layers"]):
        for part, rows, cols in linears:
            yield f"model.layers.{i}.{part}.weight", (rows, cols)
        for part in ("input_layernorm", "post_attention_layernorm"):
            yield f"model.layers.{i}.{part}.weight", (d,)


def saved_model(folder, name):
    """A directory with random weights for a configuration: drawing them anew would take longer than what is measured."""
    with open(os.path.join(CONFIGS, name + ".json"), encoding="utf-8") as f:
        config = json.load(f)
    shapes = {"gpt2": gpt2_shapes, "bert": bert_shapes, "llama": llama_shapes}[config["model_type"]]
    header, at = {}, 0
    for key, shape in shapes(config):
        size = 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[key] = {"dtype": "F32", "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 64)
    some = array.array("f", (random.gauss(0, 0.02) for _ in range(1 << 16))).tobytes()
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        while at > 0:
            f.write(some[: min(at, len(some))])
            at -= len(some)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump(config, f)
    return ["--model", folder]


class PeerProcess:
    """A process that answers lines, stopped between them: threads of OpenBLAS and ONNX Runtime spin for a while when their work is
    done, on the cores of the program whose turn it is."""

    def __init__(self, command, **how):
        self.p = subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **how)

    def ask(self, line):
        self.p.send_signal(signal.SIGCONT)
        print(line, file=self.p.stdin, flush=True)
        answer = self.p.stdout.readline()
        self.p.send_signal(signal.SIGSTOP)
        return json.loads(answer) if answer else float("nan")

    def close(self):
        self.p.send_signal(signal.SIGCONT)
        self.p.stdin.close()
        self.p.wait()


class Peer(PeerProcess):
    """PyTorch in a process of its own for each number of threads: it keeps its threads once it has them."""

    def __init__(self, pin, threads):
        super().__init__([sys.executable, os.path.abspath(__file__), "--peer", threads], preexec_fn=one_per_core.bind(pin, threads),
                         env={**os.environ, "OPENBLAS_NUM_THREADS": str(threads)})

    def __call__(self, seconds, *what):
        return self.ask(json.dumps([seconds, *what]))


def timed(run, seconds):
    return statistics.median(times(run, seconds))


def peer_gemm(torch, dtype, m, n, k):
    if dtype == torch.int8:
        return peer_linear_int8(torch, m, n, k)
    a, w = torch.randn(m, k, dtype=dtype), torch.randn(n, k, dtype=dtype)
    return lambda: torch.nn.functional.linear(a, w)


def peer_linear_int8(torch, m, n, k):
    """Weights with one scale for each column, packed before; rows are rounded to bytes inside, as in fovea."""
    torch.backends.quantized.engine = "onednn"
    a, w = torch.randn(m, k), torch.randn(n, k)
    scale = w.abs().amax(1) / 127
    packed = torch.ops.quantized.linear_prepack(torch.quantize_per_channel(w, scale, torch.zeros(n, dtype=torch.int64), 0, torch.qint8), None)
    return lambda: torch.ops.quantized.linear_dynamic(a, packed)


def peer_int_mm(torch, dtype, m, n, k):
    a, w = (torch.randint(-127, 128, s, dtype=torch.int8) for s in ((m, k), (n, k)))
    return lambda: torch._int_mm(a, w.t())


def peer_openblas(m, n, k):
    import numpy

    rng = numpy.random.default_rng(0)
    a, w, y = rng.random((m, k), numpy.float32), rng.random((n, k), numpy.float32), numpy.empty((m, n), numpy.float32)
    return lambda: numpy.matmul(a, w.T, out=y)


def peer_attention(torch, dtype, length, causal, backward):
    q, k, v = (torch.randn(4, 8, length, 64, dtype=dtype, requires_grad=backward) for _ in range(3))
    dy = torch.randn(4, 8, length, 64, dtype=dtype)

    def run():
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        if backward:
            torch.autograd.grad(y, (q, k, v), dy)

    return run


def peer_bert(torch, dtype, batch, length):
    """The forward pass of BERT-base: what transformers computes, without its Python."""
    f, d, heads = torch.nn.functional, 768, 12
    def drawn(*s):
        return torch.randn(*s, dtype=dtype) * 0.02
    layers = [dict(qkv=drawn(3 * d, d), b=drawn(3 * d), o=drawn(d, d), ob=drawn(d), up=drawn(4 * d, d), ub=drawn(4 * d),
                   down=drawn(d, 4 * d), db=drawn(d), g=torch.ones(d, dtype=dtype), s=drawn(d)) for _ in range(12)]
    table, place, pool = drawn(30522, d), drawn(512, d), drawn(d, d)
    ids = torch.randint(0, 30522, (batch, length))

    def run():
        g, s = layers[0]["g"], layers[0]["s"]
        x = f.layer_norm(f.embedding(ids, table) + place[:length], (d,), g, s)
        for w in layers:
            q, k, v = (t.view(batch, length, heads, -1).transpose(1, 2) for t in f.linear(x, w["qkv"], w["b"]).chunk(3, -1))
            a = f.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, d)
            x = f.layer_norm(x + f.linear(a, w["o"], w["ob"]), (d,), w["g"], w["s"])
            h = f.gelu(f.linear(x, w["up"], w["ub"]))
            x = f.layer_norm(x + f.linear(h, w["down"], w["db"]), (d,), w["g"], w["s"])
        return torch.tanh(f.linear(x[:, 0], pool))

    return run


def peer_train(torch, dtype, model, batch, length):
    """One update with fused AdamW, eager; bf16: autocast, as PyTorch trains in it, with weights in f32."""
    import cuda_peers

    cuda_peers.DEVICE = "cpu"
    if model == "gpt2":
        net, inputs, clip = cuda_peers.Gpt2(), [cuda_peers.ids(50257, batch, length) for _ in range(2)], 1.0
    else:
        net, inputs, clip = cuda_peers.Translator(32000, 0).train(), [cuda_peers.ids(32000, batch, length) for _ in range(3)], 1.0
    optimiser = torch.optim.AdamW(net.parameters(), lr=1e-6, fused=True)

    def run():
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = net.loss(*inputs)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return run


def be_peer(threads):
    """Answers the lines of Peer.  A process asked for OpenBLAS alone never loads PyTorch, whose threads would be beside its own."""
    torch, made = None, {"gemm": peer_gemm, "int_mm": peer_int_mm, "attention": peer_attention, "bert": peer_bert, "train": peer_train}
    for line in sys.stdin:
        seconds, name, dtype, *sizes = json.loads(line)
        if name == "openblas":
            print(json.dumps(timed(peer_openblas(*sizes), seconds)), flush=True)
            continue
        if not torch:
            import torch

            torch.set_num_threads(threads)
        run = made[name](torch, getattr(torch, {"f32": "float32", "bf16": "bfloat16", "int8": "int8"}[dtype]), *sizes)
        if name == "train" or (name == "attention" and sizes[-1]):
            print(json.dumps(timed(run, seconds)), flush=True)
            continue
        with torch.inference_mode():
            print(json.dumps(timed(run, seconds)), flush=True)


def rounds_of(args, *programs):
    """Medians of seconds, in turns."""
    got = [[run() for run in programs] for _ in range(args.rounds)]
    return [statistics.median(x) for x in zip(*got)]


def seconds_of(lines):
    return lines[0]["median_s"] if lines else float("nan")


def gemm_rows(args, peers):
    blas = {t: Peer(args.pin, t) for t in args.threads} if "f32" in args.dtypes else {}
    for dtype in args.dtypes:
        second = {"f32": "openblas", "int8": "int_mm"}.get(dtype)
        for m, n, k in ((2048, 2048, 2048), (512, 3072, 768), (512, 768, 3072), (256, 3072, 768), (128, 768, 768)):
            for t in args.threads:
                programs = [lambda: seconds_of(fovea(args, "gemm", "--m", m, "--n", n, "--k", k, "--dtype", dtype, "-t", t)),
                            lambda: peers[t](args.seconds, "gemm", dtype, m, n, k)]
                if second:
                    programs.append(lambda: (blas if second == "openblas" else peers)[t](args.seconds, second, dtype, m, n, k))
                a, *theirs = rounds_of(args, *programs)
                rates = [f"{2e-9 * m * n * k / x:.0f}" for x in (a, *theirs)]
                yield f"gemm {dtype} {m}×{n}×{k}", t, rates[0], f", {second} ".join(rates[1:]), min(theirs) / a
    for peer in blas.values():
        peer.close()


def one_rows(args, peers):
    for m in args.few:
        for t in args.threads:
            a, b = rounds_of(args, lambda: seconds_of(fovea(args, "gemm", "--m", m, "--n", 3072, "--k", 768, "-t", t)),
                             lambda: peers[t](args.seconds, "gemm", "f32", m, 3072, 768))
            yield f"{m} row(s) × (3072,768), unpacked f32, ms", t, f"{1e3 * a:.3f}", f"{1e3 * b:.3f}", b / a


def bert_rows(args, peers):
    folder = tempfile.mkdtemp()
    model = saved_model(folder, "bert-base")
    for dtype in args.dtypes:
        for batch in args.batch:
            for t in args.threads:
                how = ["--weights", "int8"] if dtype == "int8" else ["--dtype", dtype]
                a, b = rounds_of(args, lambda: seconds_of(fovea(args, "forward", *model, "--batch", batch, "--len", 128, *how, "-t", t)),
                                 lambda: peers[t](args.seconds, "bert", dtype, batch, 128) if dtype != "int8" else float("nan"))
                yield f"BERT-base {dtype} B {batch}, sentences/s", t, f"{batch / a:.1f}", f"{batch / b:.1f}", b / a
    shutil.rmtree(folder)


def attention_rows(args, peers):
    for length in (512, 2048):
        for causal in (False, True):
            for backward in (False, True):
                for t in args.threads:
                    flags = ["--causal"] * causal + ["--backward"] * backward
                    a, b = rounds_of(args, lambda: seconds_of(fovea(args, "attention", "--len", length, "-t", t, *flags)),
                                     lambda: peers[t](args.seconds, "attention", "f32", length, causal, backward))
                    what = f"attention f32 T {length} {'causal' if causal else 'full'}{', gradients' if backward else ''}, ms"
                    yield what, t, f"{1e3 * a:.2f}", f"{1e3 * b:.2f}", b / a


def train_rows(args, peers):
    for name, config, batch, length in (("gpt2", "gpt2-124m-plain", 4, 256), ("translator", "marian-base", 32, 64)):
        for dtype in args.dtypes:
            for t in args.threads:
                a, b = rounds_of(args, lambda: seconds_of(fovea(args, "train", "--config", os.path.join(CONFIGS, config + ".json"), "--batch",
                                                                batch, "--len", length, "--dtype", dtype, "-t", t)),
                                 lambda: peers[t](args.seconds, "train", dtype, name, batch, length))
                yield f"training {config} {dtype}, {batch} × {length}, ms an update", t, f"{1e3 * a:.0f}", f"{1e3 * b:.0f}", b / a


def decode_rows(args, _):
    for name in args.models:
        folder = tempfile.mkdtemp()
        model = saved_model(folder, name)
        for weights in args.weights:
            last = None
            for t in args.threads:
                got = []
                for _ in range(args.rounds):
                    lines = fovea(args, "decode", *model, "--dtype", weights, "-t", t, "--len", 16, "--new", args.new)
                    got.append(next((x["tokens_per_s"] for x in lines or [] if "tokens_per_s" in x), float("nan")))
                rate = statistics.median(got)
                yield f"{name} decode {weights}, tokens/s", t, f"{rate:.0f}", "", rate / last if last else 1.0
                last = rate
        shutil.rmtree(folder)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rows", nargs="+", default=["gemm", "one", "bert", "attention", "decode"])
    p.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    p.add_argument("--dtypes", nargs="+", default=["f32", "bf16"])
    p.add_argument("--weights", nargs="+", default=["f32", "bf16", "q8", "q4"])
    p.add_argument("--models", nargs="+", default=["gpt2-124m"])
    p.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    p.add_argument("--few", type=int, nargs="+", default=[1])
    p.add_argument("--new", type=int, default=64)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=float, default=0.3)
    p.add_argument("--most", type=float, default=1e9)
    p.add_argument("--busy", action="store_true")
    one_per_core.add_option(p)
    p.add_argument("--peer", type=int, help="be PyTorch, what this script starts")
    args = p.parse_args()
    if args.peer:
        return be_peer(args.peer)
    args.pin = one_per_core.cores_of_option(args.pin)
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if args.busy else None
    start, rows = time.perf_counter(), {"gemm": gemm_rows, "one": one_rows, "bert": bert_rows, "attention": attention_rows,
                                        "decode": decode_rows, "train": train_rows}
    peers = {t: Peer(args.pin, t) for t in args.threads} if set(args.rows) - {"decode"} else {}
    print("| what | threads | fovea | PyTorch | ratio (decode: to the row before) |\n| --- | --- | --- | --- | --- |")
    for name in args.rows:
        for what, t, ours, theirs, ratio in rows[name](args, peers):
            print(f"| {what} | {t} | {ours} | {theirs} | {ratio:.2f} |", flush=True)
            if time.perf_counter() - start > args.most:
                break
    for peer in peers.values():
        peer.close()
    if busy:
        busy.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
