"""translate.py - a small MarianMTModel directory with its tokenizer, and what transformers translates with it.

Writes tests/golden/translate: the model (random weights), source.spm, target.spm, vocab.json, lines.txt, and
expected.jsonl with, for each line, the three best of four beams, their scores, and the mean cross-attention of the best.
Made with torch 2.15.0, transformers 5.22.2, sentencepiece 0.2.1.
"""
import json
import os
import sys

import sentencepiece
import torch
from transformers import MarianConfig, MarianMTModel, MarianTokenizer

folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../tests/golden/translate")
os.makedirs(folder, exist_ok=True)
os.chdir(folder)  # the models keep the name they are written under

lines = ["the cat sat on the mat", "a dog runs to the house", "the dog sat", "a cat and a dog and a mat in the house",
         "house", "the cat runs and the dog sat on a mat in a house", "on the mat a cat", "zebra 42 !"]
for side in ("source", "target"):
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines * 20), model_prefix=side, vocab_size=48, hard_vocab_limit=False,
        character_coverage=1.0, normalization_rule_name="identity", minloglevel=2)
    os.replace(f"{folder}/{side}.model", f"{folder}/{side}.spm")
    os.remove(f"{folder}/{side}.vocab")
pieces = sentencepiece.SentencePieceProcessor(f"{folder}/source.spm")
names = [pieces.id_to_piece(i) for i in range(pieces.get_piece_size())]
names = ["</s>", "<unk>"] + [n for n in names if n not in ("<unk>", "<s>", "</s>")] + ["<pad>"]
with open(f"{folder}/vocab.json", "w", encoding="utf-8") as f:
    json.dump({name: i for i, name in enumerate(names)}, f, ensure_ascii=False)
with open(f"{folder}/tokenizer_config.json", "w", encoding="utf-8") as f:
    json.dump({"source_lang": "en", "target_lang": "de", "tokenizer_class": "MarianTokenizer"}, f)

torch.manual_seed(3)
pad = len(names) - 1
config = MarianConfig(
    vocab_size=len(names), decoder_vocab_size=len(names), d_model=16, encoder_layers=2, decoder_layers=2, encoder_ffn_dim=24,
    decoder_ffn_dim=24, encoder_attention_heads=2, decoder_attention_heads=2, max_position_embeddings=24,
    activation_function="swish", scale_embedding=True, init_std=0.4, pad_token_id=pad, eos_token_id=0,
    decoder_start_token_id=pad, forced_eos_token_id=0)
model = MarianMTModel._from_config(config, attn_implementation="eager").eval()
model.final_logits_bias[0, 0] = 2.2  # so that some sentences end by themselves
model.generation_config.num_beams = 4
model.generation_config.max_length = 20
model.generation_config.bad_words_ids = [[pad]]
model.generation_config.renormalize_logits = True
model.save_pretrained(folder)

tokenizer = MarianTokenizer.from_pretrained(folder)
with open(f"{folder}/lines.txt", "w", encoding="utf-8") as f:
    f.write("\n".join(lines) + "\n")
with open(f"{folder}/expected.jsonl", "w", encoding="utf-8") as f:
    for line in lines:
        batch = tokenizer([line], return_tensors="pt")
        with torch.no_grad():
            out = model.generate(**batch, num_return_sequences=3, return_dict_in_generate=True, output_scores=True)
            best = out.sequences[0]
            end = (best == 0).nonzero()
            best = best[: end[0, 0] + 1] if len(end) else best
            maps = model(**batch, decoder_input_ids=best[None, :-1], output_attentions=True).cross_attentions
        mean = torch.stack(maps).mean(dim=(0, 1, 2))
        f.write(json.dumps({
            "texts": [tokenizer.decode(s, skip_special_tokens=True) for s in out.sequences],
            "ids": best[1:].tolist(),
            "scores": [round(float(s), 6) for s in out.sequences_scores],
            "attention": [[round(float(x), 6) for x in row] for row in mean]}, ensure_ascii=False) + "\n")
print(sum(os.path.getsize(os.path.join(folder, n)) for n in os.listdir(folder)), "bytes", file=sys.stderr)
