"""JPEG decoding, resizing and normalising on one core: fovea beside Pillow with NumPy, in turn.

    python3 bench/images.py [--fovea build/fovea] [--rounds 3]

The image is a photograph's size (500 x 375) with smooth colours, quality 90, and becomes (3,224,224) floats.
Pillow's time is that of the processor, fovea's by the clock (the median of its runs), so other programs on the machine count
against fovea alone; medians over rounds."""
import argparse
import io
import json
import os
import statistics
import subprocess
import tempfile
import time

import numpy as np
from PIL import Image

args = argparse.ArgumentParser()
args.add_argument("--fovea", default="build/fovea")
args.add_argument("--rounds", type=int, default=3)
o = args.parse_args()
rng = np.random.default_rng(0)
path = os.path.join(tempfile.mkdtemp(), "photo.jpg")
Image.fromarray(rng.integers(0, 256, (47, 63, 3), dtype=np.uint8)).resize((500, 375), 3).save(path, quality=90)
data = open(path, "rb").read()
mean = std = np.float32([0.5, 0.5, 0.5])


def pillow(resample):
    image = Image.open(io.BytesIO(data)).convert("RGB").resize((224, 224), resample)
    x = (np.asarray(image, dtype=np.float32) * np.float32(1 / 255) - mean) / std
    return np.ascontiguousarray(x.transpose(2, 0, 1))


def peer(resample, n=200):
    pillow(resample)
    start = time.process_time()
    for _ in range(n):
        pillow(resample)
    return (time.process_time() - start) / n


def ours(word):
    """Seconds of one run, by the clock: beside other programs that is more than the processor's time, never less."""
    line = subprocess.run([o.fovea, "bench", "image", "--json", "--threads", "1", "--seconds", "3", "--resample", word, path],
                          capture_output=True, text=True, check=True).stdout
    return json.loads(line)["median_s"]


for word, number in (("bilinear", 2), ("bicubic", 3)):
    a, b = zip(*((ours(word), peer(number)) for _ in range(o.rounds)))
    a, b = statistics.median(a), statistics.median(b)
    print(f"{word:9} fovea {1e3 * a:.2f} ms, Pillow + NumPy {1e3 * b:.2f} ms: {b / a:.2f} x")
