#!/usr/bin/env python3
"""plan_fit.py FOLDER... - fits what `fovea plan` assumes of networks to measured runs: descriptions that `bench/plan.py FOVEA hosts FOLDER`
has written there.

Of an update on a slow link, what is not computing is

    seconds - compute + hidden = (3 B + 2) (overhead + latency) + sent / (efficiency bandwidth)

with B buckets of gradients and parameters and B + 2 small exchanges (src/train/scaling.c), and hidden the part of the computing behind which
gradients are sent: two thirds, the backward pass, but for the last two buckets.  That is a line in two unknowns, 1 / efficiency and overhead, fitted to all runs by least squares of relative
errors.  compute is that of the run itself, so that other work on the machine does not count as network.  Prints both constants, which
src/train/scaling.c has as EFFICIENCY and OVERHEAD and `fovea plan` takes as options, how well they describe each run, and each run by a
fit to the others.
"""
import glob
import json
import sys


def seen(run):
    """Seconds of computing behind which nothing is sent."""
    return run["compute"] * (1 - 2 / 3 * max(0, 1 - 2 / run["plan"]["buckets"]))


def exchanges(run):
    return 3 * run["plan"]["buckets"] + 2


def wire(run):
    return run["plan"]["sent"] / (run["mbit"] * 1.25e5)


def spent(run):
    """Seconds of an update in which the link had something to do."""
    return run["seconds"] - seen(run)


def solve(runs):
    """1 / efficiency and overhead by least squares of a x + b y = 1, both divided by what was measured."""
    rows = []
    for r in runs:
        left = spent(r) - exchanges(r) * 1e-6 * r["latency"]
        rows.append((wire(r) / left, exchanges(r) / left))
    xx, xy, yy = (sum(r[i] * r[j] for r in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    x1, y1 = sum(r[0] for r in rows), sum(r[1] for r in rows)
    det = xx * yy - xy * xy
    slowness, overhead = (x1 * yy - y1 * xy) / det, (xx * y1 - xy * x1) / det
    if overhead < 0:  # fewer bytes than the noise: the bandwidth alone
        slowness, overhead = x1 / xx, 0
    if slowness < 1:  # no link carries more than its bandwidth: the rest is overhead
        slowness, overhead = 1, max(0, sum(r[1] * (1 - r[0]) for r in rows) / yy)
    return slowness, overhead


def update(run, fit):
    slowness, overhead = fit
    link = slowness * wire(run) + exchanges(run) * (overhead + 1e-6 * run["latency"])
    return link + seen(run)


def main():
    runs = []
    for path in sorted(path for folder in sys.argv[1:] for path in glob.glob(folder + "/*.json") if not path.endswith(".trace.json")):
        run = json.load(open(path))
        if run["plan"]["ranks"] > 1 and run["mbit"] * 1.25e5 < 1e9 and spent(run) > run["compute"]:
            runs.append(run)
    if len(runs) < 3:
        sys.exit("plan_fit.py: fewer than three runs of several ranks on a slow link")
    fit = solve(runs)
    print("EFFICIENCY %.3f  OVERHEAD %.0f us   (fovea plan --efficiency %.3f --overhead %.0f)" % ((1 / fit[0], 1e6 * fit[1]) * 2))
    print("ranks   Mbit/s     us   measured s   fitted s      off  by a fit to the others")
    for r in runs:
        s, others = update(r, fit), update(r, solve([x for x in runs if x is not r]))
        print("%5d  %7.0f  %5.0f  %11.4f  %9.4f  %+5.1f %%  %+5.1f %%" %
              (r["plan"]["ranks"], r["mbit"], r["latency"], r["seconds"], s, 100 * (s / r["seconds"] - 1), 100 * (others / r["seconds"] - 1)))


if __name__ == "__main__":
    main()
