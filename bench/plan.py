#!/usr/bin/env python3
"""plan.py FOVEA [hosts|loopback] [OUT] - `fovea plan` beside measured runs on 2 to 4 hosts that are network namespaces with limits and
delays (bench/netns.sh, needs root), or on one machine by shared memory.

A line for each network: seconds of an update as planned and as measured (the median of those behind the first two), how far the plan is
off, and how far with the computing that the run's own trace shows, so that what else runs on this machine does not count.  The recipe is
one whose communication outweighs its computing, as the hosts share the cores of this machine; where they are more than the cores, the plan
is told that each computes that much slower.  `chrt -r 1 bench/plan.py ...` keeps other work off the ranks.  With OUT the traces of the runs
and what each was are written there, for tools/plan_fit.py.  PLAN_GRID="2:100:0 4:100:1000" names other networks: hosts, Mbit/s,
microseconds; PLAN_OPTIONS are passed to the plan.
"""
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile

import small_gpt2

UPDATES = int(os.environ.get("PLAN_UPDATES", "8"))
GRID = "2:50:0 2:200:0 3:100:0 4:50:0 4:100:0 4:200:0 2:100:1000 4:100:1000 4:50:5000"
CORES = len(os.sched_getaffinity(0))


def measured(launch, fovea, folder, plan):
    """The median of the updates behind the first two, in the layout that was planned."""
    run = "run-%d-%d" % (plan["ranks"], plan["shards"])
    shutil.rmtree(folder + "/" + run, ignore_errors=True)
    command = launch + [fovea, "train", "r.ini", "-o", run, "-t", "1", "-q", "--trace", "trace.json", "--set", "train.shards=%d" % plan["shards"]]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=300)
    times = [json.loads(x)["time"] for x in open("%s/%s/train.jsonl" % (folder, run)) if '"train"' in x]
    return statistics.median([b - a for a, b in zip(times[1:], times[2:])])


def computing(trace):
    """Of an update: forward and backward of the slowest rank, without its waits for buckets; the median over updates."""
    spent = {}
    for e in trace:
        sign = {"forward and backward": 1, "wait for buckets": -1}.get(e["name"]) if e.get("ph") == "X" else None
        if sign:
            ranks = spent.setdefault(e["args"]["update"], {})
            ranks[e["pid"]] = ranks.get(e["pid"], 0) + sign * e["dur"] * 1e-6
    return statistics.median([max(spent[update].values()) for update in sorted(spent)[2:]])


def with_computing(p, compute):
    """The plan's seconds with another time of computing: src/train/scaling.c, where gradients hide behind two thirds of it."""
    if p["ranks"] == 1:
        return compute
    late = min(1, 2 / p["buckets"])
    return compute + max(p["reduce"] - 2 / 3 * compute * (1 - late), p["reduce"] * late) + p["gather"]


def planned(fovea, folder, n, mbit, latency):
    command = [fovea, "plan", "r.ini", "-t", "1", "--json", "--ranks", str(n), "--bandwidth", str(mbit / 1000), "--latency", str(latency),
               "--speed", str(min(1, CORES / n))] + os.environ.get("PLAN_OPTIONS", "").split()
    return json.loads(subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True).stdout)


def show(n, mbit, latency, p, m, compute):
    print("%5d  %7.0f  %5.0f  %6d  %9.4f  %9.4f  %10.4f  %+6.1f %%  %9.4f  %+6.1f %%" %
          (n, mbit, latency, p["shards"], p["seconds"], p["compute"], m, 100 * (p["seconds"] / m - 1), compute,
           100 * (with_computing(p, compute) / m - 1)), flush=True)


def one(launch, fovea, folder, out, name, p, mbit, latency):
    """A measured run beside its plan; kept for the fit."""
    m = measured(launch, fovea, folder, p)
    with open(folder + "/trace.json") as f:
        compute = computing(json.load(f))
    show(p["ranks"], mbit, latency, p, m, compute)
    keep(folder, out, name, {"plan": p, "mbit": mbit, "latency": latency, "seconds": m, "compute": compute})


def keep(folder, out, name, what):
    if out:
        os.makedirs(out, exist_ok=True)
        shutil.copy(folder + "/trace.json", "%s/%s.trace.json" % (out, name))
        with open("%s/%s.json" % (out, name), "w") as f:
            json.dump(what, f)


def hosts(fovea, folder, out):
    """A namespace's own delay, 30 us or so, stands for none."""
    script = os.path.dirname(os.path.abspath(__file__)) + "/netns.sh"
    for word in os.environ.get("PLAN_GRID", GRID).split():
        n, mbit, delay = map(int, word.split(":"))
        latency = delay or 30
        p = planned(fovea, folder, n, mbit, latency)
        launch = [script, str(n), "%dmbit" % mbit + (",%d" % delay if delay else "")]
        one(launch, fovea, folder, out, word.replace(":", "-"), p, mbit, latency)


def loopback(fovea, folder, out):
    """Shared memory has no bandwidth that anybody set: it is found from two ranks, and the others are checked with it."""
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    mpirun = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np"]
    mbit, target = 20000.0, None
    for _ in range(6):
        p = planned(fovea, folder, 2, mbit, 0)
        target = target or measured(mpirun + ["2"], fovea, folder, p)
        mbit *= max(0.2, min(5, p["exposed"] / max(1e-4, target - p["compute"])))
    for n in (1, 2, 3, 4, 8):
        p = planned(fovea, folder, n, mbit, 0)
        one(mpirun + [str(n)], fovea, folder, out, "loop-%d" % n, p, mbit, 0)


def main():
    fovea = os.path.abspath(sys.argv[1])
    where = sys.argv[2] if len(sys.argv) > 2 else "hosts"
    out = os.path.abspath(sys.argv[3]) if len(sys.argv) > 3 else None
    with tempfile.TemporaryDirectory() as folder:
        small_gpt2.write(folder, width=256, layers=4, heads=4, positions=64, context=32, updates=UPDATES, batch=256, shards=8)
        print("ranks   Mbit/s     us  shards  planned s  computing  measured s      off  computing      off")
        (loopback if where == "loopback" else hosts)(fovea, folder, out)


if __name__ == "__main__":
    main()
