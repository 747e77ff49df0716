"""Golden cases of CLIP.  Run: python3 tools/golden/clip.py tests/golden/models   (versions: families.py)"""
import json
import os

import torch
from transformers import (CLIPConfig, CLIPModel, CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPVisionConfig,
                          CLIPVisionModel, CLIPVisionModelWithProjection)

from families import build, case, mask_of, pixels, tokens

V, T, END = 37, 7, 36
TEXT = dict(vocab_size=V, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20,
            max_position_embeddings=9, projection_dim=10, eos_token_id=END, bos_token_id=35, pad_token_id=1)
VISION = dict(hidden_size=10, num_hidden_layers=2, num_attention_heads=2, intermediate_size=20, image_size=8, patch_size=4,
              projection_dim=10)
ids, mask = tokens(V - 2, 3, T, low=2), mask_of([7, 4, 2], T)
ids[:, 0] = 35
ids[mask == 0] = 1
for row, n in enumerate([7, 4, 2]):
    ids[row, n - 1] = END
padded_with_end = torch.where(mask == 1, ids, END)  # as openai's tokenizer does it: the first end counts
image = pixels(3, 3, 8, 8)


def as_first_published(folder):
    """The halves' keys twice, with all that transformers 4 wrote beside them."""
    path = os.path.join(folder, "config.json")
    config = json.load(open(path))
    for half in "text", "vision":
        config[half + "_config_dict"] = {k: v for k, v in config[half + "_config"].items() if k not in ("dropout", "model_type")}
        config[half + "_config"].update(is_decoder=False, add_cross_attention=False, top_k=50, return_dict=True, dropout=0.0)
        config[half + "_config"]["hidden_act"] = "relu"  # the other one counts
    json.dump(config, open(path, "w"), indent=2)


case("clip_text", build(CLIPTextModel, CLIPTextConfig(**TEXT)), input_ids=ids, attention_mask=mask)
case("clip_text-old-end", build(CLIPTextModel, CLIPTextConfig(**dict(TEXT, eos_token_id=2, hidden_act="gelu"))),
     input_ids=padded_with_end, position_ids=(torch.arange(T) + 2)[None].repeat(3, 1))
case("clip_text-projection", build(CLIPTextModelWithProjection, CLIPTextConfig(**TEXT)), input_ids=padded_with_end)
case("clip_vision", build(CLIPVisionModel, CLIPVisionConfig(**VISION)), pixel_values=image)
case("clip_vision-projection", build(CLIPVisionModelWithProjection, CLIPVisionConfig(**VISION)), pixel_values=pixels(2, 3, 12, 8),
     instead=dict(interpolate_pos_encoding=True))
BOTH = dict(text_config=TEXT, vision_config=VISION, projection_dim=11)
case("clip", build(CLIPModel, CLIPConfig(**BOTH)), input_ids=ids, attention_mask=mask, pixel_values=image,
     instead=dict(return_loss=True))
case("clip-first-published", build(CLIPModel, CLIPConfig(**BOTH)), change=as_first_published, input_ids=ids[:2],
     pixel_values=image)
