"""Golden cases of ViT.  Run: python3 tools/golden/vit.py tests/golden/models   (versions: families.py)"""
import torch
from transformers import ViTConfig, ViTForImageClassification, ViTForMaskedImageModeling, ViTModel

from families import build, case, pixels

SMALL = dict(hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20, image_size=12, patch_size=4,
             encoder_stride=4)
labels = dict(id2label={i: f"L{i}" for i in range(5)}, label2id={f"L{i}": i for i in range(5)})
image = pixels(2, 3, 12, 12)

case("vit", build(ViTModel, ViTConfig(**SMALL)), pixel_values=image)
# another grid than the table's: 5 by 3 patches, and three columns of pixels that fill none
case("vit-larger", build(ViTModel, ViTConfig(**dict(SMALL, pooler_output_size=7, pooler_act="gelu"))),
     pixel_values=pixels(2, 3, 20, 15), instead=dict(interpolate_pos_encoding=True))
case("vit-classify", build(ViTForImageClassification, ViTConfig(**SMALL, **labels)), pixel_values=image,
     labels=torch.tensor([4, 0]))
case("vit-classify-larger", build(ViTForImageClassification, ViTConfig(**dict(SMALL, qkv_bias=False, hidden_act="gelu_new"),
                                                                       **labels)),
     pixel_values=pixels(1, 3, 16, 8), labels=torch.tensor([2]), instead=dict(interpolate_pos_encoding=True))
case("vit-classify-rectangle", build(ViTForImageClassification,
                                     ViTConfig(**dict(SMALL, image_size=[8, 12], num_channels=1), **labels)),
     pixel_values=pixels(3, 1, 8, 12), labels=(torch.arange(15).reshape(3, 5) % 4 == 0).float())
hidden = torch.arange(18).reshape(2, 9) % 4 == 1
case("vit-masked", build(ViTForMaskedImageModeling, ViTConfig(**SMALL)), pixel_values=image, bool_masked_pos=hidden)
