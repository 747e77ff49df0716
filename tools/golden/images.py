"""Golden images: files of every kind, what Pillow decodes and resizes them to, and what transformers' image processors make of
them.

tests/golden/images: *.png, *.jpg; decoded.safetensors (NAME: (H,W,C) levels, upright, as RGB or grey),
resized.safetensors (NAME.FILTER.WIDTHxHEIGHT), and for each processor a folder with preprocessor_config.json and
out.safetensors (NAME: pixel_values of one image).  tests/data/test_images.c and test_image_processor.c read them.
Run: python3 tools/golden/images.py tests/golden/images   (made with transformers 5.22.2, Pillow 13.0.0)"""
import io
import os
import struct
import sys
import zlib

import numpy as np
import torch
from PIL import Image, ImageOps
from safetensors.torch import save_file
from transformers.models.bit.image_processing_pil_bit import BitImageProcessorPil
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.deit.image_processing_pil_deit import DeiTImageProcessorPil
from transformers.models.segformer.image_processing_pil_segformer import SegformerImageProcessorPil
from transformers.models.siglip.image_processing_pil_siglip import SiglipImageProcessorPil
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil
from transformers.models.yolos.image_processing_pil_yolos import YolosImageProcessorPil

folder = sys.argv[1]
os.makedirs(folder, exist_ok=True)
rng = np.random.default_rng(5)


def at(*names):
    return os.path.join(folder, *names)


def scene(width, height, channels):
    """Smooth waves with noise and a few hard edges: every filter has something to do."""
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    planes = [127 + 90 * np.sin(x / (3 + c) + y / (5 - c)) + rng.normal(0, 20, (height, width)) for c in range(channels)]
    for c, p in enumerate(planes):
        p[height // 4:height // 2, width // (3 + c):] = 255 * (c % 2)
    return np.clip(np.stack(planes, -1), 0, 255).astype(np.uint8)


def png16(path, pixels, kind):
    """A PNG of 16 bits a channel, which Pillow does not write in RGB."""
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
    height, width = pixels.shape[:2]
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    with open(path, "wb") as f:
        f.write(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 16, kind, 0, 0, 0))
                + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


decoded = {}


def add(name, image, **how):
    image.save(at(name), **how)
    again = ImageOps.exif_transpose(Image.open(at(name)))
    decoded[name] = torch.from_numpy(np.array(again if again.mode == "L" else again.convert("RGB")))


rgb = Image.fromarray(scene(61, 47, 3))
grey = Image.fromarray(scene(37, 53, 1)[..., 0])
add("rgb.png", rgb)
add("grey.png", grey)
add("alpha.png", Image.fromarray(scene(40, 33, 4)))
add("grey_alpha.png", Image.merge("LA", (grey, grey.transpose(Image.Transpose.FLIP_LEFT_RIGHT))))
add("palette.png", rgb.quantize(50))
add("palette_clear.png", rgb.quantize(12), transparency=bytes([0, 128, 255]))
add("bits1.png", grey.convert("1", dither=Image.Dither.NONE))
decoded["bits1.png"] = torch.from_numpy(np.array(Image.open(at("bits1.png")).convert("L")))
add("rgb.jpg", rgb, quality=92)
add("grey.jpg", grey, quality=85)
add("progressive.jpg", rgb, quality=80, progressive=True, subsampling="4:4:4")
Image.fromarray(scene(16, 16, 4), "CMYK").save(at("cmyk.jpg"))
small = rgb.resize((24, 17))
for turn in range(2, 9):
    exif = Image.Exif()
    exif[0x0112] = turn
    add(f"turn{turn}.jpg", small, quality=95, exif=exif)
exif = Image.Exif()
exif[0x0112] = 6
add("turn6.png", small, exif=exif)
wide = (scene(20, 14, 3).astype(np.uint16) << 8) + 77
png16(at("rgb16.png"), wide, 2)
decoded["rgb16.png"] = torch.from_numpy((wide >> 8).astype(np.uint8))
png16(at("grey16.png"), wide[..., :1], 0)
decoded["grey16.png"] = torch.from_numpy((wide[..., 0] >> 8).astype(np.uint8))
save_file(decoded, at("decoded.safetensors"))

filters = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3, "box": 4, "hamming": 5}
resized = {}
for name in ("rgb.png", "grey.png"):
    for word, number in filters.items():
        for width, height in ((17, 13), (61, 20), (90, 47), (25, 101)) if name == "rgb.png" else ((11, 19), (64, 64)):
            image = Image.open(at(name)).resize((width, height), Image.Resampling(number))
            resized[f"{name}.{number}.{width}x{height}"] = torch.from_numpy(np.array(image))
save_file(resized, at("resized.safetensors"))

processors = {
    "vit": ViTImageProcessorPil(size={"height": 16, "width": 20}),
    "vit-grey": ViTImageProcessorPil(size={"height": 14, "width": 14}, image_mean=[0.3], image_std=[0.2]),
    "deit": DeiTImageProcessorPil(size={"height": 18, "width": 18}, crop_size={"height": 15, "width": 14}),
    "clip": CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}),
    "clip-padded": CLIPImageProcessorPil(size={"shortest_edge": 11}, crop_size={"height": 16, "width": 13}),
    "siglip": SiglipImageProcessorPil(size={"height": 15, "width": 15}),
    "dinov2": BitImageProcessorPil(size={"shortest_edge": 20}, crop_size={"height": 14, "width": 14}),
    "segformer": SegformerImageProcessorPil(size={"height": 16, "width": 16}),
    "yolos": YolosImageProcessorPil(size={"shortest_edge": 32, "longest_edge": 44}),
}
for name, processor in processors.items():
    processor.save_pretrained(at(name))
    out = {}
    for file in ("rgb.png", "grey.png", "alpha.png", "palette.png"):
        image = Image.open(at(file)).convert("L" if name == "vit-grey" else "RGB")
        out[file] = processor(images=image, return_tensors="pt")["pixel_values"][0].contiguous()
    save_file(out, at(name, "out.safetensors"))
total = sum(os.path.getsize(os.path.join(d, f)) for d, _, files in os.walk(folder) for f in files)
print(f"{len(decoded)} images, {len(resized)} resized, {len(processors)} processors: {total // 1024} KiB")
