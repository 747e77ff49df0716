"""Opens in transformers what fovea saved: every tensor must have the bits of the original, and none be missing or new.
Run:  mkdir saved && FOVEA_SAVED=$PWD/saved build/tests/test_families
      python3 tools/golden/saved.py saved tests/golden/models   (seen with transformers 5.22.2, torch 2.15.0)"""
import json
import os
import sys

import torch
import transformers

transformers.logging.set_verbosity_error()
saved, golden = sys.argv[1:]
wrong = 0
for case in sorted(os.listdir(saved)):
    head = getattr(transformers, json.load(open(os.path.join(saved, case, "config.json")))["architectures"][0])
    ours, info = head.from_pretrained(os.path.join(saved, case), output_loading_info=True)
    whole = json.load(open(os.path.join(golden, case, "config.json")))["architectures"][0]
    theirs = getattr(transformers, whole).from_pretrained(os.path.join(golden, case)).state_dict()
    # of a model with parts for images the text part is saved
    theirs = {k.replace("model.language_model.", "model."): v for k, v in theirs.items() if "vision" not in k and "multi_modal" not in k}
    # a counter of batch norms changes nothing
    theirs = {k: v for k, v in theirs.items() if not k.endswith("num_batches_tracked")}
    info["missing_keys"] = [k for k in info["missing_keys"] if not k.endswith("num_batches_tracked")]
    other = [k for k, v in theirs.items() if not torch.equal(v, ours.state_dict()[k])]
    left = {k: v for k, v in info.items() if v}
    wrong += bool(other or left)
    if other or left:
        print(case, other, left)
print(len(os.listdir(saved)), "models,", wrong, "differ")
sys.exit(wrong > 0)
