#!/usr/bin/env python3
"""The engine's figures of docs/benchmarks.md: fovea beside its peers, alternately, on this machine.

    bench/engine.py [--threads 1 2] [--only machine gemm small low attention memory rows] [--rounds 3] > table.md

Needs build/fovea (make), the peer program (cc -O2 bench/peer_blas.c -o build/peer_blas -ldl), OpenBLAS and BLIS
from Debian and PyTorch from PyPI.  Every figure is the median over rounds of a program's own median; peers take turns
within a round, so that all see the same machine.  The library itself never needs any of this.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOVEA = os.environ.get("FOVEA", os.path.join(ROOT, "build", "fovea"))
BLAS = os.environ.get("PEER_BLAS", os.path.join(ROOT, "build", "peer_blas"))
SECONDS = os.environ.get("SECONDS", "0.4")  # that a figure is repeated for


def lines_of(command):
    """JSON lines a program prints; an empty list (and a word on stderr) where it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(f"{' '.join(command)}: {done.stderr.strip()}", file=sys.stderr)
        return []
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def fovea(threads, *args):
    rows = lines_of([FOVEA, "bench", *map(str, args), "--threads", str(threads), "--seconds", SECONDS, "--json"])
    return rows[0]["median_s"] if rows else float("nan")


def blas(library, threads, m, n, k):
    rows = lines_of([BLAS, library, str(m), str(n), str(k), str(threads)])
    return rows[0]["median_s"] if rows else float("nan")


class Torch:
    """Peers that live in PyTorch; imported only when asked for."""

    def __init__(self, threads):
        import torch

        self.torch = torch
        torch.set_num_threads(threads)

    def time(self, fn, budget=0.6):
        fn()
        fn()
        taken, start = [], time.perf_counter()
        while len(taken) < 5 or (time.perf_counter() - start < budget and len(taken) < 400):
            t = time.perf_counter()
            fn()
            taken.append(time.perf_counter() - t)
        return statistics.median(taken)

    def attention(self, length, causal, backward):
        torch, f = self.torch, self.torch.nn.functional
        q, k, v = (torch.randn(4, 8, length, 64, requires_grad=backward) for _ in range(3))
        dy = torch.randn(4, 8, length, 64)
        if backward:
            return self.time(lambda: torch.autograd.grad(f.scaled_dot_product_attention(q, k, v, is_causal=causal), (q, k, v), dy), 1.5)
        with torch.no_grad():
            return self.time(lambda: f.scaled_dot_product_attention(q, k, v, is_causal=causal))

    def row_op(self, name, rows, cols):
        torch, f = self.torch, self.torch.nn.functional
        x = torch.randn(rows, cols)
        with torch.no_grad():
            if name == "softmax":
                return self.time(lambda: torch.softmax(x, -1))
            if name == "layernorm":
                g, b = torch.ones(cols), torch.zeros(cols)
                return self.time(lambda: f.layer_norm(x, (cols,), g, b))
            if name == "gelu":
                return self.time(lambda: f.gelu(x))
            if name == "cross-entropy":
                labels = torch.randint(0, cols, (rows,))
                return self.time(lambda: f.cross_entropy(x, labels, reduction="none"))
        p = torch.nn.Parameter(x.flatten())
        p.grad = torch.randn_like(p)
        optimiser = torch.optim.AdamW([p], lr=1e-4, fused=True)
        return self.time(optimiser.step)


def rounds(n, *functions):
    """The median of each function over n rounds, taken in turn."""
    seen = [[] for _ in functions]
    for _ in range(n):
        for out, fn in zip(seen, functions):
            out.append(fn())
    return [statistics.median(s) for s in seen]


