"""Golden cases of Gemma.  Run: python3 tools/golden/gemma.py tests/golden/models   (versions: families.py)"""
from transformers import GemmaConfig, GemmaForCausalLM, GemmaForSequenceClassification, GemmaForTokenClassification, GemmaModel

from causal import NAMES, SMALL, batch, language, rewritten, tags, texts
from families import build, case

GEMMA = dict(SMALL, num_key_value_heads=1, head_dim=8)

case("gemma", build(GemmaModel, GemmaConfig(**dict(GEMMA, attention_bias=True, num_key_value_heads=4))), **batch)
# as the first release has it: "gelu", by which the tanh approximation is meant
language("gemma-language", GemmaForCausalLM, GemmaConfig(**GEMMA), change=rewritten(hidden_act="gelu", rope_parameters=None, rope_theta=10000.0,
                                                                                    hidden_activation=None))
language("gemma-apart", GemmaForCausalLM, GemmaConfig(**dict(GEMMA, tie_word_embeddings=False, hidden_act="silu"),
                                                      rope_parameters=dict(rope_type="linear", factor=2.0, rope_theta=400.0)))
texts("gemma-sequence", GemmaForSequenceClassification, GemmaConfig(**GEMMA, **NAMES))
tags("gemma-tags", GemmaForTokenClassification, GemmaConfig(**GEMMA, **NAMES))
