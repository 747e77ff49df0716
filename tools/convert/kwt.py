"""The published keyword transformer (model.safetensors, labels.txt) as a model directory.

Run: python3 tools/convert/kwt.py FOLDER OUT [--base]
With --base the head is left out: the encoder alone, for classifiers of other sounds to go on from (recipes/fsdd-kwt1.ini).
Its front end is the MFCC that the audio processor computes; here it is only checked that mean and deviation are 0 and 1."""
import json
import os
import sys

from safetensors.torch import load_file, save_file

folder, out = sys.argv[1:3]
base = sys.argv[3:] == ["--base"]
tensors = load_file(os.path.join(folder, "model.safetensors"))
with open(os.path.join(folder, "labels.txt")) as f:
    labels = f.read().split()
assert (tensors["frontend.mean"] == 0).all() and (tensors["frontend.inv_std"] == 1).all()
os.makedirs(out, exist_ok=True)
width, features = tensors["embed.weight"].shape
layers = sum(name.endswith(".ln1.weight") for name in tensors)
save_file({k: v.contiguous() for k, v in tensors.items() if not k.startswith(("frontend.", "head.") if base else "frontend.")}, os.path.join(out, "model.safetensors"))
files = {
    "config.json": {"architectures": ["KWTForAudioClassification"], "model_type": "kwt", "hidden_size": width,
                    "num_hidden_layers": layers, "num_attention_heads": width // 64,
                    "intermediate_size": tensors["layers.0.mlp.fc1.weight"].shape[0], "hidden_act": "gelu_pytorch_tanh",
                    "num_features": features, "max_frames": tensors["pos_embed"].shape[0] - 1, "layer_norm_eps": 1e-6,
                    "id2label": dict(enumerate(labels)), "label2id": {x: i for i, x in enumerate(labels)}},
    "preprocessor_config.json": {"feature_extractor_type": "KWTFeatureExtractor", "feature_size": features,
                                 "num_mel_bins": tensors["frontend.mel.weight"].shape[0], "sampling_rate": 16000, "win_length": 480,
                                 "hop_length": 160, "n_fft": 512, "min_frequency": 20, "max_frequency": 7600,
                                 "max_length": tensors["pos_embed"].shape[0] - 1},
}
if base:
    files["config.json"]["architectures"] = ["KWTModel"]
    for key in ("id2label", "label2id"):
        del files["config.json"][key]
for name, value in files.items():
    with open(os.path.join(out, name), "w") as f:
        json.dump(value, f, indent=2)
