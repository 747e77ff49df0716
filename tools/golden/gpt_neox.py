"""Golden cases of GPT-NeoX.  Run: python3 tools/golden/gpt_neox.py tests/golden/models   (versions: families.py)"""
import os

import torch
from safetensors.torch import load_file, save_file
from transformers import (GPTNeoXConfig, GPTNeoXForCausalLM, GPTNeoXForQuestionAnswering, GPTNeoXForSequenceClassification,
                          GPTNeoXForTokenClassification, GPTNeoXModel)

from causal import NAMES, SMALL, batch, language, rewritten, spans, tags, texts
from families import build, case

NEOX = dict(SMALL, hidden_size=16, num_attention_heads=2)


def as_published(folder):
    """Pythia's files: earlier names of the rotation's keys, masks and frequencies among the weights."""
    rewritten(rope_parameters=None, rotary_pct=0.25, rotary_emb_base=10000)(folder)
    path = os.path.join(folder, "model.safetensors")
    weights = load_file(path)
    for i in range(2):
        weights[f"gpt_neox.layers.{i}.attention.bias"] = torch.ones(1, 1, 4, 4).tril().bool()
        weights[f"gpt_neox.layers.{i}.attention.masked_bias"] = torch.tensor(-1e9)
        weights[f"gpt_neox.layers.{i}.attention.rotary_emb.inv_freq"] = torch.ones(1)
    save_file(weights, path, {"format": "pt"})


case("gpt_neox", build(GPTNeoXModel, GPTNeoXConfig(**NEOX, rope_parameters=dict(rope_type="yarn", factor=4.0, rope_theta=500.0,
                                                                                partial_rotary_factor=0.75,
                                                                                original_max_position_embeddings=6))), **batch)
language("gpt_neox-language", GPTNeoXForCausalLM, GPTNeoXConfig(**NEOX), change=as_published)
language("gpt_neox-in-turn", GPTNeoXForCausalLM, GPTNeoXConfig(**dict(NEOX, use_parallel_residual=False, attention_bias=False, tie_word_embeddings=True)))
texts("gpt_neox-sequence", GPTNeoXForSequenceClassification, GPTNeoXConfig(**NEOX, **NAMES))
tags("gpt_neox-tags", GPTNeoXForTokenClassification, GPTNeoXConfig(**NEOX, **NAMES))
spans("gpt_neox-spans", GPTNeoXForQuestionAnswering, GPTNeoXConfig(**NEOX))
