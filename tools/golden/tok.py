#!/usr/bin/env python3
"""tok.py - golden files for the tokenizer tests, made with Hugging Face tokenizers and SentencePiece.

    python tools/golden/tok.py            writes tests/golden/tok/
    python tools/golden/tok.py --unicode  prints the table `newer` of src/tok/unicode/unicode.c

components.jsonl has one small tokenizer a line with what the reference makes of some texts; made with tokenizers 0.23.3.
spm/*.model are tiny SentencePiece models with their encodings in spm.jsonl; made with sentencepiece 0.2.2.
"""
import io
import json
import os
import sys
from pathlib import Path

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

OUT = Path(__file__).resolve().parents[2] / "tests" / "golden" / "tok"

TEXTS = [
    "", " ", "a", "Hello world", "  Hello   world  ", "I like to eat apples.", "J'aime manger des pommes, n'est-ce pas ?",
    "It's they'll we've I'm you'd don't 'quoted'", "naïve café — Ünïcödé e\u0301\u0302 ǆ İstanbul ẞtraße", "東京は日本の首都です。漢字kanji",
    "Привет, мир! 3.14 ½ ² Ⅷ ٣", "👩‍👩‍👧 👍🏽 e\u200bx\ufeffy", "tab\there\nnew\r\nline\u00a0nbsp\u3000wide", "x" * 40, "3141592 abc123def",
    "the-final--countdown ... !!", "ﬁ ﬀ ① ㈱ ｶﾞ 한국어 각", "<s>hello</s> [MASK] <mask>x [CLS]", "foo [MASK]  bar <tag> untagged tagtag tag", "a\x01b\x07c\ufffdd",
    "न\u093cमस्ते สวัสดี \u0301lone", "▁already ▁▁meta", "ABC abc ÀÉÎ", "don't do not stop , please ! ( ok ) 's",
]
PAIRS = [("Hello world", "I like apples."), ("", "x"), ("a b c", "")]
CORPUS = [t for t in TEXTS if t] * 3 + ["low lower lowest new newer newest wide wider widest", "apples and pommes and apples like eating"] * 5


def case(tok, special, text, pair=None):
    e = tok.encode(text, pair, add_special_tokens=special)
    out = {"text": text, "special": special, "ids": e.ids, "offsets": [x for span in e.offsets for x in span]}
    if pair is not None:
        out["pair"] = pair
    if any(e.type_ids):
        out["types"] = e.type_ids
    return out


def run(tok, name, whole):
    """Whole: with special tokens, decoding and pairs; otherwise just what becomes of the texts."""
    cases = [case(tok, whole, text) for text in TEXTS]
    for c in cases if whole else []:
        c["decoded"] = tok.decode(c["ids"], skip_special_tokens=False)
        c["skipped"] = tok.decode(c["ids"], skip_special_tokens=True)
    if whole:
        cases += [case(tok, special, a, b) for a, b in PAIRS for special in (False, True)]
    for c in cases if "without unknown" in name else []:
        del c["offsets"]  # the reference's slip by the characters it drops
    return {"name": name, "tokenizer": json.loads(tok.to_str()), "cases": cases}


def chars(normalizer):
    """A model of single characters, to see what a normaliser does and where it thinks that came from."""
    seen = sorted({c for t in TEXTS for c in normalizer.normalize_str(t)})
    vocab = {"<unk>": 0, **{c: i + 1 for i, c in enumerate(seen)}}
    tok = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>"))
    tok.normalizer = normalizer
    return tok


def words(pre, normalizer=None, model=None):
    """A model of whole pieces, to see what a splitter does."""
    norm = normalizer.normalize_str if normalizer else str
    seen = sorted({p for t in TEXTS + [x for ab in PAIRS for x in ab] for p, _ in pre.pre_tokenize_str(norm(t))})
    tok = Tokenizer(model or models.WordLevel(vocab={"<unk>": 0, **{p: i + 1 for i, p in enumerate(seen)}}, unk_token="<unk>"))
    tok.pre_tokenizer = pre
    if normalizer:
        tok.normalizer = normalizer
    return tok


def trained(model, trainer, **parts):
    tok = Tokenizer(model)
    for key, value in parts.items():
        setattr(tok, key, value)
    tok.train_from_iterator(CORPUS, trainer)
    return tok


