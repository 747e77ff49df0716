#!/usr/bin/env python3
"""Which CPUs are hyperthreads of one core, by measurement, and CPUs of different cores to bind a benchmark to.

    bench/one_per_core.py [N]

Prints the cores as 0+1 2+3 ..., or N CPUs as taskset -c takes them, no two of one core where there are so many.  A virtual machine may give every
hyperthread as a core of its own, so what lscpu says is no answer.  Two threads of multiply-adds on two cores do twice the work of one; on two
hyperthreads of a core they do what one does.  Needs build/fovea (make).
"""
import json
import os
import statistics
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOVEA = os.environ.get("FOVEA", os.path.join(ROOT, "build", "fovea"))
ONE_CORE = 0.72  # of the rate of two cores: 0.5 in theory, but clock rates differ


def rate(a, b):
    """GFLOP/s of two threads on CPUs a and b."""
    command = [FOVEA, "bench", "gemm", "--m", "256", "--n", "512", "--k", "384", "-t", "2", "--seconds", "0.01", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, preexec_fn=lambda: os.sched_setaffinity(0, {a, b}))
    return json.loads(done.stdout.splitlines()[0])["gflops"]


def find():
    """Lists of the CPUs of each core that this process may use.  Those of two first: what shares a core with one alone may be busy with
    somebody else's work."""
    left, pairs, alone = sorted(os.sched_getaffinity(0)), [], []
    if len(left) < 3:
        return [[x] for x in left]
    apart = statistics.median(rate(left[0], x) for x in left[1:8:2] + left[2:8:2])  # one of them at most is the same core
    while left:
        a, half = left.pop(0), (len(left) + 1) // 2 + len(pairs)
        likely = sorted(left, key=lambda b: (b != a + 1, b != a + half, b))
        b = next((b for b in likely if all(rate(a, b) < ONE_CORE * apart for _ in range(3))), None)
        if b is None:
            alone.append([a])
        else:
            left.remove(b)
            pairs.append([a, b])
    return pairs + alone


def chosen(cores, n):
    """n CPUs: first one of each core, then the second ones."""
    return sorted(([c[0] for c in cores] + [c[1] for c in cores if len(c) > 1])[:n])


def bound(cores, threads):
    """What binds a program that is about to start to the CPUs of so many threads; cores: None leaves it alone."""
    return (lambda: os.sched_setaffinity(0, chosen(cores, threads))) if cores else None


def add_option(parser):
    parser.add_argument("--pin", nargs="*", metavar="CORE", help="bind both programs to the same CPUs, one a core as long as there are "
                        "cores: those given, as 0+1 2+3, or what is found")


def text(cores):
    return " ".join("+".join(map(str, c)) for c in cores)


def of_option(pin):
    """The cores of --pin, which are printed; None without it."""
    if pin is None:
        return None
    cores = [[int(x) for x in c.split("+")] for c in pin] or find()
    print("cores:", text(cores), flush=True)
    return cores


if __name__ == "__main__":
    print(",".join(map(str, chosen(find(), int(sys.argv[1])))) if len(sys.argv) > 1 else text(find()))
