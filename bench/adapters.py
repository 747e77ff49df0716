#!/usr/bin/env python3
"""Memory and time of a training step: the whole model, LoRA, LoRA above q4, by fovea and (without q4) by PEFT on PyTorch.

adapters.py FOVEA MODEL TEXT [--batch 4] [--len 128] [--recompute]: one thread, f32.  A step is the CPU time of four updates less that of one, by three, so
opening and saving do not count and a busy machine disturbs little; memory is the greatest resident size of the process.
adapters.py FOVEA MODEL TEXT --rounds 5 --threads 2: on a quiet machine, seconds a step by the clock, fovea and PyTorch in turn; medians."""
import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

RECIPE = """[model]
from = {model}
[data]
objective = causal
train = {text}
context = {len}
[train]
updates = 4
batch_tokens = {tokens}
lr = 1e-4
warmup = 0
schedule = constant
eval_every = 0
save_every = 100
recompute = {recompute}
"""
KINDS = {"full": [], "lora": ["adapter.peft_type=LORA"], "lora, q4": ["adapter.peft_type=LORA", "train.base=q4"]}


def child(command):
    """CPU seconds and greatest resident KiB of one command."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit("failed: " + " ".join(command))
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss


def write_recipe(a, folder):
    recipe = os.path.join(folder, "recipe.ini")
    with open(recipe, "w") as f:
        f.write(RECIPE.format(model=os.path.abspath(a.model), text=os.path.abspath(a.text), len=a.len, tokens=a.batch * a.len,
                              recompute=str(a.recompute).lower()))
    return recipe


def ours(a, folder, sets):
    recipe = write_recipe(a, folder)
    seconds, peak = [], 0
    for updates in (1, 4):
        out = os.path.join(folder, "run")
        command = [a.fovea, "train", recipe, "-o", out, "-q", "--threads", "1", "--set", f"train.updates={updates}"]
        for s in sets:
            command += ["--set", s]
        spent, resident = child(command)
        seconds.append(spent)
        peak = max(peak, resident)
        shutil.rmtree(out)
    return (seconds[1] - seconds[0]) / 3, peak


def peft_model(a, lora):
    """One step of PyTorch, as a function."""
    import torch
    import transformers
    torch.set_num_threads(a.threads)
    model = transformers.AutoModelForCausalLM.from_pretrained(a.model).train()
    if lora:
        import peft
        model = peft.get_peft_model(model, peft.LoraConfig(r=8, lora_alpha=8, task_type="CAUSAL_LM"))
    optimiser = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4)
    ids = torch.randint(0, model.config.vocab_size, (a.batch, a.len))

    def step():
        optimiser.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    return step


def peft_step(a, lora):
    """In a process of its own: the least of three steps."""
    step, steps = peft_model(a, lora), []
    for _ in range(4):
        start = time.process_time()
        step()
        steps.append(time.process_time() - start)
    print(json.dumps([min(steps[1:]), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss]))


def clocked(a, folder, sets):
    """Seconds a step of fovea by its own log: of four updates the last three."""
    out = os.path.join(folder, "run")
    command = [a.fovea, "train", os.path.join(folder, "recipe.ini"), "-o", out, "-q", "--threads", str(a.threads), "--set", "train.log_every=1"]
    for s in sets:
        command += ["--set", s]
    child(command)
    with open(os.path.join(out, "train.jsonl")) as f:
        times = [line["time"] for line in map(json.loads, f) if line["event"] == "train"]
    shutil.rmtree(out)
    return (times[-1] - times[0]) / (len(times) - 1)


def compare(a):
    """All kinds in turn, so that what disturbs one disturbs all; of each the median over the rounds."""
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        write_recipe(a, folder)
        step = peft_model(a, True)
        step()
        for _ in range(a.rounds):
            for name in ("full", "lora"):
                seconds.setdefault("fovea " + name, []).append(clocked(a, folder, KINDS[name]))
            start = time.time()
            step(), step()
            seconds.setdefault("PEFT lora", []).append((time.time() - start) / 2)
    middle = {name: statistics.median(values) for name, values in seconds.items()}
    for name, value in middle.items():
        print(f"{name:12} {value:7.3f} s a step, rounds {' '.join('%.3f' % x for x in seconds[name])}")
    print(f"LoRA / full {middle['fovea lora'] / middle['fovea full']:.3f} (bar 0.75), PEFT / LoRA {middle['PEFT lora'] / middle['fovea lora']:.3f} (bar 1.5)")


def main():
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("fovea")
    p.add_argument("model")
    p.add_argument("text")
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--len", type=int, default=128)
    p.add_argument("--recompute", action="store_true")
    p.add_argument("--threads", type=int, default=1)
    p.add_argument("--rounds", type=int, default=0)
    p.add_argument("--peft", choices=["full", "lora"], help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.peft:
        peft_step(a, a.peft == "lora")
        return
    if a.rounds:
        compare(a)
        return
    with tempfile.TemporaryDirectory() as folder:
        for name, sets in KINDS.items():
            seconds, peak = ours(a, folder, sets)
            print(f"fovea {name:10} {seconds:7.2f} s a step {peak / 1024:8.0f} MiB", flush=True)
    for name in ("full", "lora"):
        got = subprocess.run([sys.executable, *sys.argv, "--peft", name], stdout=subprocess.PIPE, text=True, check=True).stdout
        seconds, peak = json.loads(got.strip().split("\n")[-1])
        print(f"PyTorch {name:8} {seconds:7.2f} s a step {peak / 1024:8.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
