#!/usr/bin/env python3
"""Serving on the CPU beside llama-server: one model, one load tool, in turns on this machine.

    bench/serve_peers.py model DIR                       writes DIR/hf and DIR/model.gguf, the same random weights
    bench/serve_peers.py run DIR --llama-server PATH     measures both servers and prints a table

The model is bench/configs/llama-110m.json.  Its products are q8 in both: blocks of 32 weights with one scale each, made
from the same f32 weights.  Vectors and the load are the same too: `fovea bench serve` sends both servers the same prompts
of random ids and asks for as many tokens of each.  Servers take turns, each round starts both afresh, and the figures are
medians over the rounds, so that what else the machine does hits both alike.

Needs numpy and gguf from PyPI (model), and llama-server built from llama.cpp (run).  The library needs none of this.
"""
import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOVEA = os.environ.get("FOVEA", os.path.join(ROOT, "build", "fovea"))
CONFIG = os.path.join(ROOT, "bench", "configs", "llama-110m.json")


# ---- the model ----


def vocabulary(n):
    """Pieces of a byte-less vocabulary: three special ones, then words that all have text."""
    return ["<unk>", "<s>", "</s>"] + [f"\u2581w{i}" for i in range(3, n)]


def weights(c):
    """(name in the checkpoint, name in the GGUF file, matrix) of every parameter."""
    import numpy

    rng = numpy.random.default_rng(1)
    width, inner, vocab = c["hidden_size"], c["intermediate_size"], c["vocab_size"]

    def matrix(rows, columns):
        return (0.02 * rng.standard_normal((rows, columns))).astype(numpy.float32)

    one = numpy.ones(width, numpy.float32)
    yield "model.embed_tokens.weight", "token_embd.weight", matrix(vocab, width)
    for i in range(c["num_hidden_layers"]):
        at, to = f"model.layers.{i}.", f"blk.{i}."
        yield at + "input_layernorm.weight", to + "attn_norm.weight", one
        for name, short in (("q", "attn_q"), ("k", "attn_k"), ("v", "attn_v"), ("o", "attn_output")):
            yield f"{at}self_attn.{name}_proj.weight", f"{to}{short}.weight", matrix(width, width)
        yield at + "post_attention_layernorm.weight", to + "ffn_norm.weight", one
        yield at + "mlp.gate_proj.weight", to + "ffn_gate.weight", matrix(inner, width)
        yield at + "mlp.up_proj.weight", to + "ffn_up.weight", matrix(inner, width)
        yield at + "mlp.down_proj.weight", to + "ffn_down.weight", matrix(width, inner)
    yield "model.norm.weight", "output_norm.weight", one


def interleaved(x, heads):
    """llama.cpp rotates neighbouring pairs of a head, the checkpoint its two halves: rows change places."""
    rows, columns = x.shape
    return x.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def write_safetensors(path, tensors):
    header, at = {}, 0
    for name, x in tensors:
        header[name] = {"dtype": "F32", "shape": list(x.shape), "data_offsets": [at, at + x.nbytes]}
        at += x.nbytes
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for _, x in tensors:
            f.write(x.tobytes())


def write_checkpoint(folder, c, all_weights):
    os.makedirs(folder, exist_ok=True)
    words = vocabulary(c["vocab_size"])
    special = [{"id": i, "content": words[i], "special": True, "single_word": False, "lstrip": False, "rstrip": False,
                "normalized": False} for i in range(3)]
    blank = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    tokenizer = {"version": "1.0", "added_tokens": special, "normalizer": None, "pre_tokenizer": blank, "decoder": blank,
                 "post_processor": None,
                 "model": {"type": "BPE", "unk_token": "<unk>", "vocab": {w: i for i, w in enumerate(words)}, "merges": []}}
    with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as f:
        json.dump(tokenizer, f, ensure_ascii=False)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as f:
        json.dump({**c, "bos_token_id": 1, "eos_token_id": 2}, f)
    write_safetensors(os.path.join(folder, "model.safetensors"), [(name, x) for name, _, x in all_weights])