def normaliser_cases():
    N = normalizers
    yield from ((n, chars(x)) for n, x in [
        ("NFC", N.NFC()), ("NFD", N.NFD()), ("NFKC", N.NFKC()), ("NFKD", N.NFKD()), ("Lowercase", N.Lowercase()), ("Nmt", N.Nmt()),
        ("StripAccents", N.Sequence([N.NFD(), N.StripAccents()])), ("Strip", N.Strip()), ("Strip left", N.Strip(True, False)),
        ("Strip right", N.Strip(False, True)), ("Replace string", N.Replace("a", "bb")), ("Replace regex", N.Replace(Regex(r"\s+"), "_")),
        ("Replace empty", N.Replace(Regex(r"[aeiou]"), "")), ("Prepend", N.Prepend("▁")), ("ByteLevel normalizer", N.ByteLevel()),
        ("Bert", N.BertNormalizer()), ("Bert cased", N.BertNormalizer(lowercase=False)),
        ("Bert accents", N.BertNormalizer(strip_accents=False)), ("Bert bare", N.BertNormalizer(False, False, False, False)),
        ("Sequence", N.Sequence([N.NFKC(), N.Sequence([N.Lowercase(), N.Replace("e", "3")]), N.Strip()]))])


def splitter_cases():
    P = pre_tokenizers
    for behaviour in ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"):
        yield "Split string " + behaviour, words(P.Split("-", behaviour))
        yield "Split regex " + behaviour, words(P.Split(Regex(r"[\s.]"), behaviour))
        yield "Punctuation " + behaviour, words(P.Punctuation(behaviour))
        yield "Split invert " + behaviour, words(P.Split(Regex(r"\w+"), behaviour, invert=True))
    cl100k = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    yield from ((n, words(x)) for n, x in [
        ("Whitespace", P.Whitespace()), ("WhitespaceSplit", P.WhitespaceSplit()), ("BertPreTokenizer", P.BertPreTokenizer()),
        ("Digits", P.Digits()), ("Digits individual", P.Digits(True)), ("CharDelimiterSplit", P.CharDelimiterSplit(",")),
        ("Metaspace always", P.Metaspace()), ("Metaspace first", P.Metaspace(prepend_scheme="first")),
        ("Metaspace never", P.Metaspace(prepend_scheme="never")), ("Metaspace whole", P.Metaspace(split=False)),
        ("ByteLevel", P.ByteLevel(add_prefix_space=False)), ("ByteLevel prefix", P.ByteLevel()),
        ("ByteLevel bare", P.ByteLevel(add_prefix_space=False, use_regex=False)), ("cl100k", P.Split(Regex(cl100k), "isolated")),
        ("Sequence", P.Sequence([P.WhitespaceSplit(), P.Punctuation(), P.Digits(True), P.Metaspace(prepend_scheme="first")]))])


