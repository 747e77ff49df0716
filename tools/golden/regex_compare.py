#!/usr/bin/env python3
"""regex_compare.py - where the program and tokenizers (Oniguruma) cut a text, by random regexes.

    python tools/golden/regex_compare.py PROGRAM [CASES [SEED]]

A pattern that the program refuses or gives up on counts as refused.  Ends with 1 if any cut differs.
"""
import json
import os
import random
import subprocess
import sys
import tempfile

os.environ["RUST_BACKTRACE"] = "0"
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

TEXT = ("The year 2024, it's 3.5 µm — naïve café №42!\ndon't can_not a-b  x\ty\nz aaabab^^]]--bc ABC ss 日本語 テスト ー々 한국어 ÀÉß ½²³ⅣⅫ Ⓐⓑ x̂ ـ٣٤ "
        "a&b && [c] ]d[ ^e-f {2}\u200d\ufeff\u00a0\u2028end\r\n\r\n x bb aa")
LITERALS = list("abcxyzABCS '.,-_^]{}é日&:KkſİI") + [r"\.", r"\-", r"\]", r"\[", r"\^", r"\\", r"\n", r"\t", r"\r", r"\x41", r"\x{e9}", r"\xe9", r"\x4", r"\u00e9",
                                                  r"\v", r"\f", "ss", "ﬁ"]
SETS = [r"\s", r"\S", r"\w", r"\W", r"\d", r"\D", r"\h", r"\H", "."] + [r"\p{%s}" % p for p in
        "L N P M Lu Ll ^Lu Nd Han Latin Hiragana Katakana Arabic Cyrillic Greek Alphabetic Alpha Upper Letter".split()] + [r"\P{L}"]
QUANTIFIERS = "* + ? *? +? ?? *+ ++ ?+ {2} {1,2} {,2} {2,} {1,3}? {2}? {1,2}+ {2}+ {,} {a {0} {0,1}".split()
GROUPS = ["(", "(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:", "(?-i:"]


def char_class(depth=0):
    s = "[" + random.choice(["", "", "^"]) + (random.choice("]^-") if random.random() < 0.1 else "")
    for _ in range(random.randint(1, 4)):
        r = random.random()
        if r < 0.35:
            s += random.choice(["a-c", "A-Z", "0-9", "à-ÿ", "x", "_", "b", "^", "&", "'", " "])
        elif r < 0.6:
            s += random.choice([r"\s", r"\w", r"\d", r"\p{L}", r"\p{N}", r"\n", r"\r", r"\]", r"\-", r"\h", r"\p{Lu}", r"\^"])
        elif r < 0.75:
            s += random.choice(["[:alpha:]", "[:digit:]", "[:punct:]", "[:^alpha:]", "[:space:]", "[:upper:]"])
        elif r < 0.88 and depth < 2:
            s += char_class(depth + 1)
        elif depth < 2:
            s += "&&" + (char_class(depth + 1) if random.random() < 0.7 else random.choice(["a-z", r"\w", "^a"]))
    return s + "]"


def atom(depth):
    r = random.random()
    if r < 0.4:
        return random.choice(LITERALS)
    if r < 0.6:
        return random.choice(SETS)
    if r < 0.78:
        return char_class()
    if r < 0.84:
        return random.choice(["^", "$", r"\b", r"\B", r"\A", r"\z"])
    return "a" if depth > 2 else random.choice(GROUPS) + pattern(depth + 1) + ")"


def pattern(depth=0):
    branches = []
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        branches.append("".join(atom(depth) + (random.choice(QUANTIFIERS) if random.random() < 0.45 else "") for _ in range(random.randint(1, 4))))
    return "|".join(branches)


def expected(regex):
    """None where the reference refuses the pattern or gives up."""
    try:
        return [list(at) for _, at in Split(Regex(regex), "isolated").pre_tokenize_str(TEXT)]
    except BaseException as e:  # a panic of Rust is no Exception
        if isinstance(e, KeyboardInterrupt):
            raise
        return None


def cut(program, folder, regex):
    path = os.path.join(folder, "tokenizer.json")
    split = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
    with open(path, "w", encoding="utf-8") as f:
        json.dump({"version": "1.0", "pre_tokenizer": split, "model": {"type": "WordLevel", "vocab": {"<unk>": 0}, "unk_token": "<unk>"}}, f)
    run = subprocess.run([program, "tokenize", "-m", path, "--json", os.path.join(folder, "text")], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    return None if run.returncode == 1 else json.loads(run.stdout)["offsets"]


def main():
    program, cases, seed = sys.argv[1], int((sys.argv[2:] or [1000])[0]), int((sys.argv[3:] or [1])[0])
    random.seed(seed)
    same = refused = different = 0
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "text"), "w", encoding="utf-8", newline="") as f:
            f.write(TEXT)
        while same + refused + different < cases:
            regex = random.choice(["", "", "", "(?i)"]) + pattern()
            want = expected(regex)
            if want is None:
                continue
            ours = cut(program, folder, regex)
            refused += ours is None
            same += ours == want
            if ours is not None and ours != want:
                different += 1
                print("differs:", json.dumps(regex, ensure_ascii=False))
    print(f"{same} the same, {refused} refused, {different} different")
    sys.exit(different > 0)


main()
