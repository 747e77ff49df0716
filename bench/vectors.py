#!/usr/bin/env python3
"""Word vectors beside gensim and fastText: words of text for each second of processor time.

    python3 bench/vectors.py build/fovea wikitext2/train.txt.gz [--epochs 1] [--threads 2] [--rounds 1]

Skip-gram of whole words: width 100, window 5, 5 words drawn, words that occur five times at least, 1e-3, highest rate 0.05, text in
lower case.  Each program runs in a process of its own, and the processor time of all its threads counts, with reading the text: that
says the same on a busy machine, where seconds do not.  Programs take turns, and of --rounds the medians are printed.  Programs that
are not installed are left out."""
import argparse
import gzip
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

GENSIM = """
import sys
from gensim.models import Word2Vec
path, epochs, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
Word2Vec(corpus_file=path, vector_size=100, window=5, min_count=5, sg=1, negative=5, sample=1e-3, workers=threads, alpha=0.05,
         min_alpha=1e-6, epochs=epochs)
"""
FASTTEXT = """
import sys, fasttext
path, epochs, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
fasttext.train_unsupervised(path, model="skipgram", dim=100, ws=5, minCount=5, neg=5, t=1e-3, lr=0.05, epoch=epochs, minn=0, maxn=0,
                            thread=threads, verbose=0)
"""


def measure(command):
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
    ran = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return (used, time.time() - start) if ran else None


parser = argparse.ArgumentParser()
parser.add_argument("fovea")
parser.add_argument("text")
parser.add_argument("--epochs", default="1")
parser.add_argument("--threads", default="2")
parser.add_argument("--rounds", type=int, default=1)
given = parser.parse_args()
with tempfile.TemporaryDirectory() as folder:
    path, saved = os.path.join(folder, "text"), os.path.join(folder, "words.vec")
    with (gzip.open if given.text.endswith(".gz") else open)(given.text, "rt", encoding="utf-8") as file:
        text = file.read().lower()
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    words = len(text.split()) * int(given.epochs)
    rest = [path, given.epochs, given.threads]
    programs = {"fovea": [given.fovea, "vectors", "--epochs", given.epochs, "--threads", given.threads, "--output", saved, path],
                "gensim": [sys.executable, "-c", GENSIM] + rest, "fastText": [sys.executable, "-c", FASTTEXT] + rest}
    found = {name: [] for name in programs}
    for _ in range(given.rounds):
        for name, command in programs.items():
            found[name].append(measure(command))
    ours = None
    for name, all_of in found.items():
        if None in all_of:
            print(f"{name:10s} is not installed, or failed", flush=True)
            continue
        used, wall = (statistics.median(x[i] for x in all_of) for i in (0, 1))
        ours = ours or (used, wall)
        print(f"{name:10s} {words / used / 1000:8.0f} thousand words a processor second, {words / wall / 1000:.0f} a second; fovea is "
              f"{used / ours[0]:.2f} and {wall / ours[1]:.2f} times as fast", flush=True)
