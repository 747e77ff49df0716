"""Golden average precision: random objects and detections, and what pycocotools counts.

tests/golden/detection.safetensors: objects (N,7) image, label, ignored, x0, y0, x1, y1; found (M,7) image, label, score, x0, y0, x1, y1;
ap (L,10) of each label at IoU 0.50, 0.55, .., 0.95.  Run: python3 tools/golden/detection.py tests/golden/detection.safetensors
(made with pycocotools 2.0.11)"""
import contextlib
import io
import sys

import numpy as np
import torch
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from safetensors.torch import save_file

rng = np.random.default_rng(11)
LABELS, IMAGES = 3, 12
objects, found = [], []
for image in range(IMAGES):
    for _ in range(rng.integers(2, 12)):
        x, y = rng.uniform(0, 200, 2)
        w, h = rng.uniform(15, 60, 2)
        label = int(rng.integers(LABELS))
        objects.append([image, label, 0, x, y, x + w, y + h])
        for _ in range(rng.integers(0, 4)):  # near it, sometimes with another label
            dx, dy, dw, dh = rng.normal(0, 6, 4)
            guess = label if rng.uniform() < 0.8 else int(rng.integers(LABELS))
            found.append([image, guess, rng.uniform(), x + dx, y + dy, x + w + dx + dw, y + h + dy + dh])
    for _ in range(rng.integers(0, 8)):  # anywhere
        x, y = rng.uniform(0, 200, 2)
        found.append([image, int(rng.integers(LABELS)), rng.uniform() * 0.8, x, y, x + 30, y + 25])
objects, found = np.float32(objects), np.float32(found)

coco = COCO()
coco.dataset = {
    "info": {}, "images": [{"id": i, "width": 300, "height": 300} for i in range(IMAGES)],
    "categories": [{"id": k, "name": str(k)} for k in range(LABELS)],
    "annotations": [{"id": i + 1, "image_id": int(o[0]), "category_id": int(o[1]), "iscrowd": 0, "ignore": int(o[2]),
                     "bbox": [float(o[3]), float(o[4]), float(o[5] - o[3]), float(o[6] - o[4])],
                     "area": float((o[5] - o[3]) * (o[6] - o[4]))} for i, o in enumerate(objects)]}
with contextlib.redirect_stdout(io.StringIO()):
    coco.createIndex()
    result = coco.loadRes([{"image_id": int(d[0]), "category_id": int(d[1]), "score": float(d[2]),
                            "bbox": [float(d[3]), float(d[4]), float(d[5] - d[3]), float(d[6] - d[4])]} for d in found])
    e = COCOeval(coco, result, "bbox")
    e.evaluate()
    e.accumulate()
precision = e.eval["precision"]  # (T,R,K,A,M): thresholds, recalls, labels, areas, most detections
ap = precision[:, :, :, 0, 2].mean(1).T  # (K,T)
save_file({"objects": torch.from_numpy(objects), "found": torch.from_numpy(found), "ap": torch.from_numpy(np.ascontiguousarray(100 * ap, np.float32))}, sys.argv[1])
print(len(objects), "objects,", len(found), "detections; AP at 0.5:", 100 * ap[:, 0])
