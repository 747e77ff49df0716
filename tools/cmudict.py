#!/usr/bin/env python3
"""Training, validation and test parts of the CMU pronouncing dictionary, and a tokenizer of letters and phonemes.

    python3 tools/cmudict.py cmudict.dict.gz cmudict [--stress]

writes into a folder train.tsv and valid.tsv (a word, a tab, one pronunciation: a line for each variant), test.jsonl (a word
with all its pronunciations, any of which is right), valid.jsonl (likewise) and tokenizer/.  Which part a word is in depends on
the word alone: crc32 of its UTF-8 bytes modulo 20 is 0 for the test and 1 for validation, so that all variants of a word stand
together and nothing depends on a seed.  Words with a digit, a dot or any sign but the apostrophe and the hyphen are left out.
Stress digits are dropped unless --stress is given; variants that differ in nothing else become one."""
import gzip
import json
import os
import re
import sys
import zlib

arguments = [a for a in sys.argv[1:] if a != "--stress"]
stress = "--stress" in sys.argv
path, folder = arguments
spoken = {}
with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as file:
    for line in file:
        word, *phonemes = line.split("#")[0].split()
        word = re.sub(r"\(\d+\)$", "", word)
        if not re.fullmatch(r"[a-z'\-]+", word):
            continue
        said = " ".join(phonemes if stress else (re.sub(r"\d", "", p) for p in phonemes))
        if said not in spoken.setdefault(word, []):
            spoken[word].append(said)

part = {0: "test", 1: "valid"}
os.makedirs(os.path.join(folder, "tokenizer"), exist_ok=True)
files = {name: open(os.path.join(folder, name), "w", encoding="utf-8")
         for name in ("train.tsv", "valid.tsv", "valid.jsonl", "test.jsonl")}
counts = dict.fromkeys(("train", "valid", "test"), 0)
for word in sorted(spoken):
    where = part.get(zlib.crc32(word.encode()) % 20, "train")
    counts[where] += 1
    if where != "test":
        for said in spoken[word]:
            files[where + ".tsv"].write(f"{word}\t{said}\n")
    if where != "train":
        files[where + ".jsonl"].write(json.dumps({"word": word, "spoken": spoken[word]}) + "\n")
for file in files.values():
    file.close()

# letters are lower case and stand alone, phonemes are upper case with perhaps a digit: one vocabulary for both sides
special = ["<pad>", "</s>", "<unk>"]
tokens = sorted({c for word in spoken for c in word}) + sorted({p for all in spoken.values() for s in all for p in s.split()})
vocab = {token: i for i, token in enumerate(special + tokens)}
plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
with open(os.path.join(folder, "tokenizer", "tokenizer.json"), "w", encoding="utf-8") as file:
    json.dump({"version": "1.0", "truncation": None, "padding": None,
               "added_tokens": [dict(plain, id=i, content=t, special=True) for i, t in enumerate(special)], "normalizer": None,
               "pre_tokenizer": {"type": "Split", "pattern": {"Regex": r"[A-Z]+[0-2]?|\S"}, "behavior": "Removed",
                                 "invert": True},
               "post_processor": {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}},
                                                                          {"SpecialToken": {"id": "</s>", "type_id": 0}}],
                                  "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}},
                                           {"SpecialToken": {"id": "</s>", "type_id": 0}}],
                                  "special_tokens": {"</s>": {"id": "</s>", "ids": [1], "tokens": ["</s>"]}}},
               "decoder": None, "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"}}, file)
with open(os.path.join(folder, "tokenizer", "tokenizer_config.json"), "w", encoding="utf-8") as file:
    json.dump({"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}, file)
print(f"{folder}: words {counts}, vocabulary {len(vocab)}")
