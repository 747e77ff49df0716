"""Golden cases of SigLIP.  Run: python3 tools/golden/siglip.py tests/golden/models   (versions: families.py)"""
import torch
from transformers import SiglipConfig, SiglipModel, SiglipTextConfig, SiglipTextModel, SiglipVisionConfig, SiglipVisionModel

from families import build, case, mask_of, pixels, tokens

V, T = 37, 7
TEXT = dict(vocab_size=V, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20,
            max_position_embeddings=9)
VISION = dict(hidden_size=12, num_hidden_layers=2, num_attention_heads=2, intermediate_size=20, image_size=8, patch_size=4)
ids, mask = tokens(V, 3, T), mask_of([7, 4, 2], T)
image = pixels(3, 3, 8, 8)

case("siglip_text", build(SiglipTextModel, SiglipTextConfig(**TEXT, projection_size=5)), input_ids=ids, attention_mask=mask)
case("siglip_vision", build(SiglipVisionModel, SiglipVisionConfig(**VISION)), pixel_values=image)
case("siglip_vision-headless", build(SiglipVisionModel, SiglipVisionConfig(**VISION, vision_use_head=False)),
     pixel_values=pixels(2, 3, 16, 8), instead=dict(interpolate_pos_encoding=True))
case("siglip", build(SiglipModel, SiglipConfig(text_config=TEXT, vision_config=VISION)), input_ids=ids, pixel_values=image,
     instead=dict(return_loss=True))
