#!/usr/bin/env python3
"""What words alone allow in emoji retrieval: bench/emoji_words.py emoji/captions.tsv.gz [--split test]

For each group of emoji the share of their captions' words that a training caption, or a training caption or key word, has; then
recall of a model that sees perfectly and knows a word if and only if training had it: an image has all of its known words, caption
and key words, a text those it is written with, and images are ranked by the cosine of both, rare words weighing more (idf squared).
Ties count as chance."""
import argparse
import collections
import csv
import gzip
import math
import re


def words(row, key_words):
    text = row["caption_en"] + (" " + row["tags_en"].replace("|", " ") if key_words else "")
    return set(re.findall(r"\w+", text.lower()))


def recall(rows, vocabulary, weight, key_words):
    hits = dict.fromkeys((1, 5, 10), 0.0)
    known = [words(r, True) & vocabulary for r in rows]
    length = [math.sqrt(sum(weight(w) for w in k)) or 1 for k in known]
    for i, row in enumerate(rows):
        query = words(row, key_words) & vocabulary
        score = [sum(weight(w) for w in query & k) / n for k, n in zip(known, length)]
        better = sum(s > score[i] + 1e-12 for s in score)
        equal = sum(abs(s - score[i]) <= 1e-12 for s in score)
        for cut in hits:
            hits[cut] += min(1, max(0, (cut - better) / equal))
    return {cut: round(100 * n / len(rows), 1) for cut, n in hits.items()}


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("captions")
    a.add_argument("--split", default="test")
    a = a.parse_args()
    with gzip.open(a.captions, "rt", encoding="utf-8") as f:
        rows = list(csv.DictReader(f, delimiter="\t", quoting=csv.QUOTE_NONE))
    rows = [r for r in rows if r["style"] == rows[0]["style"]]  # both styles have the same texts
    train = [r for r in rows if r["split"] == "train"]
    rows = [r for r in rows if r["split"] == a.split]
    captions = set().union(*(words(r, False) for r in train))
    both = set().union(*(words(r, True) for r in train))
    count = collections.Counter(w for r in train for w in words(r, True))

    def weight(w):
        return math.log((len(train) + 1) / (count[w] + 0.5)) ** 2

    print(f"{'group':18s} emoji  words  in captions  or key words  none known")
    for group in [None] + sorted({r["group"] for r in rows}):
        mine = [words(r, False) for r in rows if group in (None, r["group"])]
        n = sum(map(len, mine))
        print(f"{group or 'all':18s} {len(mine):5d} {n:6d} {100 * sum(len(w & captions) for w in mine) / n:10.0f} % "
              f"{100 * sum(len(w & both) for w in mine) / n:11.0f} % {sum(not w & both for w in mine):11d}")
    for key_words in (False, True):
        for name, vocabulary in (("captions", captions), ("captions and key words", both)):
            print(f"recall of {'captions with key words' if key_words else 'captions'}, words known from {name}: "
                  f"{recall(rows, vocabulary, weight, key_words)}")


if __name__ == "__main__":
    main()
