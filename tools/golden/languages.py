"""languages.py - a small mBART-50 with a tokenizer of its own, and what transformers translates from and into its languages.

Writes tests/golden/languages: the model (random weights), tokenizer.json and expected.json.  Run: python3 tools/golden/languages.py
Made with torch 2.15.0, transformers 5.22.2, tokenizers 0.23.
"""
import json
import os

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import MBartConfig, MBartForConditionalGeneration

folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/golden/languages")
os.makedirs(folder, exist_ok=True)
words = ["<s>", "<pad>", "</s>", "<unk>"] + "the a cat dog house mat sat runs on in and le la chat chien".split()
languages = ["en_XX", "de_DE", "fr_XX", "pt_BR", "pt_PT"]
tok = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
tok.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tok.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>"] + languages)
ids = {w: tok.token_to_id(w) for w in languages + ["</s>"]}
tok.post_processor = processors.TemplateProcessing(single="en_XX $A </s>", special_tokens=[(w, ids[w]) for w in ("en_XX", "</s>")])
tok.save(f"{folder}/tokenizer.json")

torch.manual_seed(5)
config = MBartConfig(vocab_size=tok.get_vocab_size(), d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2,
                     decoder_attention_heads=2, encoder_ffn_dim=20, decoder_ffn_dim=20, max_position_embeddings=24, init_std=0.5,
                     pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=2)
model = MBartForConditionalGeneration(config).eval()
model.generation_config.max_length, model.generation_config.num_beams = 12, 2
model.save_pretrained(folder)

lines = ["the cat sat on the mat", "a dog runs"]
expected = []
for source, target in (("en_XX", "de_DE"), ("fr_XX", "en_XX"), ("de_DE", "fr_XX")):
    texts = []
    for line in lines:
        enc = tok.encode(line).ids
        enc[0] = ids[source]
        out = model.generate(input_ids=torch.tensor([enc]), attention_mask=torch.ones(1, len(enc), dtype=torch.long),
                             forced_bos_token_id=ids[target])
        texts.append(out[0, 1:].tolist())
    expected.append({"from": source, "to": target, "ids": texts})
with open(f"{folder}/expected.json", "w", encoding="utf-8") as f:
    json.dump({"lines": lines, "cases": expected}, f)