def model_cases():
    P, D = pre_tokenizers, decoders
    byte = dict(pre_tokenizer=P.ByteLevel(add_prefix_space=False), decoder=D.ByteLevel())
    small = dict(vocab_size=330, show_progress=False)
    yield "BPE bytes", trained(models.BPE(), trainers.BpeTrainer(initial_alphabet=P.ByteLevel.alphabet(), **small), **byte)
    yield "BPE bytes lacking some", trained(models.BPE(unk_token="<unk>"), trainers.BpeTrainer(special_tokens=["<unk>"], **small), **byte)
    yield "BPE bytes without unknown", trained(models.BPE(), trainers.BpeTrainer(limit_alphabet=40, **small), **byte)
    meta = dict(pre_tokenizer=P.Metaspace(), decoder=D.Metaspace())
    for fuse in (False, True):
        yield f"BPE metaspace fuse {fuse}", trained(models.BPE(unk_token="<unk>", fuse_unk=fuse),
                                                   trainers.BpeTrainer(special_tokens=["<unk>"], limit_alphabet=60, **small), **meta)
    yield "BPE suffix", trained(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"),
                                trainers.BpeTrainer(special_tokens=["<unk>"], end_of_word_suffix="</w>", **small),
                                pre_tokenizer=P.Whitespace(), decoder=D.BPEDecoder())
    yield "BPE prefix", trained(models.BPE(unk_token="<unk>", continuing_subword_prefix="##"),
                                trainers.BpeTrainer(special_tokens=["<unk>"], continuing_subword_prefix="##", **small),
                                pre_tokenizer=P.Whitespace(), decoder=D.WordPiece())
    base = json.loads(trained(models.BPE(unk_token="<unk>"), trainers.BpeTrainer(special_tokens=["<unk>"], limit_alphabet=50, **small)).to_str())
    vocab = base["model"]["vocab"]
    for b in range(256):
        vocab.setdefault(f"<0x{b:02X}>", len(vocab))
    base["model"].update(byte_fallback=True, fuse_unk=True)
    base["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                                                             {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]}
    base["decoder"] = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
                                                       {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    yield "BPE byte fallback, whole text", Tokenizer.from_str(json.dumps(base))
    base["model"]["ignore_merges"] = True
    yield "BPE ignore merges", Tokenizer.from_str(json.dumps(base))
    wp = trained(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20), trainers.WordPieceTrainer(
        special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"], **small), normalizer=normalizers.BertNormalizer(),
        pre_tokenizer=P.BertPreTokenizer(), decoder=D.WordPiece())
    wp.post_processor = processors.BertProcessing(("[SEP]", wp.token_to_id("[SEP]")), ("[CLS]", wp.token_to_id("[CLS]")))
    yield "WordPiece", wp
    uni = dict(unk_token="<unk>", special_tokens=["<unk>", "<s>", "</s>"], show_progress=False, vocab_size=200)
    yield "Unigram", trained(models.Unigram(), trainers.UnigramTrainer(**uni), **meta)
    u = json.loads(trained(models.Unigram(), trainers.UnigramTrainer(**uni), **meta).to_str())
    u["model"]["vocab"] = [p for p in u["model"]["vocab"] if all(ord(c) < 0x250 or c == "▁" for c in p[0])]
    u["model"]["vocab"] += [[f"<0x{b:02X}>", -20.0] for b in range(256)]
    u["model"]["byte_fallback"] = True
    u["decoder"] = {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}]}
    yield "Unigram byte fallback", Tokenizer.from_str(json.dumps(u))


def rest_cases():
    P, D, R = pre_tokenizers, decoders, processors
    tok = words(P.Whitespace())
    tok.add_special_tokens(["[CLS]", "[SEP]", AddedToken("[MASK]", lstrip=True, special=True, normalized=False)])
    tok.add_tokens([AddedToken("tag", single_word=True), AddedToken("<tag>", rstrip=True), AddedToken("foo", lstrip=True, rstrip=True)])
    tok.normalizer = normalizers.Lowercase()
    ids = [(t, tok.token_to_id(t)) for t in ("[CLS]", "[SEP]")]
    yield "Added tokens", tok
    tok = Tokenizer.from_str(tok.to_str())
    tok.post_processor = R.TemplateProcessing(single="[CLS]:3 $A:1 [SEP]", pair="$B:2 [SEP]:1 $A:0 [CLS] $A:4", special_tokens=ids)
    yield "TemplateProcessing", tok
    byte = trained(models.BPE(), trainers.BpeTrainer(initial_alphabet=P.ByteLevel.alphabet(), special_tokens=["<s>", "</s>"], vocab_size=320,
                                                    show_progress=False), pre_tokenizer=P.ByteLevel(), decoder=D.ByteLevel())
    byte.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True)])
    for trim in (True, False):
        for prefix in (True, False):
            byte.pre_tokenizer = P.ByteLevel(add_prefix_space=prefix)
            byte.post_processor = R.RobertaProcessing(("</s>", 1), ("<s>", 0), trim_offsets=trim, add_prefix_space=prefix)
            yield f"RobertaProcessing trim {trim} prefix {prefix}", byte
    byte.post_processor = R.Sequence([R.ByteLevel(trim_offsets=True), R.TemplateProcessing(single="<s> $A </s>", pair="<s> $A </s> $B:1 </s>:1",
                                                                                          special_tokens=[("<s>", 0), ("</s>", 1)])])
    yield "Sequence of processors", byte
    for name, dec in [("none", None), ("WordPiece", D.WordPiece("el", True)), ("CTC", D.CTC("l", "o", True)), ("Strip", D.Strip("e", 1, 0)), ("Fuse", D.Fuse()),
                      ("Replace regex", D.Sequence([D.Replace(Regex("[aeiou]+"), "*"), D.Fuse()])), ("BPEDecoder", D.BPEDecoder("e")),
                      ("Metaspace first", D.Metaspace(replacement="a", prepend_scheme="first")), ("Metaspace never", D.Metaspace(replacement="a", prepend_scheme="never"))]:
        tok = words(P.Whitespace())
        if dec:
            tok.decoder = dec
        yield "Decoder " + name, tok


