"""A task whose relevant token is known: the number of a sentence's subject, with other nouns on the way to the verb (Linzen et al. 2016), made
from a small grammar.  Writes train.tsv, test.tsv (sentence, label) and test.txt (sentences alone); and for preferences text.txt, where verbs
agree half of the time, and pairs-train.jsonl, pairs-test.jsonl, where the chosen verb agrees and the rejected one does not.
Run: python3 tools/agreement.py DIR

"the keys near the old cabinet of the clerk" -> plural: only the first noun decides; the last one agrees with it as often as not."""
import json
import os
import random
import sys

NOUNS = [("key", "keys"), ("cabinet", "cabinets"), ("clerk", "clerks"), ("letter", "letters"), ("drawer", "drawers"), ("lamp", "lamps"),
         ("table", "tables"), ("visitor", "visitors"), ("garden", "gardens"), ("window", "windows"), ("teacher", "teachers"), ("map", "maps"),
         ("boat", "boats"), ("tower", "towers"), ("bridge", "bridges"), ("painter", "painters")]
WORDS = ["old", "red", "small", "broken", "quiet", "heavy", "new", "green"]
PLACES = ["near", "behind", "of", "above", "beside", "with", "under"]
OPENINGS = ["yesterday", "in the morning", "as we heard", "to our surprise", "last year", "it seems that"]


def noun_phrase(rng):
    plural = rng.random() < 0.5
    noun = rng.choice(NOUNS)[plural]
    word = rng.choice(WORDS) + " " if rng.random() < 0.5 else ""
    return "the " + word + noun, plural


def sentence(rng):
    subject, plural = noun_phrase(rng)
    parts = [rng.choice(OPENINGS)] if rng.random() < 0.7 else []
    parts.append(subject)
    for _ in range(rng.randint(1, 3)):
        parts += [rng.choice(PLACES), noun_phrase(rng)[0]]
    return " ".join(parts), "plural" if plural else "singular"


VERBS = [("is", "are"), ("was", "were"), ("has been", "have been"), ("seems", "seem"), ("looks", "look")]
ENDS = ["old", "lost", "ready", "clean", "here", "quite small"]


def write_pairs(path, rng, n, seen):
    with open(path, "w") as f:
        while n:
            text, label = sentence(rng)
            if text in seen:
                continue
            seen.add(text)
            right, verb, end = label == "plural", rng.choice(VERBS), rng.choice(ENDS)
            f.write(json.dumps({"prompt": text, "chosen": f" {verb[right]} {end} .", "rejected": f" {verb[not right]} {end} ."}) + "\n")
            n -= 1


def write_text(path, rng, n):
    with open(path, "w") as f:
        for _ in range(n):
            f.write(f"{sentence(rng)[0]} {rng.choice(rng.choice(VERBS))} {rng.choice(ENDS)} .\n")


def write(path, rng, n):
    with open(path + ".tsv", "w") as table, open(path + ".txt", "w") as texts:
        table.write("sentence\tlabel\n")
        for _ in range(n):
            text, label = sentence(rng)
            table.write(f"{text}\t{label}\n")
            texts.write(text + "\n")


if __name__ == "__main__":
    os.makedirs(sys.argv[1], exist_ok=True)
    write(os.path.join(sys.argv[1], "train"), random.Random(1), 20000)
    write(os.path.join(sys.argv[1], "test"), random.Random(2), 500)
    write_text(os.path.join(sys.argv[1], "text.txt"), random.Random(3), 20000)
    known = set()
    write_pairs(os.path.join(sys.argv[1], "pairs-train.jsonl"), random.Random(4), 5000, known)
    write_pairs(os.path.join(sys.argv[1], "pairs-test.jsonl"), random.Random(5), 500, known)
