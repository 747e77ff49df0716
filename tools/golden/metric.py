"""Golden numbers of the metrics: random labels, tags, answers and summaries with the scores of the reference implementations.
Run: python3 tools/golden/metric.py > tests/golden/metric.json
(made with scikit-learn 1.9.1, seqeval 1.2.2, rouge-score 0.1.2, and SQuAD's normalisation as evaluate-v1.1.py defines it)"""
import json
import random
import warnings

from rouge_score import rouge_scorer
from seqeval.metrics import classification_report
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, precision_recall_fscore_support

from squad import f1, normalised

warnings.filterwarnings("ignore")
random.seed(7)


def per_cent(x):
    return round(100 * float(x), 6)


def classes(labels, n, used):
    """Labels beyond `used` never occur: they are no part of the mean."""
    gold = [random.randrange(used) for _ in range(n)]
    given = [g if random.random() < 0.6 else random.randrange(used) for g in gold]
    p, r, f, _ = precision_recall_fscore_support(gold, given, labels=range(labels), zero_division=0)
    return dict(labels=labels, table=confusion_matrix(gold, given, labels=range(labels)).tolist(),
                accuracy=per_cent(accuracy_score(gold, given)), macro_f1=per_cent(f1_score(gold, given, average="macro")),
                precision=[per_cent(x) for x in p], recall=[per_cent(x) for x in r], f1=[per_cent(x) for x in f])


def runs(n):
    """Entities of a sentence, as (type or None, length)."""
    out = []
    while n:
        k = min(n, random.randint(1, 4))
        out.append((random.choice([None, "PER", "LOC", "ORG", "MISC-X"]), k))
        n -= k
    return out


def tags(sentence, scheme):
    out, before = [], None
    for kind, n in sentence:
        if kind is None:
            out += ["O"] * n
        elif scheme == "IOB1":
            out += [("B-" if kind == before else "I-") + kind] + ["I-" + kind] * (n - 1)
        elif scheme == "IOB2":
            out += ["B-" + kind] + ["I-" + kind] * (n - 1)
        else:
            out += ["S-" + kind] if n == 1 else ["B-" + kind] + ["I-" + kind] * (n - 2) + ["E-" + kind]
        before = kind
    return out


def spoiled(row):
    """Some tags are others: also such as no scheme allows, which conlleval reads as well."""
    return [random.choice(["O", "I-PER", "B-LOC", "I-ORG", "B-MISC-X"]) if random.random() < 0.15 else t for t in row]


def entities(scheme, other, sentences):
    gold = [tags(s, scheme) for s in sentences]
    given = [spoiled(tags(s, other)) for s in sentences]
    report = classification_report(gold, given, output_dict=True, zero_division=0)
    pick = lambda r: [per_cent(r["precision"]), per_cent(r["recall"]), per_cent(r["f1-score"]), int(r["support"])]
    types = {k: pick(v) for k, v in report.items() if not k.endswith(" avg")}
    return dict(gold=gold, given=given, all=pick(report["micro avg"]), types=types)


ANSWERS = [
    ("Denver Broncos", ["Denver Broncos", "the Denver Broncos", "Broncos"]), ("The Denver Broncos!", ["Carolina Panthers"]),
    ("the the cat sat, a dog", ["The cat sat", "a dog sat on the cat"]), ("a", ["the"]), ("the", ["A cat"]), ("", ["x"]),
    ("theatre an", ["Theatre"]), ("U.S. $5,000", ["US 5000", "$ 5 000"]), ("ÉCOLE — l'été", ["école — lété"]),
    ("caf\u0065\u0301 the\u0301", ["café"]), ("the\u00a0end\u2003of it", ["end of it"]), ("well_known an-other", ["wellknown another"]),
    ("THE 3rd ÿan an\u00ad", ["3rd ÿan"]), ("x y z x", ["x x y", "z z z"]),
]

SUMMARIES = [
    ("The cat sat on the mat.", "the cat was sitting on the mat"), ("", "nothing here"), ("nothing", ""), ("", ""),
    ("Police killed the gunman", "police kill the gunman"), ("a b c d e f g", "g f e d c b a"),
    ("It's 3.5% -- naïve café\u212a \u0130x", "its 3 5 na ve caf k ix"), ("the the the the", "the cat the"),
    ("running runs runner easily dying cats generalizations oscillators", "run running ran easy die cat generalization oscillate"),
    ("one two three four five six seven eight nine ten", "one three five seven nine two four six eight ten"),
]


def rouge():
    s = rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=False)
    rows = [s.score(reference, given) for given, reference in SUMMARIES]
    return dict(given=[g for g, _ in SUMMARIES], reference=[r for _, r in SUMMARIES],
                **{k: [[per_cent(r[k].precision), per_cent(r[k].recall), per_cent(r[k].fmeasure)] for r in rows] for k in rows[0]})


sentences = [runs(random.randint(1, 12)) for _ in range(25)]
print(json.dumps(dict(
    classes=[classes(2, 40, 2), classes(6, 90, 5), classes(3, 1, 1)],
    entities=[entities(a, b, sentences) for a, b in (("IOB1", "IOB2"), ("IOB2", "IOB2"), ("IOBES", "IOB1"))],
    answers=[dict(given=g, gold=a, exact=per_cent(max(normalised(g) == normalised(x) for x in a)),
                  f1=per_cent(max(f1(g, x) for x in a))) for g, a in ANSWERS],
    rouge=rouge()), separators=(",", ":")))
