"""Golden cases of Qwen3.  Run: python3 tools/golden/qwen3.py tests/golden/models   (versions: families.py)"""
import torch
from transformers import (Qwen3Config, Qwen3ForCausalLM, Qwen3ForQuestionAnswering, Qwen3ForSequenceClassification,
                          Qwen3ForTokenClassification, Qwen3Model)

from causal import NAMES, SMALL, T, batch, language, rewritten, spans, tags, texts
from families import build, case

QWEN3 = dict(SMALL, num_key_value_heads=2, head_dim=8)

case("qwen3", build(Qwen3Model, Qwen3Config(**dict(QWEN3, attention_bias=True))), **batch, position_ids=torch.arange(T)[None] + 3)
language("qwen3-language", Qwen3ForCausalLM, Qwen3Config(**QWEN3, rope_parameters=dict(rope_type="default", rope_theta=1e6)))
long = dict(rope_type="longrope", rope_theta=500.0, factor=4.0, original_max_position_embeddings=12,
            short_factor=[1.0, 1.1, 1.3, 1.6], long_factor=[1.0, 2.5, 4.0, 7.0])
language("qwen3-longrope", Qwen3ForCausalLM, Qwen3Config(**dict(QWEN3, tie_word_embeddings=True), rope_parameters=long),
         searches=("max_new_tokens=3,num_beams=1",))  # transformers keeps the keys of the shorter rotation beyond that
language("qwen3-near", Qwen3ForCausalLM, Qwen3Config(**dict(QWEN3, num_hidden_layers=3), use_sliding_window=True, sliding_window=4,
                                                     max_window_layers=1), lengths=(9, 7, 6), change=rewritten(layer_types=None))
# transformers takes the base in the object, wherever the other stands
beside = rewritten(rope_parameters=None, rope_theta=77.0, rope_scaling=dict(rope_theta=300.0, type="linear", factor=2.0))
case("qwen3-theta-beside", build(Qwen3Model, Qwen3Config(**QWEN3, rope_parameters=dict(rope_theta=300.0, rope_type="linear", factor=2.0))),
     change=beside, **batch)
texts("qwen3-sequence", Qwen3ForSequenceClassification, Qwen3Config(**QWEN3, **NAMES))
tags("qwen3-tags", Qwen3ForTokenClassification, Qwen3Config(**QWEN3, **NAMES))
spans("qwen3-spans", Qwen3ForQuestionAnswering, Qwen3Config(**QWEN3))
