"""Golden cases of Phi-3.  Run: python3 tools/golden/phi3.py tests/golden/models   (versions: families.py)"""
from transformers import Phi3Config, Phi3ForCausalLM, Phi3ForSequenceClassification, Phi3ForTokenClassification, Phi3Model

from causal import NAMES, SMALL, batch, language, rewritten, tags, texts
from families import build, case, tokens

PHI3 = dict(SMALL, hidden_size=16, num_attention_heads=2, num_key_value_heads=1)
LONG = dict(rope_type="longrope", rope_theta=10000.0, partial_rotary_factor=0.75, short_factor=[1.0, 1.1, 1.4], long_factor=[1.0, 2.5, 6.0])

case("phi3", build(Phi3Model, Phi3Config(**PHI3)), **batch)
# as published: rope_scaling beside rope_theta; 12 positions were trained on, so that generating crosses them
older = rewritten(rope_parameters=None, rope_theta=10000.0, partial_rotary_factor=0.75,
                  rope_scaling=dict(type="longrope", short_factor=LONG["short_factor"], long_factor=LONG["long_factor"]))
language("phi3-long", Phi3ForCausalLM, Phi3Config(**PHI3, rope_parameters=dict(LONG), original_max_position_embeddings=12), spread=0.3, change=older)
case("phi3-beyond", build(Phi3Model, Phi3Config(**PHI3, rope_parameters=dict(LONG), original_max_position_embeddings=12)),
     input_ids=tokens(34, 2, 15, seed=5))
language("phi3-near", Phi3ForCausalLM, Phi3Config(**dict(PHI3, sliding_window=4, num_key_value_heads=2, tie_word_embeddings=True)), spread=0.2, lengths=(9, 7, 6))
texts("phi3-sequence", Phi3ForSequenceClassification, Phi3Config(**PHI3, **NAMES))
tags("phi3-tags", Phi3ForTokenClassification, Phi3Config(**PHI3, **NAMES))
