"""Golden cases of SegFormer.  Run: python3 tools/golden/segformer.py tests/golden/models   (versions: families.py)"""
import torch
from transformers import SegformerConfig, SegformerForImageClassification, SegformerForSemanticSegmentation, SegformerModel

from families import build, case, pixels

SMALL = dict(num_encoder_blocks=3, depths=[1, 2, 1], sr_ratios=[4, 2, 1], hidden_sizes=[6, 8, 10], patch_sizes=[7, 3, 3],
             strides=[4, 2, 2], num_attention_heads=[1, 2, 2], mlp_ratios=[2, 2, 2], decoder_hidden_size=9)
labels = dict(id2label={i: f"L{i}" for i in range(4)}, label2id={f"L{i}": i for i in range(4)})
image = pixels(2, 3, 32, 28)
marks = torch.randint(0, 4, (2, 32, 28), generator=torch.Generator().manual_seed(2))
marks[:, 5:9] = 255


def with_statistics(model):
    """The batch norm as after some training."""
    norm = model.decode_head.batch_norm
    norm.running_mean.copy_(pixels(9, seed=4))
    norm.running_var.copy_(pixels(9, seed=5).abs() + 0.5)
    return model


case("segformer", build(SegformerModel, SegformerConfig(**SMALL)), pixel_values=image)
case("segformer-classify", build(SegformerForImageClassification, SegformerConfig(**SMALL, **labels)), pixel_values=image,
     labels=torch.tensor([3, 1]))
case("segformer-segment", with_statistics(build(SegformerForSemanticSegmentation, SegformerConfig(**SMALL, **labels))),
     pixel_values=image, labels=marks)
case("segformer-segment-odd", with_statistics(build(SegformerForSemanticSegmentation, SegformerConfig(
    **dict(SMALL, semantic_loss_ignore_index=0, hidden_act="relu"), **labels))), pixel_values=pixels(1, 3, 37, 30),
     labels=marks[:1, :16, :9] % 4)
