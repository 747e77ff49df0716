#!/usr/bin/env python3
"""Windows of a transformer's measurements, each with one number to be found: the peak of one of its loads over the day that follows.

    python3 tools/ett_windows.py ETTh1.csv.gz windows

Reads a file of ETT (date, then seven channels, an hour each) and writes train.tsv, valid.tsv and test.tsv for the objective
series_regress: 96 hours of all channels, and the peak of MULL over the next 24 hours, with mean 0 and deviation 1 over the training
part.  Parts are those of the papers, 12, 4 and 4 months of 30 days; a window begins every three hours.  Prints the mean square errors
of three baselines on the test: the mean of the training part, the peak of the last day, and the least squares of the last value and
of the means of the last day and of all 96 hours of each channel.
"""
import argparse
import gzip
import math
import os

LOAD = 3  # MULL
HOURS, DAY, STRIDE, ENDS = 96, 24, 3, {"train": (0, 8640), "valid": (8640, 11520), "test": (11520, 14400)}


def read(path):
    with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as f:
        next(f)
        return [[float(v) for v in line.split(",")[1:]] for line in f]


def peak(rows, at):
    """Of the day that begins at a row."""
    return max(r[LOAD] for r in rows[at:at + DAY])


def windows(rows, part):
    """(first row, what is to be found)"""
    first, end = ENDS[part]
    return [(at, peak(rows, at + HOURS)) for at in range(first, end - HOURS - DAY + 1, STRIDE)]


def features(rows, at):
    x = [1.0]
    for c in range(len(rows[0])):
        values = [r[c] for r in rows[at:at + HOURS]]
        x += [values[-1], sum(values[-DAY:]) / DAY, sum(values) / HOURS]
    return x


def solve(a, b):
    """a x = b by elimination with pivots."""
    n = len(b)
    m = [row[:] + [v] for row, v in zip(a, b)]
    for i in range(n):
        p = max(range(i, n), key=lambda k: abs(m[k][i]))
        m[i], m[p] = m[p], m[i]
        for k in range(i + 1, n):
            f = m[k][i] / m[i][i]
            m[k] = [u - f * v for u, v in zip(m[k], m[i])]
    x = [0.0] * n
    for i in reversed(range(n)):
        x[i] = (m[i][n] - sum(m[i][k] * x[k] for k in range(i + 1, n))) / m[i][i]
    return x


def baselines(rows, parts, mean, deviation):
    """Names and mean square errors on the test."""
    n = len(features(rows, 0))
    a, b = [[0.0] * n for _ in range(n)], [0.0] * n
    for at, y in parts["train"]:
        x = features(rows, at)
        for i in range(n):
            b[i] += x[i] * y
            for k in range(n):
                a[i][k] += x[i] * x[k]
    w = solve(a, b)
    ways = {"mean of the training part": lambda at: mean,
            "peak of the last day": lambda at: peak(rows, at + HOURS - DAY),
            "least squares": lambda at: sum(u * v for u, v in zip(w, features(rows, at)))}
    for name, way in ways.items():
        off = [(way(at) - y) / deviation for at, y in parts["test"]]
        yield name, sum(v * v for v in off) / len(off)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    p.add_argument("source")
    p.add_argument("to")
    a = p.parse_args()
    rows = read(a.source)
    parts = {part: windows(rows, part) for part in ENDS}
    known = [y for _, y in parts["train"]]
    mean = sum(known) / len(known)
    deviation = math.sqrt(sum((y - mean) ** 2 for y in known) / len(known))
    os.makedirs(a.to, exist_ok=True)
    for part, found in parts.items():
        with open(os.path.join(a.to, part + ".tsv"), "w", encoding="utf-8") as f:
            for at, y in found:
                channels = zip(*rows[at:at + HOURS])
                f.write(":".join(" ".join(f"{v:.4g}" for v in c) for c in channels) + f"\t{(y - mean) / deviation:.4f}\n")
        print(f"{part}: {len(found)} windows")
    for name, error in baselines(rows, parts, mean, deviation):
        print(f"{name}: mean square error {error:.4f}")


if __name__ == "__main__":
    main()
