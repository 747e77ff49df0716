#!/usr/bin/env python3
"""store.py - writes tests/golden/store: small files by NumPy, safetensors and torch that our readers must agree with.

Run from the root of the repository.  Made with Python 3.11, numpy 2.4.6, safetensors 0.8.0, torch 2.15.0.
"""
import json
import os
import sys

import numpy as np
import safetensors
import torch
from safetensors.torch import save_file

out = os.path.join("tests", "golden", "store")
os.makedirs(out, exist_ok=True)


def npy(name, array):
    np.save(os.path.join(out, name + ".npy"), array)


# NumPy: the numbers -12 .. 11 (0 .. 23 unsigned, thirds as booleans) of shape (2,3,4), in both orders.
count = np.arange(24).reshape(2, 3, 4)
for code in ["f2", "f4", "f8", "i1", "i2", "i4", "i8"]:
    npy(code, (count - 12).astype("<" + code))
    npy(code + "_fortran", np.asfortranarray((count - 12).astype("<" + code)))
for code in ["u1", "u2", "u4", "u8"]:
    npy(code, count.astype("<" + code))
npy("bool", count % 3 == 0)
npy("scalar", np.float32(2.5))
npy("empty", np.zeros((3, 0, 2), np.float32))
npy("big_endian", count.astype(">f4"))
npy("complex", count.astype("<c8"))
npy("struct", np.zeros(2, [("a", "<f4"), ("b", "<i4")]))
npy("int_too_large", np.array([1, 2**24, 2**24 + 1], np.int64))
npy("double_too_large", np.array([1.0, 1e300]))
npy("nan", np.array([[0.0, 1.0], [np.nan, 2.0]], np.float32))
for version in [(2, 0), (3, 0)]:
    with open(os.path.join(out, f"v{version[0]}.npy"), "wb") as file:
        np.lib.format.write_array(file, (count - 12).astype("<f4"), version=version)

# safetensors: every dtype that is read, each with the f32 torch makes of it.
generator = torch.Generator().manual_seed(1)
special = [0.0, -0.0, 1.0, -1.5, 65504.0, 1e-7, 5.9e-8, 2.9e-8, 3.1e-5, 448.0, 0.001953125, float("inf"), float("-inf"), float("nan")]
numbers = torch.cat([torch.tensor(special, dtype=torch.float64), torch.randn(51, generator=generator, dtype=torch.float64) * 3])
floats = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16,
          "f8_e4m3": torch.float8_e4m3fn, "f8_e5m2": torch.float8_e5m2}
integers = {"i64": torch.int64, "i32": torch.int32, "i16": torch.int16, "i8": torch.int8, "u8": torch.uint8, "u16": torch.uint16,
            "u32": torch.uint32, "u64": torch.uint64, "bool": torch.bool}
tensors = {}
for name, dtype in floats.items():
    tensors[name] = numbers.to(dtype).reshape(5, 13)
for name, dtype in integers.items():
    least = -100 if dtype.is_signed and name != "bool" else 0
    tensors[name] = torch.arange(least, least + 7).to(dtype)
for name in list(tensors):
    tensors["as_f32." + name] = tensors[name].to(torch.float32).clone()
# The other direction: f32 rounded to the types we write.
source = torch.cat([torch.randn(60, generator=generator) * 10.0 ** torch.arange(-30, 30) / 4,
                    torch.tensor([65519.0, 6.1e-5, 2.0**-24, 2.0**-25, 1.5 * 2.0**-24, 0.0])])
source = torch.where(source.abs() > 65519, torch.tensor(1.0), source)
tensors["round"] = source
tensors["round.f16"] = source.to(torch.float16)
tensors["round.bf16"] = source.to(torch.bfloat16)
tensors["scalar"] = torch.tensor(2.5)
tensors["empty"] = torch.zeros(0, 4)
tensors["f8_e4m3fnuz"] = numbers[:4].to(torch.float8_e4m3fnuz)
tensors["c64"] = torch.zeros(2, dtype=torch.complex64)
save_file(tensors, os.path.join(out, "all.safetensors"), metadata={"made by": "store.py \u00e9 \"quoted\""})

# Two shards with their index.
shards = {"model-00001-of-00002.safetensors": {"a.weight": torch.arange(6.0).reshape(2, 3), "a.bias": torch.ones(2)},
          "model-00002-of-00002.safetensors": {"b.weight": torch.full((3, 1), -2.0, dtype=torch.bfloat16)}}
weight_map = {}
os.makedirs(os.path.join(out, "sharded"), exist_ok=True)
for file, content in shards.items():
    save_file(content, os.path.join(out, "sharded", file), metadata={"format": "pt"})
    weight_map.update({name: file for name in content})
with open(os.path.join(out, "sharded", "model.safetensors.index.json"), "w", encoding="utf-8") as file:
    json.dump({"metadata": {"total_size": 38}, "weight_map": weight_map}, file, indent=2, sort_keys=True)
    file.write("\n")

# What our writer must write, byte for byte.
written = {"model.embed": torch.arange(6, dtype=torch.float32).reshape(2, 3), "a.half": torch.tensor([1.5, -2.0, 0.25], dtype=torch.float16),
           "b.brain": torch.tensor([[1.0], [-3.0]], dtype=torch.bfloat16), "ids": torch.tensor([1, -2, 3], dtype=torch.int32),
           "mask": torch.tensor([1, 0, 1, 1, 0], dtype=torch.uint8), "double": torch.tensor(0.1, dtype=torch.float64),
           "z.empty": torch.zeros(0, 2), "a.full": torch.full((3,), 7.0)}
save_file(written, os.path.join(out, "written.safetensors"), metadata={"format": "pt"})

print("numpy", np.__version__, "safetensors", safetensors.__version__, "torch", torch.__version__, "python", sys.version.split()[0])
