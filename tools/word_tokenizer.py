#!/usr/bin/env python3
"""A word-level tokenizer of a text whose words stand between blanks, the most frequent first, as adaptive softmax needs them.

    python3 tools/word_tokenizer.py ptb.train.txt.gz tokenizer
    python3 tools/word_tokenizer.py --column eng.train.gz tokenizer

writes tokenizer.json and tokenizer_config.json into a folder.  Words are those of the text, without a limit; <eos>, which ends
every line, counts as one, and so does <unk>.  With --column words are the first column of a file in CoNLL's form, in lower case, and
those that come twice at least: [PAD], [UNK], [CLS], [SEP] and [MASK] stand before them."""
import collections
import gzip
import json
import os
import sys


def write(folder, tokenizer, config):
    os.makedirs(folder, exist_ok=True)
    for name, what in ("tokenizer.json", tokenizer), ("tokenizer_config.json", config):
        with open(os.path.join(folder, name), "w", encoding="utf-8") as out:
            json.dump(what, out, ensure_ascii=False)


def column(lines, folder):
    """A tokenizer of a tagger's words."""
    counts = collections.Counter(line[0].lower() for line in lines if line and line[0] != "-DOCSTART-")
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    kept = sorted((word for word in counts if counts[word] > 1), key=lambda word: (-counts[word], word))
    same = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    write(folder, {"version": "1.0", "truncation": None, "padding": None,
                   "added_tokens": [dict(same, id=i, content=t, special=True) for i, t in enumerate(special)],
                   "normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None,
                   "decoder": None, "model": {"type": "WordLevel", "vocab": {t: i for i, t in enumerate(special + kept)},
                                              "unk_token": "[UNK]"}},
          dict(pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]"))
    print(f"{folder}: {len(kept)} words")


if sys.argv[1] == "--column":
    with (gzip.open if sys.argv[2].endswith(".gz") else open)(sys.argv[2], "rt", encoding="utf-8") as columns:
        column([line.split() for line in columns], sys.argv[3])
    sys.exit()

path, folder = sys.argv[1:]
with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as file:
    lines = [line.split() for line in file]
counts = collections.Counter(word for line in lines for word in line + ["<eos>"])
counts.setdefault("<unk>", 0)
words = sorted(counts, key=lambda word: (-counts[word], word))
ids = {word: i for i, word in enumerate(words)}
plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
added = [dict(plain, id=ids["<eos>"], content="<eos>", special=True)]
end_of_line = {"type": "Replace", "pattern": {"String": "\n"}, "content": " <eos> "}
write(folder, {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": end_of_line,
               "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
               "model": {"type": "WordLevel", "vocab": ids, "unk_token": "<unk>"}},
      {"eos_token": "<eos>", "pad_token": "<eos>", "unk_token": "<unk>"})
print(f"{folder}: {len(words)} words")
