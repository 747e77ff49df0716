#!/usr/bin/env python3
"""Spoken digits as time series with two channels: how loud, and how often the signal crosses zero, every 10 ms.

    python3 tools/fsdd_series.py recordings.tar.gz digits [--nearest]

Reads the recordings of the free spoken digit dataset and writes train.tsv, valid.tsv and test.tsv for the objective series_classify:
the series and its digit.  Parts are those of its authors: of each speaker and digit recordings 0 to 4 are the test; 5 to 9 are
validation here.  Loudness is the logarithm of the mean square of 20 ms, zero crossings are counted in the same 20 ms.  A clip is cut
after one second.  --nearest prints how many digits of the test the nearest training series finds (Euclidean distance; of both channels
at unit deviation, the series at the end of 100 steps, what is before them at the channel's mean).
"""
import argparse
import array
import io
import math
import os
import tarfile
import wave

STEPS = 100


def features(samples, rate):
    """(loudness, crossings) of windows of 20 ms, every 10 ms."""
    width, hop = rate // 50, rate // 100
    loud, crossed = [], []
    for at in range(0, max(1, len(samples) - width + 1), hop):
        x = samples[at:at + width]
        loud.append(math.log10(sum(v * v for v in x) / len(x) + 1))
        crossed.append(sum((a < 0) != (b < 0) for a, b in zip(x, x[1:])) / len(x))
    return loud[:STEPS], crossed[:STEPS]


def read(path):
    parts = {"train": [], "valid": [], "test": []}
    with tarfile.open(path) as t:
        for m in sorted((m for m in t if m.name.endswith(".wav")), key=lambda m: m.name):
            digit, _, index = os.path.basename(m.name)[:-4].split("_")
            with wave.open(io.BytesIO(t.extractfile(m).read())) as w:
                samples = array.array("h", w.readframes(w.getnframes()))
                rate = w.getframerate()
            part = "test" if int(index) < 5 else "valid" if int(index) < 10 else "train"
            parts[part].append((digit, features(samples, rate)))
    return parts


def vectors(part, scale):
    out = []
    for digit, channels in part:
        x = []
        for channel, (mean, deviation) in zip(channels, scale):
            own = sum(channel) / len(channel)
            x += [(v - mean) / deviation for v in [own] * (STEPS - len(channel)) + channel]
        out.append((digit, x))
    return out


def nearest(parts):
    scale = []
    for i in range(2):
        all_values = [v for _, c in parts["train"] for v in c[i]]
        mean = sum(all_values) / len(all_values)
        scale.append((mean, math.sqrt(sum((v - mean) ** 2 for v in all_values) / len(all_values))))
    known, right = vectors(parts["train"], scale), 0
    asked = vectors(parts["test"], scale)
    for digit, x in asked:
        right += min(known, key=lambda k: math.dist(k[1], x))[0] == digit
    print(f"nearest neighbour: {100 * right / len(asked):.1f} % of {len(asked)}")


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    p.add_argument("source")
    p.add_argument("to")
    p.add_argument("--nearest", action="store_true")
    a = p.parse_args()
    parts = read(a.source)
    os.makedirs(a.to, exist_ok=True)
    for name, part in parts.items():
        with open(os.path.join(a.to, name + ".tsv"), "w", encoding="utf-8") as f:
            for digit, channels in part:
                f.write(":".join(" ".join(f"{v:.4g}" for v in c) for c in channels) + "\t" + digit + "\n")
        print(f"{name}: {len(part)} series")
    if a.nearest:
        nearest(parts)


if __name__ == "__main__":
    main()