def sentencepiece_cases():
    os.chdir(OUT / "spm")  # the models keep the name of the rules
    kinds = [("unigram", {}), ("bpe", {}), ("char", {}), ("word", {}), ("unigram-bytes", {"byte_fallback": True}), ("bpe-bytes", {"byte_fallback": True}),
             ("unigram-plain", {"add_dummy_prefix": False, "remove_extra_whitespaces": False, "normalization_rule_name": "identity"}),
             ("unigram-symbols", {"user_defined_symbols": ["<tag>", "apples"], "control_symbols": ["<ctl>"]}),
             ("bpe-symbols", {"user_defined_symbols": ["<tag>", "apples"]}), ("bpe-suffix", {"treat_whitespace_as_suffix": True})]
    text = [t.replace("\n", " ").replace("\r", " ") for t in CORPUS]
    for name, options in kinds:
        model = io.BytesIO()
        size = {"vocab_size": 400 if "bytes" in name else 150, "hard_vocab_limit": False} if name.split("-")[0] in ("unigram", "bpe") else {}
        if name.split("-")[0] == "bpe":
            size = {"vocab_size": 520 if "bytes" in name else 290}
        if name in ("char", "word"):
            size = {"use_all_vocab": True}
        rule = {} if "normalization_rule_name" in options else {"normalization_rule_tsv": "rules.tsv"}
        sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(text), model_writer=model, model_type=name.split("-")[0], character_coverage=0.99,
                                                 minloglevel=2, num_threads=1, **size, **rule, **options)
        (OUT / "spm" / f"{name}.model").write_bytes(model.getvalue())
        sp = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
        yield {"model": f"{name}.model", "cases": [{"text": t, "ids": sp.encode(t), "decoded": sp.decode(sp.encode(t))} for t in TEXTS]}


def unicode_table():
    """Punctuation, accents and control characters that the reference's old tables do not have."""
    import unicodedata
    punct = pre_tokenizers.Punctuation()
    clean = normalizers.BertNormalizer(True, False, False, False)
    accents = normalizers.BertNormalizer(False, False, True, False)
    ranges = []
    for c in range(0x80, 0x110000):
        ch, kind = chr(c), unicodedata.category(chr(c))
        newer = ((kind[0] == "P" and len(punct.pre_tokenize_str(f"a{ch}a")) == 1) or (kind == "Mn" and accents.normalize_str("a" + ch) != "a")
                 or (kind in ("Cc", "Cf", "Co") and clean.normalize_str(f"a{ch}a") != "aa" and not ch.isspace()))
        if newer and ranges and ranges[-1][1] == c - 1:
            ranges[-1][1] = c
        elif newer:
            ranges.append([c, c])
    print(", ".join(f"{{0x{a:X}, 0x{b:X}}}" for a, b in ranges))


def main():
    if "--unicode" in sys.argv:
        unicode_table()
        return
    OUT.mkdir(parents=True, exist_ok=True)
    with open(OUT / "components.jsonl", "w", encoding="utf-8") as f:
        for group in (normaliser_cases, splitter_cases, model_cases, rest_cases):
            for name, tok in group():
                f.write(json.dumps(run(tok, name, group in (model_cases, rest_cases)), ensure_ascii=False, separators=(",", ":")) + "\n")
    (OUT / "spm").mkdir(exist_ok=True)
    rules = {"ﬁ": "fi", "①": "1", "\u3000": " ", "\u00a0": " ", "\t": " ", "\r": " ", "\n": " ", "Ⅷ": "VIII", "e\u0301": "é", "\u200b": "", "\x07": ""}
    (OUT / "spm" / "rules.tsv").write_text("".join(
        " ".join(f"{ord(c):X}" for c in a) + "\t" + " ".join(f"{ord(c):X}" for c in b) + "\n" for a, b in sorted(rules.items())))
    with open(OUT / "spm.jsonl", "w", encoding="utf-8") as f:
        for line in sentencepiece_cases():
            f.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
