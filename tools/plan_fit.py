#!/usr/bin/env python3
"""plan_fit.py FOLDER - fits what `fovea plan` assumes of networks to measured runs: traces and descriptions that `bench/plan.py FOVEA hosts
FOLDER` has written there.

A bucket of gradients that every rank has ready takes

    seconds = overhead + latency + bytes / (efficiency bandwidth)

so the buckets of an update, B of them, take B (overhead + latency) + bytes / (efficiency bandwidth): a line in two unknowns, 1 /
efficiency and overhead, fitted to all runs by least squares of relative errors.  Of a bucket the rank that waited least is taken, since
the others also wait for computing; of an update's sum the median over updates.  Prints both constants, which src/train/scaling.c has as
EFFICIENCY and OVERHEAD and `fovea plan` takes as options, and how well they describe each run.
"""
import glob
import json
import statistics
import sys


def reduce_seconds(trace):
    """Of an update: the sum over buckets of the least that any rank needed."""
    events = {}
    for e in trace:
        if e.get("ph") == "X" and e["name"] == "reduce bucket":
            events.setdefault(e["args"]["update"], {}).setdefault(e["pid"], []).append((e["ts"], e["dur"] * 1e-6))
    sums = []
    for update in sorted(events)[2:]:
        ranks = [[seconds for _, seconds in sorted(of)] for of in events[update].values()]
        sums.append(sum(map(min, zip(*ranks))))
    return statistics.median(sums) if sums else None


def solve(rows):
    """Least squares of a x + b y = 1 for rows (x, y), both divided by what was measured."""
    xx, xy, yy = (sum(r[i] * r[j] for r in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    x1, y1 = sum(r[0] for r in rows), sum(r[1] for r in rows)
    det = xx * yy - xy * xy
    return (x1 * yy - y1 * xy) / det, (xx * y1 - xy * x1) / det


def main():
    runs = []
    for path in sorted(glob.glob(sys.argv[1] + "/*.trace.json")):
        what = json.load(open(path.replace(".trace.json", ".json")))
        took = reduce_seconds(json.load(open(path)))
        if took and what["plan"]["ranks"] > 1:
            runs.append((path, what, took))
    if len(runs) < 2:
        sys.exit("plan_fit.py: %s has fewer than two runs of several ranks" % sys.argv[1])
    rows = []
    for _, what, took in runs:
        waits = 1e-6 * what["latency"] * what["plan"]["buckets"]
        left = max(took - waits, 1e-9)
        rows.append((what["plan"]["sent"] / (what["mbit"] * 1.25e5) / left, what["plan"]["buckets"] / left))
    slowness, overhead = solve(rows)
    if overhead < 0:  # fewer bytes than the noise: the bandwidth alone
        overhead, slowness = 0, sum(r[0] for r in rows) / sum(r[0] * r[0] for r in rows)
    if slowness < 1:  # no link carries more than its bandwidth: the rest is overhead
        slowness, overhead = 1, sum(r[1] * (1 - r[0]) for r in rows) / sum(r[1] * r[1] for r in rows)
        overhead = max(0, overhead)
    print("EFFICIENCY %.3f  OVERHEAD %.0f us   (fovea plan --efficiency %.3f --overhead %.0f)" %
          (1 / slowness, 1e6 * overhead, 1 / slowness, 1e6 * overhead))
    print("ranks   Mbit/s     us  reduce measured   fitted      off")
    for _, what, took in runs:
        plan = what["plan"]
        fitted = plan["buckets"] * (overhead + 1e-6 * what["latency"]) + slowness * plan["sent"] / (what["mbit"] * 1.25e5)
        print("%5d  %7.0f  %5.0f  %15.4f  %7.4f  %+6.1f %%" %
              (plan["ranks"], what["mbit"], what["latency"], took, fitted, 100 * (fitted / took - 1)))


if __name__ == "__main__":
    main()
