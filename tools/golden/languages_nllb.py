"""languages_nllb.py - small NLLB models, with transformers' own tokenizer, and what they translate from and into their languages.

Writes tests/golden/languages-nllb, whose sources begin with their language, and languages-nllb-legacy, where it stands behind the end
(legacy_behaviour, as models of 2022 were used).  Run: python3 tools/golden/languages_nllb.py
Made with torch 2.15.0, transformers 5.22.2, tokenizers 0.23.
"""
import json
import os

import torch
from transformers import M2M100Config, M2M100ForConditionalGeneration, NllbTokenizer

golden = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/golden")
letters = sorted(set("thecatsonmdgr"))
merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("a", "t"), ("c", "at"), ("▁", "cat"), ("▁", "a"), ("▁", "s")]
vocab = {w: i for i, w in enumerate(["<s>", "<pad>", "</s>", "<unk>", "▁"] + letters + ["".join(m) for m in merges])}
lines = ["the cat sat on the mat", "a dog and"]


def write(name, legacy):
    folder = f"{golden}/{name}"
    os.makedirs(folder, exist_ok=True)
    tok = NllbTokenizer(vocab=vocab, merges=merges, extra_special_tokens=["deu_Latn", "eng_Latn", "fra_Latn"], src_lang="eng_Latn",
                        legacy_behaviour=legacy)
    tok.save_pretrained(folder)
    torch.manual_seed(5)
    config = M2M100Config(vocab_size=len(tok), d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
                          decoder_attention_heads=2, encoder_ffn_dim=20, decoder_ffn_dim=20, max_position_embeddings=64, init_std=0.5,
                          pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=2)
    model = M2M100ForConditionalGeneration(config).eval()
    model.generation_config.max_length, model.generation_config.num_beams = 12, 2
    model.save_pretrained(folder)
    cases = []
    for source, target in (("eng_Latn", "deu_Latn"), ("fra_Latn", "eng_Latn"), ("deu_Latn", "fra_Latn")):
        tok.src_lang = source
        out = [model.generate(**tok(line, return_tensors="pt"), forced_bos_token_id=tok.convert_tokens_to_ids(target)) for line in lines]
        cases.append({"from": source, "to": target, "sources": [tok(line).input_ids for line in lines], "ids": [x[0, 1:].tolist() for x in out]})
    with open(f"{folder}/expected.json", "w", encoding="utf-8") as f:
        json.dump({"lines": lines, "cases": cases}, f)


write("languages-nllb", False)
write("languages-nllb-legacy", True)
