"""Golden numbers of fovea words: BM25 by rank_bm25's BM25Okapi, Lucene's BM25 and TF-IDF by their formulas, in double
precision.  Run: python3 tools/golden/words.py tests/golden/words.json   (made with rank_bm25 0.2.2)"""
import json
import math
import sys

from rank_bm25 import BM25Okapi

DOCUMENTS = ["the cat sat on the mat", "the dog sat on the log", "cats and dogs are animals and friends of the cat",
             "a log is a part of a tree", "the the the", "a mat of wool"]
QUERIES = ["the cat", "log of the tree tree", "animals", "nothing known", "mat"]
tokens = [d.split() for d in DOCUMENTS]
N, lengths = len(tokens), [len(t) for t in tokens]
mean = sum(lengths) / N
df = {w: sum(w in t for t in tokens) for t in tokens for w in t}


def lucene(query, i, k1=0.9, b=0.4):
    """Lucene's BM25Similarity since version 8, with exact lengths."""
    score = 0.0
    for w in query.split():
        f = tokens[i].count(w)
        idf = math.log(1 + (N - df[w] + 0.5) / (df[w] + 0.5)) if w in df else 0
        score += idf * f / (f + k1 * (1 - b + b * lengths[i] / mean)) if f else 0
    return score


def tfidf(i):
    """scikit-learn's TfidfVectorizer: smooth idf, vectors of length 1."""
    weights = {w: tokens[i].count(w) * (1 + math.log((1 + N) / (1 + df[w]))) for w in tokens[i]}
    length = math.sqrt(sum(x * x for x in weights.values()))
    return {w: x / length for w, x in weights.items()}


okapi = BM25Okapi(tokens)
with open(sys.argv[1], "w") as f:
    json.dump({"documents": DOCUMENTS, "queries": [{"text": q, "okapi": list(map(float, okapi.get_scores(q.split()))),
                                                    "lucene": [lucene(q, i) for i in range(N)]} for q in QUERIES],
               "tfidf": [tfidf(i) for i in range(N)]}, f, indent=1)
