"""Golden cases of OPT.  Run: python3 tools/golden/opt.py tests/golden/models   (versions: families.py)"""
import torch
from transformers import OPTConfig, OPTForCausalLM, OPTForQuestionAnswering, OPTForSequenceClassification, OPTModel

from causal import NAMES, SMALL, T, batch, language, spans, texts
from families import build, case

OPT = dict({k: v for k, v in SMALL.items() if k != "intermediate_size"}, ffn_dim=20)

case("opt", build(OPTModel, OPTConfig(**OPT)), **batch, position_ids=torch.arange(T)[None] + 3)
language("opt-language", OPTForCausalLM, OPTConfig(**OPT))
# as 350m: a narrower table, norms behind
language("opt-narrow", OPTForCausalLM, OPTConfig(**OPT, word_embed_proj_dim=7, do_layer_norm_before=False))
case("opt-bare", build(OPTModel, OPTConfig(**OPT, enable_bias=False, _remove_final_layer_norm=True, activation_function="gelu")), **batch)
texts("opt-sequence", OPTForSequenceClassification, OPTConfig(**OPT, **NAMES))
spans("opt-spans", OPTForQuestionAnswering, OPTConfig(**OPT, word_embed_proj_dim=8))
