"""Where tokenizers cuts texts by regexes of Oniguruma: offsets of the pieces that Split makes, isolated.

tests/golden/tok/regexes.json: {"texts": [...], "cases": [{"regex": ..., "offsets": [[[from, to], ...] for each text]}]}.
(made with tokenizers 0.23.3)"""
import json
import pathlib

from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

TEXTS = ["The year 2024, it's 3.5 µm — naïve café №42!", "don't can_not a-b  x\ty\nz", "日本語 テスト ー々 한국어 ไทย", "ÀÉß ½²³ⅣⅫ Ⓐⓑ x̂ ـ٣٤",
         "deadBEEF 0x1F gG \u200d\ufeff\u00a0\u2028end", "a&b && [c] ]d[ ^e-f", "", " ", "éa\u0301 i\u0307 İı"]
PATTERNS = [r"\b", r"\B", r"\bn", r"\b\w+\b", r"\h+", r"\H+", r"[\h_]+", r"[[:alpha:]]+", r"[[:digit:]]", r"[[:upper:]]", r"[[:lower:]]+", r"[[:space:]]+",
            r"[[:punct:]]", r"[[:alnum:]]+", r"[[:cntrl:]]", r"[[:graph:]]+", r"[[:print:]]+", r"[[:word:]]+", r"[[:xdigit:]]+", r"[[:blank:]]+",
            r"[[:ascii:]]+", r"[[:^alpha:]]+", r"[[:^ascii:]]+", r"[^[:alpha:]]+", r"[^[:space:][:punct:]]+", r"[a-z&&[^aeiou]]+", r"[a-z&&[a-m]&&[^c]]",
            r"[^a-z&&[aeiou]]+", r"[\w&&[^\d_]]+", r"[a[bc]x-z]+", r"[^a[bc]]+", r"[[:alpha:]&&[^\p{Lu}]]+", r"[\p{L}&&\p{Latin}]+", r"(?i:[a-z[x&]])+",
            r"[^\s&&[^\n]]{2}", r"(?<=[a-z&&[^t]])\W", r"[^^]\w", r"[^^]{2}+b", r"[^^&&[a-f]]", r"[a-f&&^b]", r"[a[^^]&&[b-y]]+", r"\x61{2}?n",
            r"a\x{6e}{1,2}+", r"\u0065{2}?a", r"[\x61\x{62}]"]


def main():
    cases = []
    for pattern in PATTERNS:
        cut = Split(Regex(pattern), "isolated")
        cases.append({"regex": pattern, "offsets": [[list(at) for _, at in cut.pre_tokenize_str(t)] for t in TEXTS]})
    path = pathlib.Path(__file__).resolve().parents[2] / "tests/golden/tok/regexes.json"
    rows = ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases)
    path.write_text('{"texts": %s,\n"cases": [\n%s\n]}\n' % (json.dumps(TEXTS, ensure_ascii=False), rows))


main()