def write_gguf(path, c, all_weights):
    import gguf

    w = gguf.GGUFWriter(path, "llama")
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_rope_dimension_count(c["hidden_size"] // c["num_attention_heads"])
    w.add_vocab_size(c["vocab_size"])
    w.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    words = vocabulary(c["vocab_size"])
    kind = [gguf.TokenType.UNKNOWN] + 2 * [gguf.TokenType.CONTROL] + (len(words) - 3) * [gguf.TokenType.NORMAL]
    w.add_tokenizer_model("llama")
    w.add_token_list(words)
    w.add_token_scores([0.0] * len(words))
    w.add_token_types(kind)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_unk_token_id(0)
    q8 = gguf.GGMLQuantizationType.Q8_0
    for _, name, x in all_weights:
        if "attn_q." in name or "attn_k." in name:
            x = interleaved(x, c["num_attention_heads"])
        if x.ndim == 1:
            w.add_tensor(name, x)
        else:
            w.add_tensor(name, gguf.quants.quantize(x, q8), raw_dtype=q8)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def make_model(folder):
    with open(CONFIG, encoding="utf-8") as f:
        c = json.load(f)
    all_weights = list(weights(c))
    write_checkpoint(os.path.join(folder, "hf"), c, all_weights)
    write_gguf(os.path.join(folder, "model.gguf"), c, all_weights)


# ---- the servers ----


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """A server that runs while the block does."""

    def __init__(self, command, ready):
        self.port = free_port()
        self.command = [*map(str, command), "--port", str(self.port)]
        self.ready = ready

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{self.ready}", timeout=2) as answer:
                    if answer.status == 200:
                        return self
            except OSError:
                time.sleep(0.1)
        raise SystemExit(f"{' '.join(self.command)}: it does not become ready")

    def cpu_seconds(self):
        with open(f"/proc/{self.process.pid}/stat", encoding="ascii") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()


def load(server, o):
    command = [FOVEA, "bench", "serve", "--port", server.port, "--clients", o.clients, "--requests", o.requests, "--len",
               o.len, "--new", o.new, "--vocab", 30000, "--json"]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"bench serve: {done.stderr.strip()}")
    return json.loads(done.stdout)


def servers(o):
    model = os.path.join(o.dir, "hf")
    fovea = [FOVEA, "serve", "-m", model, "--dtype", "q8", "--threads", o.threads, "--batch", o.clients, "--quiet"]
    llama = [o.llama_server, "-m", os.path.join(o.dir, "model.gguf"), "-t", o.threads, "-tb", o.threads, "-np", o.clients,
             "-c", 1024 * o.clients, "--ignore-eos", "--cache-ram", "0", "--no-webui", "--log-disable"]
    return {"fovea serve": Server(fovea, "/readyz"), "llama-server": Server(llama, "/health")}


def run(o):
    figures = {name: [] for name in servers(o)}
    for i in range(o.rounds):
        for name, server in servers(o).items():
            with server:
                load(server, argparse.Namespace(**{**vars(o), "requests": o.clients}))  # warm
                before = server.cpu_seconds()
                figures[name].append(load(server, o))
                figures[name][-1]["cpu_s"] = server.cpu_seconds() - before
                print(f"round {i + 1}, {name}: {figures[name][-1]['tokens_per_s']:.1f} tokens/s, "
                      f"load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    rows = {}
    for name, all_rounds in figures.items():
        def median(get):
            return statistics.median(get(f) for f in all_rounds)
        rows[name] = [median(lambda f: f["tokens_per_s"]), 1e3 * median(lambda f: f["first_token_s"]["p50"]),
                      1e3 * median(lambda f: f["first_token_s"]["p95"]), 1e3 * median(lambda f: f["between_tokens_s"]["p50"]),
                      1e3 * median(lambda f: f["between_tokens_s"]["p95"]), 1e3 * median(lambda f: f["cpu_s"] / f["tokens"])]
    print("| server | tokens/s | first token p50 / p95, ms | between tokens p50 / p95, ms | CPU time of a token, ms |")
    print("| --- | --- | --- | --- | --- |")
    for name, r in rows.items():
        print(f"| {name} | {r[0]:.1f} | {r[1]:.0f} / {r[2]:.0f} | {r[3]:.1f} / {r[4]:.1f} | {r[5]:.2f} |")
    ours, peer = rows["fovea serve"], rows["llama-server"]
    print(f"| ratio | {ours[0] / peer[0]:.2f} | {ours[1] / peer[1]:.2f} / {ours[2] / peer[2]:.2f} | "
          f"{ours[3] / peer[3]:.2f} / {ours[4] / peer[4]:.2f} | {ours[5] / peer[5]:.2f} |")


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sub = p.add_subparsers(dest="what", required=True)
    make = sub.add_parser("model", help="write the model")
    make.add_argument("dir")
    measure = sub.add_parser("run", help="measure both")
    measure.add_argument("dir")
    measure.add_argument("--llama-server", required=True)
    for name, default in (("clients", 8), ("requests", 32), ("len", 64), ("new", 64), ("threads", 2), ("rounds", 3)):
        measure.add_argument(f"--{name}", type=int, default=default)
    o = p.parse_args()
    make_model(o.dir) if o.what == "model" else run(o)


if __name__ == "__main__":
    main()
