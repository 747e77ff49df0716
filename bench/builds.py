#!/usr/bin/env python3
"""builds.py OLD NEW [ROUNDS [WORD]] - two builds of the program, OLD and NEW, beside each other on the CPU: the median of `fovea bench`
over rounds in which they take turns (five where not said), and how many times as fast NEW is.  WORD: only the rows whose name has it.  On a
machine that others use, `chrt -r 1 bench/builds.py ...` keeps them off the cores."""
import json
import statistics
import subprocess
import sys

CONFIGS = "bench/configs/"
ROWS = [
    "gemm -t 1", "gemm -t 2", "gemm --m 512 --n 3072 --k 768 -t 2", "gemm --m 128 --n 768 --k 768 -t 1",
    "gemm --m 1 --n 3072 --k 768 --packed -t 2", "gemm --m 16 --n 3072 --k 768 --packed -t 1", "gemm --m 512 --n 3072 --k 768 --dtype q8 -t 2",
    "gemm --dtype bf16 -t 2", "attention --len 512 -t 2", "attention --len 2048 --causal -t 2", "attention --len 512 --backward -t 2",
    "attention --len 2048 --causal --backward -t 1", "softmax -t 2", "layernorm -t 2", "rmsnorm -t 2", "gelu -t 2", "cross-entropy -t 2", "adamw -t 2",
    "decode --config gpt2-124m.json -t 2 --new 48", "decode --config gpt2-124m.json -t 2 --new 48 --dtype q8",
    "decode --config llama-110m.json -t 2 --new 48", "forward --config bert-base.json --batch 8 -t 2", "forward --config bert-base.json --batch 1 -t 2",
    "forward --config modernbert-base.json --batch 4 -t 2", "train --config marian-base.json --batch 8 --len 32 -t 2",
]


def seconds(program, row):
    command = [program, "bench"] + row.replace("--config ", "--config " + CONFIGS).split() + ["--seconds", "0.3", "--json"]
    lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return next(x["median_s"] for x in map(json.loads, lines) if "median_s" in x)


def main():
    programs, rounds = sys.argv[1:3], int(sys.argv[3]) if len(sys.argv) > 3 else 5
    for row in (r for r in ROWS if len(sys.argv) < 5 or sys.argv[4] in r):
        found = {p: [] for p in programs}
        for i in range(rounds):
            for p in programs if i % 2 else programs[::-1]:
                found[p].append(seconds(p, row))
        old, new = (statistics.median(found[p]) for p in programs)
        print("%-60s %9.3f ms %9.3f ms  %.3f" % (row, 1000 * old, 1000 * new, old / new), flush=True)


if __name__ == "__main__":
    main()
