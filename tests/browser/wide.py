#!/usr/bin/env python3
"""wide.py DIR [LAYERS HEADS HEAD_WIDTH POSITIONS] - writes a Llama of random weights with many heads and room for long texts, with
the tokenizer of the tests' small model: for measuring the page, whose cost is that of the maps and not of what they show."""
import json
import os
import pathlib
import shutil
import sys

TREE = pathlib.Path(__file__).resolve().parent.parent.parent
SMALL = TREE / "tests/golden/stories260K"
VOCABULARY = 512


def shapes(layers, heads, width):
    """Names and shapes of the tensors, in the checkpoint's order."""
    d, inner = heads * width, heads * width * 8 // 3
    yield "model.embed_tokens.weight", [VOCABULARY, d]
    yield "model.norm.weight", [d]
    for i in range(layers):
        at = f"model.layers.{i}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            yield f"{at}{name}.weight", [d]
        for name in "qkvo":
            yield f"{at}self_attn.{name}_proj.weight", [d, d]
        yield f"{at}mlp.gate_proj.weight", [inner, d]
        yield f"{at}mlp.up_proj.weight", [inner, d]
        yield f"{at}mlp.down_proj.weight", [d, inner]


def numbers(name, n):
    """n bf16 numbers: 1 for a norm, else of either sign between 1/32 and 1/16."""
    if "norm" in name:
        return b"\x80\x3f" * n
    out = bytearray(os.urandom(2 * n))
    out[1::2] = bytes(out[1::2]).translate(bytes(0xBD if b & 1 else 0x3D for b in range(256)))
    return bytes(out)


def write(folder, layers=12, heads=12, width=16, positions=2048):
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for file in SMALL.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            shutil.copy(file, folder)
    config = json.loads((SMALL / "config.json").read_text(encoding="ascii"))
    config.update(hidden_size=heads * width, intermediate_size=heads * width * 8 // 3, num_hidden_layers=layers, num_attention_heads=heads,
                  num_key_value_heads=heads, max_position_embeddings=positions)
    (folder / "config.json").write_text(json.dumps(config), encoding="ascii")
    header, at, parts = {}, 0, []
    for name, shape in shapes(layers, heads, width):
        n = shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + 2 * n]}
        parts.append(numbers(name, n))
        at += 2 * n
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))


if __name__ == "__main__":
    write(sys.argv[1], *map(int, sys.argv[2:]))
