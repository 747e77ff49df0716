#!/usr/bin/env python3
"""A word-level tokenizer of a text whose words stand between blanks, the most frequent first, as adaptive softmax needs them.

    python3 tools/word_tokenizer.py ptb.train.txt.gz tokenizer

writes tokenizer.json and tokenizer_config.json into a folder.  Words are those of the text, without a limit; <eos>, which ends
every line, counts as one, and so does <unk>."""
import collections
import gzip
import json
import os
import sys

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
os.makedirs(folder, exist_ok=True)
with open(os.path.join(folder, "tokenizer.json"), "w", encoding="utf-8") as file:
    json.dump({"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": end_of_line,
               "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
               "model": {"type": "WordLevel", "vocab": ids, "unk_token": "<unk>"}}, file, ensure_ascii=False)
with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
    json.dump({"eos_token": "<eos>", "pad_token": "<eos>", "unk_token": "<unk>"}, file)
print(f"{folder}: {len(words)} words")
