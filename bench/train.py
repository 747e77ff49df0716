#!/usr/bin/env python3
"""The speed of training, beside PyTorch: one update of a model of Hugging Face's transformers, same sizes, same threads.

    bench/train.py CONFIG.json [--batch 32] [--len 64] [--threads 2] [--rounds 3] [--peer]

Needs build/fovea (make), and torch and transformers from PyPI.  Programs take turns, each in a process of its own; a
figure is the median over rounds of a program's own median, memory is the most that was resident (fovea: of its process).
"""
import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOVEA = os.environ.get("FOVEA", os.path.join(ROOT, "build", "fovea"))


def peer(args):
    """Updates by PyTorch, eager, AdamW; prints one JSON line."""
    import torch
    import transformers

    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    config = transformers.AutoConfig.from_pretrained(args.config)
    head = (config.architectures or ["AutoModel"])[0]
    model = getattr(transformers, head)(config).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-6, betas=(0.9, 0.98), eps=1e-9, weight_decay=0)
    ids = torch.randint(0, config.vocab_size, (args.batch, args.len))
    inputs = {"input_ids": ids, "labels": ids}
    if config.is_encoder_decoder:
        inputs["decoder_input_ids"] = torch.randint(0, config.vocab_size, (args.batch, args.len))

    def update():
        optimiser.zero_grad(set_to_none=True)
        model(**inputs).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()

    update()
    taken, start = [], time.perf_counter()
    while len(taken) < 3 or time.perf_counter() - start < args.seconds:
        t = time.perf_counter()
        update()
        taken.append(time.perf_counter() - t)
    print(json.dumps({"median_s": statistics.median(taken), "runs": len(taken)}))


def measure(command):
    """The program's JSON line, with the most memory its process held."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    text = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"{' '.join(command)}: failed")
    row = json.loads(text.splitlines()[-1])
    row["resident"] = used.ru_maxrss / 1024
    return row | {"before": before}


def main():
    p = argparse.ArgumentParser()
    p.add_argument("config")
    p.add_argument("--batch", type=int, default=32)
    p.add_argument("--len", type=int, default=64)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=float, default=5)
    p.add_argument("--peer", action="store_true", help="be the peer: what this script starts")
    args = p.parse_args()
    if args.peer:
        return peer(args)
    size = ["--batch", str(args.batch), "--len", str(args.len), "--threads", str(args.threads), "--seconds", str(args.seconds)]
    commands = {
        "fovea": [FOVEA, "bench", "train", "--config", args.config, "--json", *size],
        "PyTorch": [sys.executable, os.path.abspath(__file__), args.config, "--peer", *size],
    }
    rows = {name: [] for name in commands}
    for _ in range(args.rounds):
        for name, command in commands.items():
            rows[name].append(measure(command))
    tokens = args.batch * args.len
    print(f"| {os.path.basename(os.path.dirname(os.path.abspath(args.config)))}: {args.batch} x {args.len}, {args.threads} threads | s | tokens/s | MiB |")
    print("| --- | --- | --- | --- |")
    figures = {}
    for name, all_of in rows.items():
        s, mib = statistics.median(r["median_s"] for r in all_of), max(r["resident"] for r in all_of)
        figures[name] = (s, mib)
        print(f"| {name} | {s:.3f} | {tokens / s:.0f} | {mib:.0f} |")
    ours, theirs = figures["fovea"], figures["PyTorch"]
    print(f"| ratio | {theirs[0] / ours[0]:.2f} x as fast | | {ours[1] / theirs[1]:.2f} x the memory |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
