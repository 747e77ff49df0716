"""Moonshine tiny from quantised tensors (8 bits with scale, zero point or offset beside each) to a directory of Hugging Face's.

Run: python3 tools/convert/moonshine.py model.safetensors.gz TOKENIZER.json[.gz] OUT
The tokenizer is the Llama one whose first 32,000 tokens Moonshine shares."""
import gzip
import json
import os
import sys

import torch
from safetensors.torch import load, save_file

source, tokenizer, out = sys.argv[1:4]
read = lambda path: (gzip.open if path.endswith(".gz") else open)(path, "rb").read()
raw = load(read(source))
os.makedirs(out, exist_ok=True)
tensors = {}
for name, x in raw.items():
    if name.endswith(("_scale", "_zero_point", "_offset")):
        continue
    if name + "_zero_point" in raw:
        x = (x.float() - raw[name + "_zero_point"].float()) * raw[name + "_scale"]
    elif name + "_scale" in raw:
        x = x.float() * raw[name + "_scale"] + raw[name + "_offset"]
    tensors["model." + name.replace("mlp.up_proj", "mlp.fc1").replace("mlp.down_proj", "mlp.fc2")] = x.float().contiguous()
save_file(tensors, os.path.join(out, "model.safetensors"))
files = {
    "config.json": {"architectures": ["MoonshineForConditionalGeneration"], "model_type": "moonshine", "vocab_size": 32768,
                    "hidden_size": 288, "intermediate_size": 1152, "encoder_num_hidden_layers": 6, "decoder_num_hidden_layers": 6,
                    "encoder_num_attention_heads": 8, "decoder_num_attention_heads": 8, "encoder_num_key_value_heads": 8,
                    "decoder_num_key_value_heads": 8, "encoder_hidden_act": "gelu", "decoder_hidden_act": "silu",
                    "max_position_embeddings": 194, "partial_rotary_factor": 0.9, "rope_theta": 10000.0, "attention_bias": False,
                    "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "is_encoder_decoder": True},
    "generation_config.json": {"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "max_length": 194},
    "preprocessor_config.json": {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "feature_size": 1, "sampling_rate": 16000,
                                 "padding_value": 0.0, "do_normalize": False, "return_attention_mask": True},
}
for name, value in files.items():
    with open(os.path.join(out, name), "w") as f:
        json.dump(value, f, indent=2)
with open(os.path.join(out, "tokenizer.json"), "wb") as f:
    f.write(read(tokenizer))
