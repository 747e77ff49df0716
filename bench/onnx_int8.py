#!/usr/bin/env python3
"""BERT-base with int8 weights beside ONNX Runtime, in turns: the same sizes, random weights, 128 tokens.

    bench/onnx_int8.py [--threads 16 2] [--batch 1 8 32] [--rounds 5] [--seconds 0.1] [--pin]

Needs build/fovea (make), numpy and onnxruntime.  The graph is the one that ONNX Runtime's tools make of BERT by fusing and by dynamic
quantisation: QAttention, DynamicQuantizeMatMul, SkipLayerNormalization, Gelu; it is written here field by field, so that neither
onnx nor transformers is needed.  A figure is the median over rounds of a program's own median, in sentences a second.
"""
import argparse
import os
import shutil
import statistics
import struct
import subprocess
import sys
import tempfile

import numpy as np

import cores
import one_per_core
from timing import times

LAYERS, D, F, HEADS, VOCAB, LENGTH = 12, 768, 3072, 12, 30522, 128
OWN = "com.microsoft"


# ---- a file of ONNX, which is protobuf: fields by their numbers ----

def varint(n):
    out = b""
    while n > 127:
        out, n = out + bytes([n & 127 | 128]), n >> 7
    return out + bytes([n])


def number(field, n):
    return varint(field << 3) + varint(n)


def data(field, x):
    x = x.encode() if isinstance(x, str) else x
    return varint(field << 3 | 2) + varint(len(x)) + x


def tensor(name, x):
    kind = {"float32": 1, "uint8": 2, "int8": 3, "int64": 7}[x.dtype.name]
    return data(5, b"".join(number(1, d) for d in x.shape) + number(2, kind) + data(8, name) + data(9, x.tobytes()))


def attribute(name, x):
    if isinstance(x, float):
        return data(5, data(1, name) + varint(2 << 3 | 5) + struct.pack("<f", x) + number(20, 1))
    return data(5, data(1, name) + number(3, x) + number(20, 2))


def node(op, inputs, outputs, domain="", **attributes):
    return data(1, b"".join(data(1, x) for x in inputs) + b"".join(data(2, x) for x in outputs) + data(4, op) +
                b"".join(attribute(k, v) for k, v in attributes.items()) + data(7, domain))


def value(field, name, kind, shape):
    dims = b"".join(data(1, number(1, d)) for d in shape)
    return data(field, data(1, name) + data(2, data(1, number(1, kind) + data(2, dims))))


class Graph:
    def __init__(self):
        self.rng, self.parts = np.random.default_rng(0), []

    def weights(self, name, *shape):
        self.parts.append(tensor(name, self.rng.integers(-127, 128, shape, dtype=np.int8)))
        self.parts.append(tensor(name + ".scale", np.array(0.02 / 127, np.float32)))
        self.parts.append(tensor(name + ".zero", np.array(0, np.int8)))
        return name

    def floats(self, name, *shape):
        self.parts.append(tensor(name, (self.rng.standard_normal(shape) * 0.02).astype(np.float32)))
        return name

    def op(self, op, inputs, output, domain=OWN, **attributes):
        self.parts.append(node(op, inputs, [output], domain, **attributes))
        return output

    def linear(self, name, x, n, k):
        w, b = self.weights(name, k, n), self.floats(name + ".bias", n)
        return self.op("DynamicQuantizeMatMul", [x, w, w + ".scale", w + ".zero", b], name + ".y")

    def norm(self, name, x, y):
        return self.op("SkipLayerNormalization", [x, y, self.floats(name + ".g", D), self.floats(name + ".b", D)], name, epsilon=1e-12)

    def layer(self, at, x):
        self.parts.append(node("DynamicQuantizeLinear", [x], [at + "q", at + "s", at + "z"]))
        w, b = self.weights(at + "qkv", D, 3 * D), self.floats(at + "qkv.bias", 3 * D)
        y = self.op("QAttention", [at + "q", w, b, at + "s", w + ".scale", "", at + "z", w + ".zero"], at + "a", num_heads=HEADS)
        x = self.norm(at + "n1", self.linear(at + "o", y, D, D), x)
        h = self.op("Gelu", [self.linear(at + "up", x, F, D)], at + "gelu")
        return self.norm(at + "n2", self.linear(at + "down", h, D, F), x)


def write_bert(path, batch):
    g = Graph()
    g.parts.append(tensor("first", np.array(0, np.int64)))
    words = g.op("Gather", [g.floats("words", VOCAB, D), "ids"], "word", "")
    both = g.op("Add", [words, g.floats("positions", 1, LENGTH, D)], "sum", "")
    x = g.op("LayerNormalization", [both, g.floats("g", D), g.floats("b", D)], "embedded", "", axis=2, epsilon=1e-12)
    for i in range(LAYERS):
        x = g.layer(f"{i}.", x)
    y = g.op("Tanh", [g.linear("pooler", g.op("Gather", [x, "first"], "cls", "", axis=1), D, D)], "pooled", "")
    graph = b"".join(g.parts) + data(2, "bert") + value(11, "ids", 7, (batch, LENGTH)) + value(12, y, 1, (batch, D))
    with open(path, "wb") as f:
        f.write(number(1, 8) + data(8, data(1, "") + number(2, 17)) + data(8, data(1, OWN) + number(2, 1)) + data(7, graph))


def be_peer(path, threads, batch, seconds):
    import onnxruntime as ort

    how = ort.SessionOptions()
    how.intra_op_num_threads = threads
    session = ort.InferenceSession(path, how, providers=["CPUExecutionProvider"])
    ids = np.random.default_rng(1).integers(0, VOCAB, (batch, LENGTH))
    for _ in sys.stdin:
        print(statistics.median(times(lambda: session.run(None, {"ids": ids}), seconds)), flush=True)


class Peer:
    """ONNX Runtime in a process of its own, its session open."""

    def __init__(self, pin, path, threads, batch, seconds):
        command = [sys.executable, os.path.abspath(__file__), "--peer", path, threads, batch, seconds]
        self.p = subprocess.Popen(list(map(str, command)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                  preexec_fn=one_per_core.bind(pin, threads))

    def __call__(self):
        print("go", file=self.p.stdin, flush=True)
        return float(self.p.stdout.readline() or "nan")

    def close(self):
        self.p.stdin.close()
        self.p.wait()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--threads", type=int, nargs="+", default=[16, 2])
    p.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=0.1)
    p.add_argument("--peer", nargs=4, help="be ONNX Runtime, what this script starts")
    one_per_core.add_option(p)
    o = p.parse_args()
    if o.peer:
        return be_peer(o.peer[0], int(o.peer[1]), int(o.peer[2]), float(o.peer[3]))
    o.pin = one_per_core.cores_of_option(o.pin)
    folder = tempfile.mkdtemp()
    model = cores.saved_model(folder, "bert-base")
    print("| BERT-base int8, sentences/s | threads | fovea | ONNX Runtime | ratio |\n| --- | --- | --- | --- | --- |")
    for batch in o.batch:
        path = os.path.join(folder, f"{batch}.onnx")
        write_bert(path, batch)
        for t in o.threads:
            peer = Peer(o.pin, path, t, batch, o.seconds)
            peer()
            a, b = cores.rounds_of(o, lambda: cores.seconds_of(cores.fovea(o, "forward", *model, "--batch", batch, "--len", LENGTH,
                                                                           "--weights", "int8", "-t", t)), peer)
            peer.close()
            print(f"| B {batch} | {t} | {batch / a:.1f} | {batch / b:.1f} | {b / a:.2f} |", flush=True)
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
