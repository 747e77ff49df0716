"""Golden cases of YOLOS.  Run: python3 tools/golden/yolos.py tests/golden/models   (versions: families.py)

transformers takes the objects of each image as a dictionary; here they are two arrays, class_labels padded with -100."""
import torch
from transformers import YolosConfig, YolosForObjectDetection, YolosModel

from families import build, case, pixels

SMALL = dict(hidden_size=12, num_hidden_layers=3, num_attention_heads=3, intermediate_size=20, image_size=[8, 12], patch_size=4,
             num_detection_tokens=5)
labels = dict(id2label={i: f"L{i}" for i in range(4)}, label2id={f"L{i}": i for i in range(4)})
classes = torch.tensor([[3, 0, 0], [1, -100, -100], [-100, -100, -100]])
boxes = torch.rand(3, 3, 4, generator=torch.Generator().manual_seed(3)) * 0.4 + 0.1


def objects(classes, boxes):
    return [dict(class_labels=c[c >= 0], boxes=b[c >= 0]) for c, b in zip(classes, boxes)]


def detect(name, config, classes, boxes, image):
    model = build(YolosForObjectDetection, config)
    forward = model.forward
    model.forward = lambda class_labels, boxes, **rest: forward(labels=objects(class_labels, boxes), **rest)
    case(name, model, pixel_values=image, class_labels=classes, boxes=boxes)


case("yolos", build(YolosModel, YolosConfig(**SMALL)), pixel_values=pixels(2, 3, 8, 12))
detect("yolos-detect", YolosConfig(**SMALL, **labels), classes, boxes, pixels(3, 3, 8, 12))
detect("yolos-detect-larger", YolosConfig(**dict(SMALL, image_size=[9, 14], use_mid_position_embeddings=False, eos_coefficient=0.3), **labels),
       classes[:2], boxes[:2], pixels(2, 3, 16, 8))
# more objects than tokens: the cheapest pairs count
many = torch.randint(0, 4, (1, 7), generator=torch.Generator().manual_seed(5))
detect("yolos-detect-many", YolosConfig(**dict(SMALL, bbox_loss_coefficient=3, giou_cost=4), **labels), many,
       torch.rand(1, 7, 4, generator=torch.Generator().manual_seed(6)) * 0.4 + 0.1, pixels(1, 3, 12, 12))
