"""Golden cases of DeiT.  Run: python3 tools/golden/deit.py tests/golden/models   (versions: families.py)"""
import torch
from transformers import (DeiTConfig, DeiTForImageClassification, DeiTForImageClassificationWithTeacher, DeiTForMaskedImageModeling,
                          DeiTModel)

from families import build, case, pixels

SMALL = dict(hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20, image_size=8, patch_size=4,
             encoder_stride=4)
labels = dict(id2label={i: f"L{i}" for i in range(5)}, label2id={f"L{i}": i for i in range(5)})
image = pixels(2, 3, 8, 8)

case("deit", build(DeiTModel, DeiTConfig(**SMALL)), pixel_values=image)
case("deit-classify", build(DeiTForImageClassification, DeiTConfig(**SMALL, **labels)), pixel_values=pixels(2, 3, 12, 8),
     labels=torch.tensor([4, 0]), instead=dict(interpolate_pos_encoding=True))
case("deit-teacher", build(DeiTForImageClassificationWithTeacher, DeiTConfig(**SMALL, **labels)), pixel_values=image)
case("deit-masked", build(DeiTForMaskedImageModeling, DeiTConfig(**SMALL)), pixel_values=image,
     bool_masked_pos=torch.tensor([[True, False, False, True], [False, True, False, False]]))
