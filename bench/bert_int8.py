#!/usr/bin/env python3
"""BERT-base with int8 weights beside ONNX Runtime and OpenVINO, in turns: the same sizes, random weights, 128 tokens.

    bench/bert_int8.py [--peers onnxruntime openvino] [--threads 16 2] [--batch 1 8 32] [--rounds 5] [--seconds 0.1] [--pin]
                       [--dtype f32] [--openvino-precision f32]

Needs build/fovea (make), numpy and the peers: onnxruntime, which is the only one without --peers, and openvino.  ONNX Runtime's graph is
the one that its tools make of BERT by fusing and by dynamic quantisation: QAttention, DynamicQuantizeMatMul, SkipLayerNormalization,
Gelu; it is written here field by field, so that neither onnx nor transformers is needed.  OpenVINO's is built in memory, as its tool (NNCF,
for transformers) quantises BERT after training: int8 weights with a scale for each output, FakeQuantize in front of every product with a
weight; ScaledDotProductAttention and all the rest are in floats, by --openvino-precision in f32 or bf16 (its own choice where there is
AMX).  Where its products with weights are not int8, a line on stderr says what they are.

A figure is the median over rounds of a program's own median, in sentences a second; the ratio is to the faster peer.
"""
import argparse
import collections
import os
import shutil
import statistics
import struct
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


def open_onnxruntime(path, threads, batch):
    import onnxruntime as ort

    how = ort.SessionOptions()
    how.intra_op_num_threads = threads
    session = ort.InferenceSession(path, how, providers=["CPUExecutionProvider"])
    ids = np.random.default_rng(1).integers(0, VOCAB, (batch, LENGTH))
    return lambda: session.run(None, {"ids": ids})


# ---- OpenVINO: BERT as its tool quantises it after training ----

NORMED, ATTENDED, ACTIVATED = (-5.4, 5.8), (-0.42, 0.45), (-0.17, 2.2)  # ranges of what is quantised, for the weights drawn below


