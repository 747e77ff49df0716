#!/usr/bin/env python3
"""gpu_builds.py OLD NEW [--rows attention/64/forward/full/512 ...] [--group 8] [--rounds 5] [--samples 4] [--device cuda] - two builds of the
program on one GPU, sample by sample in turns: rows of bench/cuda.py, what OLD and NEW have, and how many times as fast NEW is.

OLD and NEW are directories with fovea and libfovea_cuda.so.  Both programs of a group of rows are started together and wait (turns.c) until
all are ready; then each in turn takes four samples of about 10 ms, five rounds, OLD and NEW of a row one behind the other and either first in
every other round.  Without --rows: attention, widths 64 and 128, 512, 2,048 and 8,192 tokens."""
import argparse
import json
import os
import select
import subprocess
import tempfile
import time

import cuda

SAMPLE = 0.01  # seconds of one, as `fovea bench` repeats short calls
MOST_WAIT = 30  # seconds until a program is ready


class Run:
    """One program at one row, which takes as many samples as it is told."""

    def __init__(self, folder, row, seconds, device, library):
        self.ready, out = os.pipe()
        turn, self.turns = os.pipe()
        env = os.environ | row.env | {"FOVEA_CUDA": os.path.join(folder, "libfovea_cuda.so"), "LD_PRELOAD": library,
                                      "TURN_IN": str(turn), "TURN_OUT": str(out)}
        command = [os.path.join(folder, "fovea"), "bench", *map(str, row.ask), "--device", device, "--threads", "1", "--seconds",
                   str(seconds), "--json"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env,
                                        pass_fds=(turn, out))
        os.close(turn)
        os.close(out)
        self.row, self.over = row, False

    def wait(self):
        """Until it waits for its turn or has ended."""
        if not self.over and (not select.select([self.ready], [], [], MOST_WAIT)[0] or not os.read(self.ready, 1)):
            self.over = True

    def turn(self, samples):
        if not self.over:
            os.write(self.turns, bytes([samples]))
            self.wait()

    def figure(self):
        """Its rate, or None."""
        os.close(self.turns)
        os.close(self.ready)
        out, err = self.process.communicate()
        if self.process.returncode:
            print(f"{self.row.name}: {err.strip()}", flush=True)
            return None
        return json.loads(out.splitlines()[-1])[self.row.figure] * self.row.scale


def compare(args, rows, library):
    seconds = args.rounds * args.samples * SAMPLE
    runs = [[Run(folder, row, seconds, args.device, library) for folder in (args.old, args.new)] for row in rows]
    for run in sum(runs, []):
        run.wait()
    number = 0
    while not all(run.over for run in sum(runs, [])):
        for k, pair in enumerate(runs):
            for run in pair if (number + k) % 2 else pair[::-1]:
                run.turn(args.samples + 2 * (number == 0))  # two that warm up
        number += 1
    for row, pair in zip(rows, runs):
        old, new = (run.figure() for run in pair)
        if old and new:
            print(f"{row.name}: {old:,.1f} {new:,.1f} {row.unit} {new / old:.3f}", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("old")
    p.add_argument("new")
    p.add_argument("--rows", nargs="*")
    p.add_argument("--group", type=int, default=8, help="rows whose programs are held at once")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--samples", type=int, default=4)
    p.add_argument("--device", default="cuda")
    args = p.parse_args()
    every = {row.name: row for row in cuda.rows()}
    names = args.rows or [f"attention/{w}/{d}/{c}/{n}" for n in (512, 2048, 8192) for w in (64, 128) for d in ("forward", "gradient")
                          for c in ("full", "causal")]
    unknown = [name for name in names if name not in every]
    if unknown:
        p.error(f"no row of bench/cuda.py is called {unknown[0]}")
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        library = os.path.join(folder, "turns.so")
        source = os.path.join(os.path.dirname(os.path.abspath(__file__)), "turns.c")
        subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
        for i in range(0, len(names), args.group):
            compare(args, [every[name] for name in names[i:i + args.group]], library)
    print(f"{time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
