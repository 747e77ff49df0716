"""Opens an adapter that fovea trained with PEFT and compares its logits with those of `fovea forward`.

    python3 tools/golden/open_adapter.py build/fovea runs/base/model runs/lora/model "a text"
"""
import subprocess
import sys
import tempfile

import torch
import transformers
from peft import PeftModel
from safetensors.torch import load_file, save_file

program, base, adapter, text = sys.argv[1:5]
config = transformers.AutoConfig.from_pretrained(adapter)
model = getattr(transformers, config.architectures[0]).from_pretrained(base, config=config)
model = PeftModel.from_pretrained(model, adapter).eval()
ids = transformers.AutoTokenizer.from_pretrained(adapter)(text, return_tensors="pt")["input_ids"]
with tempfile.TemporaryDirectory() as work:
    save_file({"input_ids": ids.int()}, work + "/in.safetensors")
    subprocess.run([program, "forward", "-m", adapter, "-i", work + "/in.safetensors", "-o", work + "/out.safetensors"], check=True)
    ours = load_file(work + "/out.safetensors")["logits"]
theirs = model(input_ids=ids).logits.detach()
off = float((ours - theirs).abs().max())
print(f"largest difference of the logits: {off:.2e}")
sys.exit(off > 1e-4)
