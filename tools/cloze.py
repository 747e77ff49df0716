#!/usr/bin/env python3
"""Questions that cost nothing: makes a file in SQuAD's form out of the passages of another.

    python3 tools/cloze.py squad/train-v1.1.json.gz squad/cloze.json.gz [--each 10] [--seed 1]

Only the passages are read, never their questions.  A question is a sentence of its passage with a part cut out (a name, a
number or a few words), a question word in its place or in front, and some of the other words gone: noisy clozes, after Lewis et al.
2019 (arXiv:1906.04980).  The answer is the part that was cut out.  A reader trained on them learns to find the sentence that a
question is about, and which part of it is missing, before it sees a question that a person has written.  The same arguments give
the same file.
"""
import argparse
import gzip
import json
import random
import re

SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z\"'(])")
WORD = re.compile(r"\S+")
EDGE = "\"'()[]{}.,;:!?"
YEAR = re.compile(r"^(1[0-9]|20)\d\d$")
NUMBER = re.compile(r"^[$£€]?\d[\d,.]*%?$")
SMALL = set("a an the of in on at to for by with from as and or but that which who is are was were be been has have had it its this "
            "these those he she they his her their not also than".split())


def words_of(text, start, end):
    """Words without the punctuation around them: (from, to) in characters."""
    for m in WORD.finditer(text, start, end):
        raw = m.group()
        left = len(raw) - len(raw.lstrip(EDGE))
        core = raw.strip(EDGE)
        if core:
            yield m.start() + left, m.start() + left + len(core)


def part_of(text, words, rng):
    """First and last word of what is cut out, and the question words that ask for it."""
    at = rng.randrange(len(words))
    for i in list(range(at, len(words))) + list(range(at)):
        w = text[slice(*words[i])]
        if NUMBER.match(w):
            return i, i, ("when", "what year", "in what year") if YEAR.match(w) else ("how many", "how much", "what")
        if w[0].isupper() and i > 0 and w.lower() not in SMALL:
            last = i
            while last + 1 < len(words) and last - i < 3 and text[words[last + 1][0]].isupper() and \
                    text[words[last][1]:words[last + 1][0]] == " ":
                last += 1
            return i, last, ("who", "what", "where", "which", "what")
        if w.lower() not in SMALL and rng.random() < 0.1:
            last = min(len(words) - 1, i + rng.choice((0, 0, 1, 1, 2, 3)))
            while last > i and text[slice(*words[last])].lower() in SMALL:
                last -= 1
            return i, last, ("what", "what", "how", "why", "which")
    return None


def question_of(text, words, first, last, asks, rng):
    def kept(i):
        return rng.random() > (0.25 if text[slice(*words[i])].lower() in SMALL else 0.08)

    before = [text[slice(*words[i])] for i in range(max(0, first - rng.randint(4, 14)), first) if kept(i)]
    after = [text[slice(*words[i])] for i in range(last + 1, min(len(words), last + 1 + rng.randint(4, 14))) if kept(i)]
    if len(before) + len(after) < 3:
        return None
    ask = rng.choice(asks)
    if rng.random() < 0.6:  # most questions of people begin with the question word
        parts = (ask, after, before) if rng.random() < 0.5 else (ask, before, after)
        text = " ".join([parts[0]] + parts[1] + parts[2])
    else:
        text = " ".join(before + [ask] + after)
    return text[0].upper() + text[1:] + "?"


def ask(passage, each, rng):
    sentences, at = [], 0
    for part in SENTENCE.split(passage):
        at = passage.index(part, at)
        words = list(words_of(passage, at, at + len(part)))
        if 6 <= len(words) <= 80:
            sentences.append(words)
        at += len(part)
    seen, found = set(), []
    for _ in range(each * 2 if sentences else 0):
        words = rng.choice(sentences)
        part = part_of(passage, words, rng)
        if not part or (words[part[0]], part[1]) in seen or len(found) == each:
            continue
        seen.add((words[part[0]], part[1]))
        question = question_of(passage, words, *part, rng)
        start, end = words[part[0]][0], words[part[1]][1]
        if question:
            found.append({"id": "", "question": question, "answers": [{"text": passage[start:end], "answer_start": start}]})
    return found


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    p.add_argument("source")
    p.add_argument("to")
    p.add_argument("--each", type=int, default=10, help="questions of a passage, at most")
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    rng, n = random.Random(a.seed), 0
    with gzip.open(a.source, "rt", encoding="utf-8") as f:
        data = json.load(f)["data"]
    for article in data:
        for paragraph in article["paragraphs"]:
            paragraph["qas"] = ask(paragraph["context"], a.each, rng)
            for q in paragraph["qas"]:
                n += 1
                q["id"] = "cloze-%d" % n
    with gzip.open(a.to, "wt", encoding="utf-8", compresslevel=1) as f:
        json.dump({"version": "1.1", "data": data}, f, ensure_ascii=False)
    print("%s: %d questions" % (a.to, n))


if __name__ == "__main__":
    main()
