"""Tables for adapting one pre-trained model to several tasks, from the corpora as they are distributed: SST-2 (GLUE's phrases; the sentences of the
Stanford test set), TREC, AG News.
Run: python3 tools/texts.py CORPORA DIR

  sst2-{train,held,test}.tsv             held: GLUE's dev set, for settings; test: the 1,821 sentences, for figures
  trec-{train,held,test}.tsv             held: the last 500 questions of the training file
  turn-{train,test}.tsv                  SST-2, TREC and AG News in one table, labels "sst2:0", "trec:HUM", "agnews:World", for recipes/texts-in-turn.ini"""
import csv
import gzip
import os
import sys

NEWS = ["World", "Sports", "Business", "Sci/Tech"]


def lines(path, encoding="utf8"):
    with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding=encoding) as f:
        return f.read().split("\n")


def sst2(root):
    phrases = [line.split("\t") for line in lines(root + "/sst2/glue/train.tsv.gz")[1:] if "\t" in line]
    dev = [line.split("\t") for line in lines(root + "/sst2/glue/dev.tsv")[1:] if "\t" in line]
    test = [line.split(" ", 1)[::-1] for line in lines(root + "/sst2/sentence/stsa.binary.test") if " " in line]
    return phrases, dev, test


def trec(root):
    def read(name):
        return [(line.split(" ", 1)[1], line.split(":")[0]) for line in lines(f"{root}/trec/{name}", "latin1") if " " in line]
    train = read("train_5500.label")
    return train[:-500], train[-500:], read("TREC_10.label")


def agnews(root):
    rows = [line.split("\t") for line in lines(root + "/agnews/train10k.tsv.gz")]
    train = [(text[:400], label) for text, label in (row for row in rows if len(row) == 2) if label in NEWS]
    with gzip.open(root + "/agnews/test.csv.gz", "rt", encoding="utf8") as f:
        test = [(row[-1][:400], NEWS[int(row[0]) - 1]) for row in csv.reader(f) if len(row) > 1]
    seen = {text for text, _ in test}
    return [row for row in train if row[0] not in seen], test[:1000]


def write(path, rows):
    with open(path, "w", encoding="utf8") as f:
        f.write("text\tlabel\n")
        for text, label in rows:
            text = " ".join(text.split())
            if text:
                f.write(f"{text}\t{label}\n")


def tagged(task, rows):
    return [(text, f"{task}:{label}") for text, label in rows]


def main(root, out):
    os.makedirs(out, exist_ok=True)
    tables = {"sst2": sst2(root), "trec": trec(root)}
    for task, parts in tables.items():
        for part, rows in zip(("train", "held", "test"), parts):
            write(f"{out}/{task}-{part}.tsv", rows)
    phrases, news = tables["sst2"][0], agnews(root)
    write(out + "/turn-train.tsv", tagged("sst2", phrases[:12000]) + tagged("trec", tables["trec"][0]) + tagged("agnews", news[0]))
    write(out + "/turn-test.tsv", tagged("sst2", tables["sst2"][2]) + tagged("trec", tables["trec"][2]) + tagged("agnews", news[1]))


if __name__ == "__main__":
    main(*sys.argv[1:])