class OpenvinoGraph:
    def __init__(self, op):
        self.op, self.rng = op, np.random.default_rng(0)

    def floats(self, *shape, mean=0.0):
        return self.op.constant((mean + self.rng.standard_normal(shape) * 0.02).astype(np.float32))

    def quantize(self, x, low, high):
        """One of 256 levels for the whole tensor; zero is one of them."""
        step = (high - low) / 255
        low = round(low / step) * step
        low, high = np.float32(low), np.float32(low + 255 * step)
        return self.op.fake_quantize(x, low, high, low, high, 256)

    def linear(self, x, n, k):
        w = self.op.convert(self.op.constant(self.rng.integers(-127, 128, (n, k), dtype=np.int8)), "f32")
        scale = self.op.constant((self.rng.uniform(0.8, 1.2, (n, 1)) * 0.02 / 127).astype(np.float32))
        return self.op.add(self.op.matmul(x, self.op.multiply(w, scale), False, True), self.floats(1, 1, n))

    def norm(self, x):
        x = self.op.mvn(x, [-1], True, 1e-12, "inside_sqrt")
        return self.op.add(self.op.multiply(x, self.floats(1, 1, D, mean=1.0)), self.floats(1, 1, D))

    def heads(self, x):
        return self.op.transpose(self.op.reshape(x, [0, 0, HEADS, D // HEADS], True), [0, 2, 1, 3])

    def layer(self, x):
        y = self.quantize(x, *NORMED)
        q, k, v = (self.heads(self.linear(y, D, D)) for _ in range(3))
        y = self.op.transpose(self.op.scaled_dot_product_attention(q, k, v), [0, 2, 1, 3])
        y = self.quantize(self.op.reshape(y, [0, 0, D], True), *ATTENDED)
        x = self.norm(self.op.add(self.linear(y, D, D), x))
        h = self.op.gelu(self.linear(self.quantize(x, *NORMED), F, D), "erf")
        return self.norm(self.op.add(self.linear(self.quantize(h, *ACTIVATED), D, F), x))


def openvino_bert(batch):
    import openvino
    import openvino.opset13 as op

    g, ids = OpenvinoGraph(op), op.parameter([batch, LENGTH], np.int64, "ids")
    x = g.norm(op.add(op.gather(g.floats(VOCAB, D), ids, 0), g.floats(1, LENGTH, D)))
    for _ in range(LAYERS):
        x = g.layer(x)
    y = op.tanh(g.linear(g.quantize(op.gather(x, [0], 1), *NORMED), D, D))
    return openvino.Model([op.reshape(y, [0, D], True)], [ids], "bert")


def warn_unless_int8(compiled):
    found = collections.Counter()
    for layer in compiled.get_runtime_model().get_ops():
        info = layer.get_rt_info()
        if info["layerType"].astype(str) == "FullyConnected":
            found[info["runtimePrecision"].astype(str).lower()] += 1
    if found["i8"] + found["u8"] < 6 * LAYERS + 1:
        kinds = ", ".join(f"{n} in {kind}" for kind, n in found.items())
        print(f"OpenVINO: not all of {6 * LAYERS + 1} products with weights are int8: {kinds or 'none found'}", file=sys.stderr)


def open_openvino(precision, threads, batch):
    import openvino

    compiled = openvino.Core().compile_model(openvino_bert(batch), "CPU", {
        "PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": precision})
    warn_unless_int8(compiled)
    request, ids = compiled.create_infer_request(), np.random.default_rng(1).integers(0, VOCAB, (batch, LENGTH))
    return lambda: request.infer([ids])


PEERS = {"onnxruntime": ("ONNX Runtime", open_onnxruntime), "openvino": ("OpenVINO", open_openvino)}


def be_peer(name, how, threads, batch, seconds):
    run = PEERS[name][1](how, int(threads), int(batch))
    for _ in sys.stdin:
        print(statistics.median(times(run, float(seconds))), flush=True)


class Peer(cores.PeerProcess):
    """ONNX Runtime (how: the model's file) or OpenVINO (how: the precision) in a process of its own, its model compiled."""

    def __init__(self, pin, name, how, threads, batch, seconds):
        super().__init__([sys.executable, os.path.abspath(__file__), "--peer", name, how, threads, batch, seconds],
                         preexec_fn=one_per_core.bind(pin, threads))

    def __call__(self):
        return self.ask("go")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--peers", nargs="+", choices=PEERS, default=["onnxruntime"])
    p.add_argument("--threads", type=int, nargs="+", default=[16, 2])
    p.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=0.1)
    p.add_argument("--dtype", choices=["f32", "bf16"], default="f32", help="of fovea's activations")
    p.add_argument("--openvino-precision", choices=["f32", "bf16"], default="f32", help="of what OpenVINO does not compute in int8")
    p.add_argument("--peer", nargs=5, help="be a peer, what this script starts")
    one_per_core.add_option(p)
    o = p.parse_args()
    if o.peer:
        return be_peer(*o.peer)
    o.pin = one_per_core.cores_of_option(o.pin)
    folder = tempfile.mkdtemp()
    model = cores.saved_model(folder, "bert-base")
    print(f"| BERT-base int8, sentences/s | threads | fovea | {' | '.join(PEERS[x][0] for x in o.peers)} | ratio |")
    print("| --- " * (4 + len(o.peers)) + "|")
    for batch in o.batch:
        how = {"onnxruntime": os.path.join(folder, f"{batch}.onnx"), "openvino": o.openvino_precision}
        if "onnxruntime" in o.peers:
            write_bert(how["onnxruntime"], batch)
        for t in o.threads:
            peers = [Peer(o.pin, x, how[x], t, batch, o.seconds) for x in o.peers]
            for peer in peers:
                peer()
            a, *b = cores.rounds_of(o, lambda: cores.seconds_of(cores.fovea(o, "forward", *model, "--batch", batch, "--len", LENGTH,
                                                                            "--weights", "int8", "--dtype", o.dtype, "-t", t)), *peers)
            for peer in peers:
                peer.close()
            print(f"| B {batch} | {t} | {' | '.join(f'{batch / x:.1f}' for x in (a, *b))} | {np.min(b) / a:.2f} |", flush=True)
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
