"""Golden cases of VideoMAE.  Run: python3 tools/golden/videomae.py tests/golden/models   (versions: families.py)"""
import torch
from transformers import VideoMAEConfig, VideoMAEForVideoClassification, VideoMAEModel

from families import build, case, pixels

SMALL = dict(hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20, image_size=8, patch_size=4,
             num_frames=5, tubelet_size=2)
labels = dict(id2label={i: f"L{i}" for i in range(5)}, label2id={f"L{i}": i for i in range(5)})
clip = pixels(2, 5, 3, 8, 8)

case("videomae", build(VideoMAEModel, VideoMAEConfig(**dict(SMALL, qv_bias=False))), pixel_values=clip)
case("videomae-classify", build(VideoMAEForVideoClassification, VideoMAEConfig(**SMALL, **labels)), pixel_values=clip,
     labels=torch.tensor([4, 0]))
case("videomae-classify-first", build(VideoMAEForVideoClassification, VideoMAEConfig(**dict(SMALL, use_mean_pooling=False), **labels)),
     pixel_values=clip, labels=torch.tensor([1, 2]))
