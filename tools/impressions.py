#!/usr/bin/env python3
"""Impressions out of a file of events: what a user took, among items that it did not take.

    python3 tools/impressions.py Video.txt.gz video [--negatives 4] [--layout sequences] [--seed 1]

Reads "user item" lines (with times: sorted by them already), or with --layout sequences a user and its items on each line, and writes
train.tsv, valid.tsv and test.tsv for the objective click: label, candidate, history, and two features, how often the candidate
was taken in the training part and how long the history is, both as powers of two.  Of each user the last item is for the test, the
one before it for validation.  items.txt has the training part alone, a user's items on each line: sentences for vectors of items.  Beside each item that was taken stand --negatives others, drawn from what was taken in the same part:
so neither popularity nor fashion tells what was taken, only the history does.  The same arguments give the same files.
"""
import argparse
import gzip
import os
import random


def users_of(path, sequences):
    users = {}
    with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as f:
        for line in f:
            user, *items = line.split()
            users.setdefault(user, []).extend(items if sequences else items[:1])
    return [x for x in users.values() if len(x) >= 3]


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    p.add_argument("source")
    p.add_argument("to")
    p.add_argument("--negatives", type=int, default=4)
    p.add_argument("--longest", type=int, default=20, help="items of a history that are written")
    p.add_argument("--each", type=int, default=20, help="items of a user in the training part, at most: the last ones")
    p.add_argument("--layout", choices=("rows", "sequences"), default="rows")
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    rng, users = random.Random(a.seed), users_of(a.source, a.layout == "sequences")
    taken = {"train": [x for items in users for x in items[:-2]], "valid": [items[-2] for items in users], "test": [items[-1] for items in users]}
    count = {}
    for item in taken["train"]:
        count[item] = count.get(item, 0) + 1
    os.makedirs(a.to, exist_ok=True)
    files = {part: open(os.path.join(a.to, part + ".tsv"), "w", encoding="utf-8") for part in ("train", "valid", "test")}
    lines = dict.fromkeys(files, 0)
    for items in users:
        had = set(items)
        for k in range(max(1, len(items) - 2 - a.each), len(items)):
            part = ("test", "valid", "train")[min(len(items) - 1 - k, 2)]
            history = " ".join(items[max(0, k - a.longest):k])
            others = [x for x in (rng.choice(taken[part]) for _ in range(4 * a.negatives)) if x not in had][:a.negatives]
            for label, item in [(1, items[k])] + [(0, x) for x in others]:
                files[part].write("%d\t%s\t%s\t%d\t%d\n" % (label, item, history, count.get(item, 0).bit_length(), k.bit_length()))
                lines[part] += 1
    for f in files.values():
        f.close()
    with open(os.path.join(a.to, "items.txt"), "w", encoding="utf-8") as f:
        f.writelines(" ".join(items[:-2]) + "\n" for items in users)
    print("%s: %s" % (a.to, lines))


if __name__ == "__main__":
    main()