def table(title, head, rows):
    print(f"\n### {title}\n\n| " + " | ".join(head) + " |\n|" + " --- |" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    sys.stdout.flush()


def gemm(threads, n):
    out = []
    for m, cols, k in ((2048, 2048, 2048), (512, 3072, 768), (128, 768, 768)):
        ours, ob, bl = rounds(n, lambda: fovea(threads, "gemm", "--m", m, "--n", cols, "--k", k),
                              lambda: blas("openblas", threads, m, cols, k), lambda: blas("blis", threads, m, cols, k))
        flop = 2e-9 * m * cols * k
        out.append([f"{m}×{cols}×{k}", str(threads), *(f"{flop / s:.1f}" for s in (ours, ob, bl)), f"{min(ob, bl) / ours:.2f}"])
    table("Matrix product, f32, GFLOP/s", ["m×n×k", "threads", "fovea", "OpenBLAS", "BLIS", "ratio to the better"], out)


def small(threads, n):
    out = []
    for cols, k in ((3072, 768), (768, 3072), (50257, 768)):
        for m in (1, 2, 4, 8, 16):
            ours, ob = rounds(n, lambda: fovea(threads, "gemm", "--m", m, "--n", cols, "--k", k, "--packed"),
                              lambda: blas("openblas", threads, m, cols, k))
            gigabytes = 4e-9 * cols * k
            out.append([f"{m}×{cols}×{k}", str(threads), f"{gigabytes / ours:.1f}", f"{gigabytes / ob:.1f}", f"{ob / ours:.2f}"])
    table("Few rows against a packed weight, f32, GB/s of weight read", ["m×n×k", "threads", "fovea", "OpenBLAS", "ratio"], out)


def low(threads, n):
    out = []
    for m, cols, k in ((512, 3072, 768), (128, 768, 768), (1, 50257, 768)):
        flags = ["--m", m, "--n", cols, "--k", k, "--packed"]
        dtypes = ("f32", "bf16", "q8", "q4", "int8")
        seconds = rounds(n, *(lambda d=d: fovea(threads, "gemm", *flags, "--dtype", d) for d in dtypes))
        flop = 2e-9 * m * cols * k
        out.append([f"{m}×{cols}×{k}", str(threads), *(f"{flop / s:.1f}" for s in seconds), *(f"{seconds[0] / s:.2f}" for s in seconds[1:])])
    table("Narrow weights, Gop/s", ["m×n×k", "threads", "f32", "bf16", "q8", "q4", "int8", "bf16/f32", "q8/f32", "q4/f32", "int8/f32"], out)


def attention(threads, n):
    torch, out, ours_at = Torch(threads), [], {}
    for backward in (False, True):
        for length in (512, 2048):
            for causal in (False, True):
                flags = ["--batch", 4, "--heads", 8, "--len", length, "--width", 64]
                flags += ["--causal"] * causal + ["--backward"] * backward
                ours, peer = rounds(n, lambda: fovea(threads, "attention", *flags), lambda: torch.attention(length, causal, backward))
                flop = 4e-9 * 4 * 8 * length * length * 64 * (0.5 if causal else 1) * (3.5 if backward else 1)
                ours_at[backward, length, causal] = ours
                out.append([f"T {length} {'causal' if causal else 'full'}", "forward + backward" if backward else "forward", str(threads),
                            f"{flop / ours:.1f}", f"{flop / peer:.1f}", f"{peer / ours:.2f}"])
    table(f"Attention, B 4, H 8, W 64, f32, GFLOP/s (PyTorch {torch.torch.__version__})",
          ["shape", "pass", "threads", "fovea", "PyTorch", "ratio"], out)
    print(f"\nCausal over full, T 2048, {threads} threads: {ours_at[False, 2048, True] / ours_at[False, 2048, False]:.2f}")


def machine(threads, n):
    del n
    for row in lines_of([FOVEA, "bench", "machine", "--threads", str(threads), "--seconds", SECONDS, "--json"]):
        rate = f"{row['gflops']:.1f} GFLOP/s" if "gflops" in row else f"{row['gb_per_s']:.1f} GB/s"
        print(f"- {row['name']}, {threads} threads: {rate}")


def memory(threads, n):
    del n
    for backward in ([], ["--backward"]):
        rows = lines_of([FOVEA, "bench", "attention", "--batch", "1", "--heads", "8", "--len", "16384", "--width", "64", *backward,
                         "--threads", str(threads), "--json"])
        if rows:
            print(f"\nT 16384 {' '.join(backward)}: {json.dumps(rows[0])}")


def row_ops(threads, n):
    torch, out = Torch(threads), []
    for name, rows, cols in (("softmax", 4096, 1024), ("layernorm", 4096, 768), ("gelu", 4096, 3072), ("cross-entropy", 1024, 50257),
                             ("adamw", 121094, 1024)):
        ours, peer = rounds(n, lambda: fovea(threads, name, "--rows", rows, "--cols", cols), lambda: torch.row_op(name, rows, cols))
        out.append([name, f"{rows}×{cols}", str(threads), f"{1e3 * ours:.2f}", f"{1e3 * peer:.2f}", f"{peer / ours:.2f}"])
    table("Rows and vectors, f32, milliseconds", ["op", "size", "threads", "fovea", "PyTorch", "ratio"], out)


PARTS = {"machine": machine, "gemm": gemm, "small": small, "low": low, "attention": attention, "memory": memory, "rows": row_ops}


def main():
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    args.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    args.add_argument("--rounds", type=int, default=3)
    got = args.parse_args()
    for part in got.only:
        for threads in got.threads:
            PARTS[part](threads, got.rounds)


if __name__ == "__main__":
    main()
