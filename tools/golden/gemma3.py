"""Golden cases of Gemma 3.  Run: python3 tools/golden/gemma3.py tests/golden/models   (versions: families.py)"""
from safetensors.torch import save_file
from transformers import (Gemma3Config, Gemma3ForCausalLM, Gemma3ForConditionalGeneration, Gemma3TextConfig,
                          Gemma3TextForSequenceClassification, Gemma3TextModel)

from causal import NAMES, SMALL, batch, language, rewritten, texts
from families import build, case

GEMMA3 = dict(SMALL, num_key_value_heads=2, head_dim=8, sliding_window=4, query_pre_attn_scalar=7, num_hidden_layers=3)
NEAR = (9, 7, 6)

case("gemma3", build(Gemma3TextModel, Gemma3TextConfig(**dict(GEMMA3, attention_bias=True, layer_types=["full_attention"] * 3)), spread=0.1), **batch)
# as published: the base of local layers and a factor for the others beside each other, and every third layer sees everything
older = rewritten(rope_parameters=None, rope_theta=1000000.0, rope_local_base_freq=500.0, rope_scaling=dict(rope_type="linear", factor=8.0),
                  layer_types=None, _sliding_window_pattern=None, sliding_window_pattern=3)
ropes = dict(full_attention=dict(rope_type="linear", factor=8.0, rope_theta=1000000.0),
             sliding_attention=dict(rope_type="default", rope_theta=500.0))
language("gemma3-language", Gemma3ForCausalLM, Gemma3TextConfig(**GEMMA3, rope_parameters=ropes, sliding_window_pattern=3), lengths=NEAR,
         change=older)
layers = ["sliding_attention", "full_attention", "sliding_attention"]
language("gemma3-by-layer", Gemma3ForCausalLM, Gemma3TextConfig(**dict(GEMMA3, tie_word_embeddings=False), layer_types=layers), lengths=NEAR)
texts("gemma3-sequence", Gemma3TextForSequenceClassification, Gemma3TextConfig(**GEMMA3, **NAMES))

# the text part of a model that sees images too; its names are another
seeing = dict(hidden_size=4, intermediate_size=4, num_hidden_layers=1, num_attention_heads=1, image_size=4, patch_size=4)
whole = build(Gemma3ForConditionalGeneration, Gemma3Config(text_config=dict(GEMMA3, layer_types=layers), vision_config=seeing,
                                                           mm_tokens_per_image=1))
text = Gemma3ForCausalLM._from_config(whole.config.text_config, attn_implementation="eager").eval()
text.load_state_dict({k.replace("model.language_model.", "model."): v for k, v in whole.state_dict().items() if "language_model" in k or k.startswith("lm_head")})
# the directory is that of the whole model; gradients have the names of the part
text.save_pretrained = lambda folder, state_dict=None: (save_file(state_dict, f"{folder}/model.safetensors") if state_dict
                                                        else whole.save_pretrained(folder))
case("gemma3-seeing", text, input_ids=batch["input_ids"], labels=batch["input_ids"].clone())
