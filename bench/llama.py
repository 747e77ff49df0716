#!/usr/bin/env python3
"""Decoding and reading prompts beside llama.cpp, in turns: the same shapes, random weights, batch 1.

    bench/llama.py --llama-bench PATH [--models gpt2-124m llama-110m] [--weights q8 q4 bf16 f32] [--threads 2] [--rounds 5] [--len 256] [--new 48] [--pin]

Needs build/fovea (make), numpy, and llama-bench built from llama.cpp.  A figure is the median over rounds.  Weights of llama.cpp are
Q8_0 and Q4_0, the token table among them; its files have no vocabulary, since llama-bench draws ids.
"""
import argparse
import json
import os
import statistics
import struct
import subprocess
import sys
import tempfile

import numpy as np

import cores
import one_per_core

TYPES = {"f32": (0, 1, 4), "bf16": (30, 1, 2), "q4": (2, 32, 18), "q8": (8, 32, 34)}  # GGUF's number, values and bytes of a block


def text(x):
    return struct.pack("<Q", len(x)) + x.encode()


def keys(c, gpt2):
    """The metadata of a GGUF file."""
    arch = "gpt2" if gpt2 else "llama"
    heads = c["n_head" if gpt2 else "num_attention_heads"]
    width = c["n_embd" if gpt2 else "hidden_size"]
    whole = {"context_length": c["n_positions" if gpt2 else "max_position_embeddings"], "embedding_length": width,
             "block_count": c["n_layer" if gpt2 else "num_hidden_layers"],
             "feed_forward_length": 4 * width if gpt2 else c["intermediate_size"], "attention.head_count": heads,
             "attention.head_count_kv": heads if gpt2 else c["num_key_value_heads"], "vocab_size": c["vocab_size"]}
    if not gpt2:
        whole["rope.dimension_count"] = width // heads
    pairs = [text(k) + struct.pack("<I", 8) + text(v) for k, v in (("general.architecture", arch), ("tokenizer.ggml.model", "no_vocab"))]
    pairs += [text(f"{arch}.{k}") + struct.pack("<II", 4, v) for k, v in whole.items()]
    pairs += [text(f"{arch}.attention.{k}") + struct.pack("<If", 6, 1e-5) for k in ("layer_norm_epsilon", "layer_norm_rms_epsilon")]
    return pairs


def tensors(c, gpt2, kind):
    """(name, shape with the fastest axis first, type)"""
    d = c["n_embd" if gpt2 else "hidden_size"]
    f = 4 * d if gpt2 else c["intermediate_size"]
    kv = d if gpt2 else d // c["num_attention_heads"] * c["num_key_value_heads"]
    yield "token_embd.weight", (d, c["vocab_size"]), kind
    if gpt2:
        yield "position_embd.weight", (d, c["n_positions"]), "f32"
    products = [("attn_qkv", 3 * d, d), ("attn_output", d, d), ("ffn_up", f, d), ("ffn_down", d, f)]
    if not gpt2:
        products = [("attn_q", d, d), ("attn_k", kv, d), ("attn_v", kv, d)] + products[1:] + [("ffn_gate", f, d)]
    for i in range(c["n_layer" if gpt2 else "num_hidden_layers"]):
        for name, rows, cols in products:
            yield f"blk.{i}.{name}.weight", (cols, rows), kind
            if gpt2:
                yield f"blk.{i}.{name}.bias", (rows,), "f32"
        for name in ("attn_norm", "ffn_norm"):
            for part in ("weight", "bias") if gpt2 else ("weight",):
                yield f"blk.{i}.{name}.{part}", (d,), "f32"
    for part in ("weight", "bias") if gpt2 else ("weight",):
        yield f"output_norm.{part}", (d,), "f32"


def drawn(rng, n, kind):
    """n random values of a type, a short stretch repeated."""
    if kind in ("f32", "bf16"):
        x = rng.standard_normal(min(n, 1 << 16)).astype(np.float32) * 0.02
        return np.resize(x if kind == "f32" else (x.view(np.uint32) >> 16).astype(np.uint16), n).tobytes()
    _, each, size = TYPES[kind]
    b = rng.integers(0, 256, (1 << 12, size), dtype=np.uint8)
    b[:, :2] = np.frombuffer(np.float16(0.02 / (127 if kind == "q8" else 8)).tobytes(), np.uint8)
    return np.resize(b, (n // each, size)).tobytes()


def write_gguf(path, config, kind):
    with open(config, encoding="utf-8") as f:
        c = json.load(f)
    gpt2, rng, at = c["model_type"] == "gpt2", np.random.default_rng(0), 0
    pairs, all_, infos = keys(c, gpt2), list(tensors(c, gpt2, kind)), b""
    for name, shape, t in all_:
        number, each, size = TYPES[t]
        infos += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *shape) + struct.pack("<IQ", number, at)
        at += -(-int(np.prod(shape)) // each * size // 32) * 32
    with open(path, "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, len(all_), len(pairs)) + b"".join(pairs) + infos)
        f.write(b"\0" * (-f.tell() % 32))
        for _, shape, t in all_:
            x = drawn(rng, int(np.prod(shape)), t)
            f.write(x + b"\0" * (-len(x) % 32))


def llama(o, gguf, threads):
    """Tokens a second of decoding and of the prompt."""
    command = [o.llama_bench, "-m", gguf, "-t", threads, "-p", o.len, "-n", o.new, "-r", 1, "-o", "json"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=True,
                          preexec_fn=one_per_core.bind(o.pin, threads))
    rates = {"prompt" if x["n_gen"] == 0 else "decode": x["avg_ts"] for x in json.loads(done.stdout)}
    return rates["decode"], rates["prompt"]


def ours(o, model, weights, threads):
    lines = cores.fovea(o, "decode", *model, "--dtype", weights, "-t", threads, "--len", o.len, "--new", o.new)
    return lines[0]["tokens_per_s"], lines[0]["prompt_tokens_per_s"]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--llama-bench", required=True)
    p.add_argument("--models", nargs="+", default=["gpt2-124m", "llama-110m"])
    p.add_argument("--weights", nargs="+", default=["q8", "q4", "bf16", "f32"])
    p.add_argument("--threads", type=int, nargs="+", default=[2])
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=0.2)
    p.add_argument("--len", type=int, default=256)
    p.add_argument("--new", type=int, default=48)
    one_per_core.add_option(p)
    o = p.parse_args()
    o.pin = one_per_core.cores_of_option(o.pin)
    print("| model | weights | threads | decode | llama.cpp | ratio | prompt | llama.cpp | ratio |\n" + "| --- " * 9 + "|")
    for name in o.models:
        config = os.path.join(cores.CONFIGS, name + ".json")
        for weights in o.weights:
            with tempfile.TemporaryDirectory() as folder:
                model = cores.saved_model(folder, name)
                gguf = os.path.join(folder, "model.gguf")
                write_gguf(gguf, config, weights)
                for t in o.threads:
                    rounds = [(*ours(o, model, weights, t), *llama(o, gguf, t)) for _ in range(o.rounds)]
                    a, ap, b, bp = (statistics.median(x) for x in zip(*rounds))
                    print(f"| {name} | {weights} | {t} | {a:.0f} | {b:.0f} | {a / b:.2f} | {ap:.0f} | {bp:.0f} | {ap / bp:.2f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
