"""SQuAD's way of comparing answers, for the scripts beside it."""
import collections
import re
import string


def normalised(s):
    s = "".join(c for c in s.lower() if c not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", s).split())


def f1(given, gold):
    a, b = normalised(given).split(), normalised(gold).split()
    same = sum((collections.Counter(a) & collections.Counter(b)).values())
    return 2 * same / (len(a) + len(b)) if same else 0.0
