"""m2m_100_tok.py - a tokenizer as M2M-100's published directories have it, and what transformers makes of texts.

Writes tests/golden/tok/m2m_100: a SentencePiece model trained on the lines below, a vocab.json that numbers its pieces in another
order, and expected.json; and tests/golden/languages-m2m, a model with it.  Run: python3 tools/golden/m2m_100_tok.py
Made with transformers 5.22.2, sentencepiece 0.2.
"""
import json
import os
import shutil
import tempfile

import sentencepiece
import torch
from transformers import M2M100Config, M2M100ForConditionalGeneration, M2M100Tokenizer
from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES

out = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/golden/tok/m2m_100")
lines = ["the cat sat on the mat", "a dog and a cat ran to the other side of the road", "nobody saw them, or so they said",
         "numbers 1 2 3 stand there", "Das ist ein Satz über Bäume und Häuser"] * 4
texts = ["the cat", " two  spaces ", "", "Bäume and 漢", "漢字", "a </s> inside", "__de__ das Haus", "said: <unk>?", "▁", "x<pad>y __xx__"]
with tempfile.TemporaryDirectory() as folder:
    with open(f"{folder}/lines", "w", encoding="utf-8") as f:
        f.write("\n".join(lines))
    sentencepiece.SentencePieceTrainer.train(input=f"{folder}/lines", model_prefix=f"{folder}/m", vocab_size=90, model_type="bpe",
                                             character_coverage=1.0, minloglevel=2,
                                             normalization_rule_name="identity")
    os.makedirs(out, exist_ok=True)
    shutil.copy(f"{folder}/m.model", f"{out}/sentencepiece.bpe.model")
pieces = sentencepiece.SentencePieceProcessor(f"{out}/sentencepiece.bpe.model")
names = [pieces.id_to_piece(i) for i in range(pieces.get_piece_size())]
# the specials first, then the pieces backwards, without three of them and with one that the model does not have
rest = [w for w in reversed(names) if w not in ("<s>", "<pad>", "</s>", "<unk>")][3:] + ["漢"]
with open(f"{out}/vocab.json", "w", encoding="utf-8") as f:
    json.dump({w: i for i, w in enumerate(["<s>", "<pad>", "</s>", "<unk>"] + rest)}, f)
codes = [f"__{c}__" for c in ("en", "de", "fr")]
with open(f"{out}/tokenizer_config.json", "w", encoding="utf-8") as f:
    json.dump({"tokenizer_class": "M2M100Tokenizer", "src_lang": None, "tgt_lang": None,
               "additional_special_tokens": [f"__{c}__" for c in FAIRSEQ_LANGUAGE_CODES["m2m100"]]}, f)
tok = M2M100Tokenizer.from_pretrained(out)
cases = []
for text in texts:
    ids = tok(text).input_ids
    cases.append({"text": text, "ids": ids, "plain": tok(text, add_special_tokens=False).input_ids,
                  "decoded": tok.decode(ids, skip_special_tokens=True)})
with open(f"{out}/expected.json", "w", encoding="utf-8") as f:
    json.dump({"languages": {c: tok.get_lang_id(c[2:-2]) for c in codes}, "cases": cases}, f, indent=1)

# A small model with this tokenizer, and what it translates from and into three languages.
folder = os.path.join(out, "../../languages-m2m")
os.makedirs(folder, exist_ok=True)
for name in ("sentencepiece.bpe.model", "vocab.json", "tokenizer_config.json"):
    shutil.copy(f"{out}/{name}", folder)
torch.manual_seed(5)
config = M2M100Config(vocab_size=tok.vocab_size + 108, d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
                      decoder_attention_heads=2, encoder_ffn_dim=20, decoder_ffn_dim=20, max_position_embeddings=64, init_std=0.5,
                      pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=2)
model = M2M100ForConditionalGeneration(config).eval()
model.generation_config.max_length, model.generation_config.num_beams = 12, 2
# the eight made-up words behind the languages are no text
model.generation_config.suppress_tokens = list(range(tok.vocab_size + 100, config.vocab_size))
model.save_pretrained(folder)
lines, cases = ["the cat sat on the mat", "a dog and"], []
for source, target in (("en", "de"), ("fr", "en"), ("de", "fr")):
    tok.src_lang = source
    made = [model.generate(**tok(line, return_tensors="pt"), forced_bos_token_id=tok.get_lang_id(target)) for line in lines]
    cases.append({"from": source, "to": target, "sources": [tok(line).input_ids for line in lines], "ids": [x[0, 1:].tolist() for x in made]})
with open(f"{folder}/expected.json", "w", encoding="utf-8") as f:
    json.dump({"lines": lines, "cases": cases}, f)
