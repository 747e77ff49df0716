#!/usr/bin/env python3
"""The speed of inference, beside PyTorch and ONNX Runtime: a model of Hugging Face's transformers, same sizes, same threads.

    bench/forward.py CONFIG.json [--batch 1 8] [--len 128] [--threads 1 2] [--rounds 3] [--seconds 2]

Needs build/fovea (make), and torch, transformers, onnx, onnxscript and onnxruntime from PyPI.  Programs take turns, each in a
process of its own, bound to as many cores as it has threads (PyTorch asked for one thread may use more); a figure is the
median over rounds of a program's own median.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

from timing import times

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOVEA = os.environ.get("FOVEA", os.path.join(ROOT, "build", "fovea"))


def model_and_inputs(args):
    import torch
    import transformers

    torch.manual_seed(1)
    config = transformers.AutoConfig.from_pretrained(args.config)
    head = (config.architectures or ["AutoModel"])[0]
    model = getattr(transformers, head)(config).eval()
    if hasattr(config, "image_size"):
        return model, {"pixel_values": torch.randn(args.batch[0], config.num_channels, config.image_size, config.image_size)}
    shape = (args.batch[0], args.len)
    return model, {"input_ids": torch.randint(0, config.vocab_size, shape), "attention_mask": torch.ones(shape, dtype=torch.long)}


def export(args):
    import torch

    model, inputs = model_and_inputs(args)
    torch.onnx.export(model, tuple(inputs.values()), args.peer[1], input_names=list(inputs), dynamo=True)


def timed(run, seconds):
    """Prints one JSON line: the median of a few seconds of runs."""
    taken = times(run, seconds)
    print(json.dumps({"median_s": statistics.median(taken), "runs": len(taken)}))


def pytorch(args):
    import torch

    torch.set_num_threads(args.threads[0])
    model, inputs = model_and_inputs(args)
    with torch.inference_mode():
        timed(lambda: model(**inputs), args.seconds)


def onnx(args):
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = args.threads[0]
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    session = ort.InferenceSession(args.peer[1], options, providers=["CPUExecutionProvider"])
    feed = {name: x.numpy() for name, x in model_and_inputs(args)[1].items()}
    timed(lambda: session.run(None, feed), args.seconds)


def measure(command, threads):
    out = subprocess.run(["taskset", "-c", f"0-{threads - 1}", *command], check=True, capture_output=True, text=True).stdout
    return json.loads(out.splitlines()[-1])["median_s"]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("config")
    p.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    p.add_argument("--len", type=int, default=128)
    p.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=float, default=2)
    p.add_argument("--peer", nargs=2, help="be a peer, what this script starts: its name, and the exported model")
    args = p.parse_args()
    if args.peer:
        return {"export": export, "PyTorch": pytorch, "ONNX Runtime": onnx}[args.peer[0]](args)
    print("| batch | threads | fovea | PyTorch | ONNX Runtime | to PyTorch | to ONNX Runtime |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as folder:
        for batch in args.batch:
            path = os.path.join(folder, f"{batch}.onnx")
            size = ["--batch", str(batch), "--len", str(args.len), "--seconds", str(args.seconds)]
            peer = [sys.executable, os.path.abspath(__file__), args.config, *size]
            subprocess.run([*peer, "--peer", "export", path], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for threads in args.threads:
                few = ["--threads", str(threads)]
                commands = {
                    "fovea": [FOVEA, "bench", "forward", "--config", args.config, "--json", *size, *few],
                    "PyTorch": [*peer, *few, "--peer", "PyTorch", path],
                    "ONNX Runtime": [*peer, *few, "--peer", "ONNX Runtime", path],
                }
                taken = {name: [] for name in commands}
                for _ in range(args.rounds):
                    for name, command in commands.items():
                        taken[name].append(measure(command, threads))
                ours, torch_s, onnx_s = (statistics.median(taken[name]) for name in commands)
                print(f"| {batch} | {threads} | {batch / ours:.2f} | {batch / torch_s:.2f} | {batch / onnx_s:.2f} "
                      f"| {torch_s / ours:.2f} | {onnx_s / ours:.2f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
