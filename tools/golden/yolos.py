"""Golden cases of YOLOS.  Run: python3 tools/golden/yolos.py tests/golden/models   (versions: families.py)

transformers takes the objects of each image as a dictionary; here they are two arrays, class_labels padded with -100."""
import torch
from torch.nn import functional as F
from torchvision.ops import box_convert, generalized_box_iou_loss
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


def dense_loss(model, image, hidden, classes, boxes):
    """DETR's loss of the patches: each answers for the smallest object in whose middle half (or within half a patch of whose centre) it lies."""
    config, (rows, cols) = model.config, [n // model.config.patch_size for n in image.shape[2:]]
    x = hidden[:, 1:1 + rows * cols].flatten(0, 1)
    logits, predicted = model.class_labels_classifier(x), model.bbox_predictor(x).sigmoid()
    none, answers, weights, pairs = logits.shape[1] - 1, [], [], []
    for b in range(len(image)):
        for q in range(rows * cols):
            at = torch.tensor([(q % cols + 0.5) / cols, (q // cols + 0.5) / rows])
            answer, weight, best = none, config.eos_coefficient, None
            for label, box in zip(classes[b].tolist(), boxes[b]):
                if label < 0:
                    continue
                off, half = (at - box[:2]).abs(), torch.tensor([0.5 / cols, 0.5 / rows])
                if (off <= torch.maximum(box[2:] / 4, half)).all():
                    if best is None or box[2:].prod() < best[2:].prod():
                        answer, weight, best = label, 1.0, box
                elif (off <= box[2:] / 2).all() and best is None:
                    weight = 0.0
            answers.append(answer), weights.append(weight)
            if best is not None:
                pairs.append((len(answers) - 1, best))
    weights = torch.tensor(weights)
    loss = (F.cross_entropy(logits, torch.tensor(answers), reduction="none") * weights).sum() / weights.sum()
    mine, theirs = predicted[[i for i, _ in pairs]], torch.stack([b for _, b in pairs])
    corners = [box_convert(x, "cxcywh", "xyxy") for x in (mine, theirs)]
    return (loss + config.bbox_loss_coefficient * (mine - theirs).abs().sum() / len(pairs)
            + config.giou_loss_coefficient * generalized_box_iou_loss(*corners, reduction="sum") / len(pairs))


def detect_dense(name, config, classes, boxes, image):
    """Ours: dense_loss_coefficient times the loss of the patches is added to transformers' loss."""
    model = build(YolosForObjectDetection, config)
    forward = model.forward

    def both(class_labels, boxes, pixel_values, **rest):
        out = forward(labels=objects(class_labels, boxes), pixel_values=pixel_values, **rest)
        out.loss = out.loss + config.dense_loss_coefficient * dense_loss(model, pixel_values, out.last_hidden_state, class_labels, boxes)
        return out
    model.forward = both
    case(name, model, pixel_values=image, class_labels=classes, boxes=boxes)


case("yolos", build(YolosModel, YolosConfig(**SMALL)), pixel_values=pixels(2, 3, 8, 12))
detect("yolos-detect", YolosConfig(**SMALL, **labels), classes, boxes, pixels(3, 3, 8, 12))
detect("yolos-detect-larger", YolosConfig(**dict(SMALL, image_size=[9, 14], use_mid_position_embeddings=False, eos_coefficient=0.3), **labels),
       classes[:2], boxes[:2], pixels(2, 3, 16, 8))
# more objects than tokens: the cheapest pairs count
many = torch.randint(0, 4, (1, 7), generator=torch.Generator().manual_seed(5))
detect("yolos-detect-many", YolosConfig(**dict(SMALL, bbox_loss_coefficient=3, giou_cost=4), **labels), many,
       torch.rand(1, 7, 4, generator=torch.Generator().manual_seed(6)) * 0.4 + 0.1, pixels(1, 3, 12, 12))
detect_dense("yolos-detect-dense", YolosConfig(**SMALL, **labels, dense_loss_coefficient=0.5), classes, boxes, pixels(3, 3, 8, 12))
