"""Golden cases of Llama, Mistral and Qwen2.  Run: python3 tools/golden/llama.py tests/golden/models   (versions: families.py)"""
import json
import os

import torch
from transformers import (LlamaConfig, LlamaForCausalLM, LlamaForQuestionAnswering, LlamaForSequenceClassification,
                          LlamaForTokenClassification, LlamaModel, MistralConfig, MistralForCausalLM, MistralForQuestionAnswering,
                          Qwen2Config, Qwen2ForCausalLM, Qwen2ForQuestionAnswering, Qwen2ForTokenClassification)

from families import build, case, mask_of, tokens
from generated import end_with, sequences

V, T, PAD = 35, 9, 34
SMALL = dict(vocab_size=V, hidden_size=12, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=6, max_position_embeddings=24, pad_token_id=PAD, bos_token_id=0, eos_token_id=0)
ids, mask = tokens(V - 1, 3, T), mask_of([9, 4, 1], T)
ids[mask == 0] = PAD
batch = dict(input_ids=ids, attention_mask=mask)
following = torch.where(mask == 1, ids, -100)
following[:, 0] = -100  # nothing comes before the first


def older(**rope):
    """config.json as transformers 4 wrote it: rope_theta and rope_scaling instead of rope_parameters."""
    def change(folder):
        path = os.path.join(folder, "config.json")
        with open(path) as f:
            config = json.load(f)
        config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
        config["rope_scaling"] = rope or None
        with open(path, "w") as f:
            json.dump(config, f, indent=2)
    return change


def untold(folder):
    """config.json without layer_types, as files from before these have it."""
    path = os.path.join(folder, "config.json")
    with open(path) as f:
        config = json.load(f)
    assert config.pop("layer_types") == ["full_attention", "sliding_attention", "sliding_attention"]
    with open(path, "w") as f:
        json.dump(config, f, indent=2)


def turned(**rope):
    return LlamaConfig(**SMALL, rope_parameters=dict(rope_theta=10000.0, **rope))


case("llama", build(LlamaModel, LlamaConfig(**SMALL)), **batch)
model = build(LlamaForCausalLM, LlamaConfig(**dict(SMALL, rope_parameters=dict(rope_type="default", rope_theta=500.0))), spread=0.4)
end_with(model, ids, mask)
case("llama-language", model, extra=sequences(model, ids, mask), **batch, labels=following)
model = build(LlamaForCausalLM, LlamaConfig(**dict(SMALL, attention_bias=True, mlp_bias=True, tie_word_embeddings=True, num_key_value_heads=1, head_dim=4)))
case("llama-biased", model, change=older(), **batch, labels=following)
case("llama-linear", build(LlamaModel, turned(rope_type="linear", factor=4.0)), change=older(type="linear", factor=4.0), **batch)
long = tokens(V - 1, 2, 40, seed=5)
case("llama-dynamic", build(LlamaModel, turned(rope_type="dynamic", factor=2.0)), input_ids=long)
case("llama-llama3", build(LlamaModel, turned(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                              original_max_position_embeddings=8)), **batch)
case("llama-yarn", build(LlamaModel, turned(rope_type="yarn", factor=3.0, original_max_position_embeddings=8)), **batch)
case("llama-yarn-given", build(LlamaModel, turned(rope_type="yarn", factor=3.0, original_max_position_embeddings=8, beta_fast=4.0,
                                                  beta_slow=0.5, mscale=0.7, mscale_all_dim=0.3, truncate=False)), **batch)
names = dict(id2label={i: f"L{i}" for i in range(3)}, label2id={f"L{i}": i for i in range(3)})
case("llama-sequence", build(LlamaForSequenceClassification, LlamaConfig(**SMALL, **names)), **batch, labels=torch.tensor([2, 0, 1]))
model = build(MistralForCausalLM, MistralConfig(**SMALL, sliding_window=4), spread=0.4)
end_with(model, ids, mask)
near = mask_of([9, 7, 6], T)  # in a window of padding alone transformers gives the mean, and fovea nothing
case("mistral", model, input_ids=ids, attention_mask=near, labels=torch.where(near == 1, following, -100), extra=sequences(model, ids, near, ("max_new_tokens=9,num_beams=1", "max_new_tokens=9,num_beams=3")))
model = build(Qwen2ForCausalLM, Qwen2Config(**dict({k: v for k, v in SMALL.items() if k != "head_dim"}, hidden_size=16)), spread=0.4)
end_with(model, ids, mask)
case("qwen2", model, **batch, labels=following, extra=sequences(model, ids, mask, ("max_new_tokens=9,num_beams=1", "max_new_tokens=9,num_beams=3")))
small = {k: v for k, v in SMALL.items() if k != "head_dim"}
model = build(Qwen2ForCausalLM, Qwen2Config(**dict(small, hidden_size=16, num_hidden_layers=3), use_sliding_window=True, sliding_window=4,
                                            max_window_layers=1), spread=0.4)
end_with(model, ids, near)
case("qwen2-near", model, input_ids=ids, attention_mask=near, labels=torch.where(near == 1, following, -100), change=untold, extra=sequences(model, ids, near, ("max_new_tokens=9,num_beams=1", "max_new_tokens=9,num_beams=3")))
layers = ["sliding_attention", "full_attention", "sliding_attention"]
model = build(Qwen2ForCausalLM, Qwen2Config(**dict(small, hidden_size=16, num_hidden_layers=3), use_sliding_window=True, sliding_window=4,
                                            layer_types=layers), spread=0.4)
case("qwen2-near-by-layer", model, input_ids=ids, attention_mask=near, labels=torch.where(near == 1, following, -100))
ends = dict(start_positions=torch.tensor([2, 0, 0]), end_positions=torch.tensor([7, 3, 0]))
kinds = torch.where(mask == 1, ids % 3, -100)
case("llama-tags", build(LlamaForTokenClassification, LlamaConfig(**SMALL, **names)), **batch, labels=kinds)
case("llama-spans", build(LlamaForQuestionAnswering, LlamaConfig(**SMALL)), **batch, **ends)
case("mistral-spans", build(MistralForQuestionAnswering, MistralConfig(**SMALL, sliding_window=None)), **batch, **ends)
case("qwen2-tags", build(Qwen2ForTokenClassification, Qwen2Config(**dict(small, hidden_size=16), **names)), **batch, labels=kinds)
case("qwen2-spans", build(Qwen2ForQuestionAnswering, Qwen2Config(**dict(small, hidden_size=16)), seed=8), **batch, **ends)
case("llama-longrope", build(LlamaModel, turned(rope_type="longrope", factor=4.0, original_max_position_embeddings=12,
                                                short_factor=[1.0, 1.2, 1.5], long_factor=[1.0, 3.0, 6.0])), input_ids=long)
