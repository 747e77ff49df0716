#!/usr/bin/env python3
"""A training step on a GPU: the whole GPT-2 124M, and LoRA of rank 8 beside q, k, v, by fovea; LoRA by PyTorch, compiled (cuda_peers.py lora).

adapters_cuda.py FOVEA TOKENIZER TEXT [--batch 8] [--len 1024] [--updates 80] [--rounds 1] [--device cuda] [--dtype bf16]: tokens a second as the median of the run's log, of ten
updates each, the first two left out; memory as nvidia-smi sees it, less what was used before.  The model has random weights and the tokenizer of TOKENIZER."""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from timing import logged_rate

RECIPE = """[model]
{model}
[data]
objective = causal
train = {text}
context = {len}
[train]
updates = {updates}
batch_tokens = {tokens}
lr = 1e-5
warmup = 0
schedule = constant
dtype = {dtype}
log_every = 10
eval_every = 0
save_every = 0
"""


def wait_for(path):
    while path and not os.path.exists(path):
        time.sleep(0.1)


def used():
    try:
        out = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], stdout=subprocess.PIPE, text=True)
        return int(out.stdout.split()[0])
    except (OSError, IndexError, ValueError):
        return 0


LORA = ["adapter.peft_type=LORA"]
KINDS = (("full", []), ("lora", LORA), ("q4", LORA + ["train.base=q4"]))


class Watch(threading.Thread):
    """The most memory in use while something runs."""

    def __init__(self):
        super().__init__()
        self.before, self.most, self.over = used(), 0, threading.Event()
        self.start()

    def run(self):
        while not self.over.wait(0.2):
            self.most = max(self.most, used())

    def end(self):
        self.over.set()
        self.join()
        return self.most - self.before


def run(a, folder, name, recipe, sets=(), timed=True):
    path, out = os.path.join(folder, name + ".ini"), os.path.join(folder, name)
    with open(path, "w") as f:
        f.write(recipe)
    command = [a.fovea, "train", path, "-o", out, "-q", "--threads", "2", "--device", a.device]
    for s in sets:
        command += ["--set", s]
    watch = Watch()
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    memory = watch.end()
    if done.returncode:
        print(f"{name}: {done.stderr.strip()}", flush=True)
        return 0, 0
    if not timed:
        return 0, memory
    with open(os.path.join(out, "train.jsonl")) as f:
        lines = [j for j in map(json.loads, f) if j["event"] == "train"]
    if len(lines) < 3:
        sys.exit(f"{out}/train.jsonl: at least three reports were expected, there are {len(lines)}")
    return logged_rate(lines[1], lines[-1]), memory


def few_tokens(a, folder, recipe):
    """Memory where parameters weigh more than activations: 4 x 128 tokens, as bench/adapters.py; what a model of nothing takes is the CUDA context."""
    few = recipe.replace(f"context = {a.len}", "context = 128").replace(f"batch_tokens = {a.batch * a.len}", "batch_tokens = 512").replace(
        f"updates = {a.updates}", "updates = 40")
    tiny = "model_type = gpt2\nn_embd = 16\nn_layer = 1\nn_head = 1\n" + f"[tokenizer]\nfrom = {os.path.abspath(a.tokenizer)}"
    context = run(a, folder, "context", few.replace(f"from = {folder}/base/model", tiny), (), False)[1]
    full = 0
    for name, sets in KINDS:
        memory = run(a, folder, name + "-few", few, sets, False)[1]
        full = full or memory - context
        print(f"fovea {name}, 4 x 128 tokens: {memory} MiB, {memory - context} without the CUDA context, "
              f"{(memory - context) / max(full, 1):.2f} of full", flush=True)


def compare(a, folder, recipe, peer):
    """Speeds, fovea's and PyTorch's in turns; then the ratios of their medians."""
    found = {name: [] for name in ("full", "lora", "q4", "PyTorch lora")}
    for number in range(a.rounds):
        for name, sets in KINDS:
            rate, memory = run(a, folder, f"{name}{number}", recipe, sets)
            found[name].append(rate)
            print(f"fovea {name}: {rate:.0f} tokens/s, {memory} MiB", flush=True)
        for _ in range(3 if peer else 0):
            peer.stdin.write("0.5\n")
            peer.stdin.flush()
            found["PyTorch lora"].append(float(peer.stdout.readline()))
        if peer:
            print(f"PyTorch lora, compiled: {found['PyTorch lora'][-1]:.0f} tokens/s", flush=True)
    if peer:
        peer.stdin.close()
        peer.wait()
    middle = {name: statistics.median(rates) for name, rates in found.items() if rates}
    if min(middle.values()) > 0:
        beside = f"; LoRA {middle['lora'] / middle['PyTorch lora']:.2f} x PyTorch" if peer else ""
        print(f"a step of LoRA takes {middle['full'] / middle['lora']:.2f} of the whole model's, above q4 "
              f"{middle['full'] / middle['q4']:.2f}{beside}", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("fovea")
    p.add_argument("tokenizer")
    p.add_argument("text")
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--len", type=int, default=1024)
    p.add_argument("--updates", type=int, default=80)
    p.add_argument("--rounds", type=int, default=1)
    p.add_argument("--device", default="cuda")
    p.add_argument("--dtype", default="bf16")
    p.add_argument("--ready", help="file that is made when PyTorch has compiled")
    p.add_argument("--after", help="file to wait for then, where others use the GPU until it is there")
    p.add_argument("--memory-after", help="file to wait for before memory of few tokens is measured")
    p.add_argument("--small", action="store_true", help="two narrow layers, to try the script")
    a = p.parse_args()
    peer = None
    if a.device == "cuda":
        here = os.path.dirname(os.path.abspath(__file__))
        peer = subprocess.Popen([sys.executable, os.path.join(here, "cuda_peers.py"), "lora", f"batch={a.batch}", f"length={a.len}"], stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, text=True)
    with tempfile.TemporaryDirectory() as folder:
        sizes = {"len": a.len, "tokens": a.batch * a.len, "text": os.path.abspath(a.text), "dtype": a.dtype}
        shape = "model_type = gpt2\nattn_pdrop = 0\nresid_pdrop = 0\nembd_pdrop = 0" + ("\nn_embd = 64\nn_layer = 2\nn_head = 2\n" if a.small else "\n")
        run(a, folder, "base", RECIPE.format(model=shape + f"[tokenizer]\nfrom = {os.path.abspath(a.tokenizer)}", updates=1, **sizes), timed=False)
        if peer:
            peer.stdout.readline()  # it is compiled
        if a.ready:
            open(a.ready, "w").close()
        wait_for(a.after)
        recipe = RECIPE.format(model=f"from = {folder}/base/model", updates=a.updates, **sizes)
        compare(a, folder, recipe, peer)
        if a.device == "cuda":
            wait_for(a.memory_after)
            few_tokens(a, folder, recipe)


if __name__ == "__main__":
    main()
