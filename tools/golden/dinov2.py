"""Golden cases of DINOv2.  Run: python3 tools/golden/dinov2.py tests/golden/models   (versions: families.py)"""
import torch
from transformers import Dinov2Config, Dinov2ForImageClassification, Dinov2Model

from families import build, case, pixels

SMALL = dict(hidden_size=12, num_hidden_layers=2, num_attention_heads=3, image_size=8, patch_size=4, mlp_ratio=2)
labels = dict(id2label={i: f"L{i}" for i in range(5)}, label2id={f"L{i}": i for i in range(5)})

case("dinov2", build(Dinov2Model, Dinov2Config(**SMALL)), pixel_values=pixels(2, 3, 8, 8),
     bool_masked_pos=torch.tensor([[True, False, False, True], [False, True, False, False]]))
case("dinov2-swiglu", build(Dinov2Model, Dinov2Config(**dict(SMALL, use_swiglu_ffn=True, mlp_ratio=4, qkv_bias=False))),
     pixel_values=pixels(1, 3, 16, 12))
case("dinov2-classify", build(Dinov2ForImageClassification, Dinov2Config(**SMALL, **labels)), pixel_values=pixels(2, 3, 8, 16),
     labels=torch.tensor([4, 0]))
case("dinov2-classify-swiglu", build(Dinov2ForImageClassification, Dinov2Config(**dict(SMALL, use_swiglu_ffn=True), **labels)),
     pixel_values=pixels(2, 3, 8, 8), labels=torch.tensor([1, 3]))
