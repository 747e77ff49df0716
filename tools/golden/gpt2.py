"""Golden cases of GPT-2.  Run: python3 tools/golden/gpt2.py tests/golden/models   (versions: families.py)"""
import json
import os

import torch
from safetensors.torch import load_file, save_file
from transformers import (GPT2Config, GPT2ForQuestionAnswering, GPT2ForSequenceClassification, GPT2ForTokenClassification, GPT2LMHeadModel,
                          GPT2Model)

from families import build, case, mask_of, tokens
from generated import end_with, sequences

V, T, PAD = 35, 7, 34
SMALL = dict(vocab_size=V, n_positions=24, n_embd=12, n_layer=2, n_head=3, pad_token_id=PAD, bos_token_id=0, eos_token_id=0)
ids, mask = tokens(V - 1, 3, T), mask_of([7, 4, 1], T)
ids[mask == 0] = PAD
batch = dict(input_ids=ids, attention_mask=mask)
following = torch.where(mask == 1, ids, -100)
following[:, 0] = -100  # nothing comes before the first


def as_first_published(folder):
    """Names without the prefix and masks among the weights, as openai's own files were."""
    path = os.path.join(folder, "model.safetensors")
    old = {k.removeprefix("transformer."): v for k, v in load_file(path).items()}
    for i in range(2):
        old[f"h.{i}.attn.bias"] = torch.tril(torch.ones(1, 1, 24, 24))
    save_file(old, path, {"format": "pt"})


def with_generation_config(folder):
    with open(os.path.join(folder, "generation_config.json"), "w") as f:
        json.dump({"eos_token_id": [2, 3], "pad_token_id": PAD, "bos_token_id": 0, "repetition_penalty": 1.3,
                   "bad_words_ids": [[5], [7, 8]], "transformers_version": "5.22.2"}, f)


case("gpt2", build(GPT2Model, GPT2Config(**SMALL)), **batch)
case("gpt2-one-token", build(GPT2Model, GPT2Config(**dict(SMALL, n_inner=17, scale_attn_weights=False))), input_ids=ids[:, :1])
model = build(GPT2LMHeadModel, GPT2Config(**SMALL), spread=0.5)
end_with(model, ids, mask)
case("gpt2-language", model, extra=sequences(model, ids, mask), **batch, labels=following)
model = build(GPT2LMHeadModel, GPT2Config(**dict(SMALL, activation_function="relu", scale_attn_by_inverse_layer_idx=True)))
case("gpt2-first-published", model, change=as_first_published, **batch, token_type_ids=tokens(V - 1, 3, T, seed=3),
     position_ids=torch.arange(T).expand(3, T) + 2)
model = build(GPT2LMHeadModel, GPT2Config(**dict(SMALL, tie_word_embeddings=False)))
model.generation_config.eos_token_id, model.generation_config.repetition_penalty = [2, 3], 1.3
model.generation_config.bad_words_ids = [[5], [7, 8]]
case("gpt2-apart", model, change=with_generation_config, **batch, labels=following,
     extra=sequences(model, ids, mask, ("max_new_tokens=12,num_beams=1", "max_new_tokens=9,num_beams=3")))
names = dict(id2label={i: f"L{i}" for i in range(4)}, label2id={f"L{i}": i for i in range(4)})
case("gpt2-sequence", build(GPT2ForSequenceClassification, GPT2Config(**SMALL, **names)), **batch, labels=torch.tensor([3, 0, 2]))
case("gpt2-tags", build(GPT2ForTokenClassification, GPT2Config(**SMALL, **names)), **batch, labels=torch.where(mask == 1, ids % 4, -100))
case("gpt2-spans", build(GPT2ForQuestionAnswering, GPT2Config(**SMALL)), **batch, start_positions=torch.tensor([2, 0, 0]),
     end_positions=torch.tensor([5, 3, 0]))
