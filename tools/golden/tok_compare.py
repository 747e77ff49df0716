#!/usr/bin/env python3
"""tok_compare.py - the program's ids and offsets beside the reference's, on any text.

    python tools/golden/tok_compare.py PROGRAM TEXT TOKENIZER...

Each TOKENIZER is a tokenizer.json (.gz), held against Hugging Face tokenizers, or a SentencePiece model, held against
sentencepiece.  TEXT is one text: a megabyte of many languages, say.  Ends with 1 if any ids differ; offsets are reported.
"""
import gzip
import json
import subprocess
import sys

import sentencepiece
from tokenizers import Tokenizer


def reference(path, text):
    if path.endswith((".model", ".spm")):
        return sentencepiece.SentencePieceProcessor(model_file=path).encode(text), None
    opener = gzip.open if path.endswith(".gz") else open
    with opener(path, "rt", encoding="utf-8") as f:
        tok = Tokenizer.from_str(f.read())
    tok.no_truncation()
    tok.no_padding()
    e = tok.encode(text, add_special_tokens=False)
    return e.ids, [list(o) for o in e.offsets]


def main():
    program, source, *tokenizers = sys.argv[1:]
    with open(source, encoding="utf-8", newline="") as f:
        text = f.read()
    failed = False
    for path in tokenizers:
        ids, offsets = reference(path, text)
        out = subprocess.run([program, "tokenize", "-m", path, "--json", "--no-special", source], stdout=subprocess.PIPE, check=True).stdout
        ours = json.loads(out)
        first = next((i for i, (a, b) in enumerate(zip(ids, ours["ids"])) if a != b), None)
        same = ids == ours["ids"]
        moved = sum(a != b for a, b in zip(offsets, ours["offsets"])) if same and offsets else 0
        failed |= not same
        print(f"{path}: {len(ids)} ids, " + ("equal" if same else f"{len(ours['ids'])} here, first difference at {first}") + f", {moved} offsets differ")
    sys.exit(failed)


if __name__ == "__main__":
    main()
