"""Golden cases of DLinear, against a model written here in PyTorch after the paper.
Run: python3 tools/golden/dlinear.py tests/golden/models   (versions: families.py)"""
import json
import os
import shutil
import sys

import torch
from safetensors.torch import save_file
from torch.nn import functional as F

from families import pixels


def forecast(p, config, past):
    half, C = config["moving_average"] // 2, config["num_input_channels"]
    x = past.transpose(1, 2)
    trend = F.avg_pool1d(F.pad(x, (half, half), mode="replicate"), config["moving_average"], 1)

    def linear(name, v):
        if not config["individual"]:
            return F.linear(v, p[name + ".weight"], p[name + ".bias"])
        return torch.stack([F.linear(v[:, i], p[f"{name}.{i}.weight"], p[f"{name}.{i}.bias"]) for i in range(C)], 1)

    return (linear("Linear_Seasonal", x - trend) + linear("Linear_Trend", trend)).transpose(1, 2)


def case(name, **config):
    T, H, C = config["context_length"], config["prediction_length"], config["num_input_channels"]
    p, g = {}, torch.Generator().manual_seed(7)
    for which in ("Linear_Seasonal", "Linear_Trend"):
        for i in range(C if config["individual"] else 1):
            at = f"{which}.{i}" if config["individual"] else which
            p[at + ".weight"], p[at + ".bias"] = (0.3 * torch.randn(s, generator=g) for s in ((H, T), (H,)))
    for t in p.values():
        t.requires_grad_()
    past, future = pixels(3, T, C), pixels(3, H, C, seed=2)
    y = forecast(p, config, past)
    loss = F.mse_loss(y, future)
    loss.backward()
    folder = os.path.join(sys.argv[1], name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    found = {"prediction_outputs": y, "loss": loss, **{"grad." + k: t.grad for k, t in p.items()}}
    save_file({"past_values": past, "future_values": future}, os.path.join(folder, "in.safetensors"))
    save_file({k: v.detach().clone().contiguous() for k, v in found.items()}, os.path.join(folder, "out.safetensors"))
    save_file({k: v.detach().contiguous() for k, v in p.items()}, os.path.join(folder, "model.safetensors"))
    json.dump(dict(model_type="dlinear", architectures=["DLinearForPrediction"], **config),
              open(os.path.join(folder, "config.json"), "w"), indent=2)
    print(name)


case("dlinear", context_length=12, prediction_length=4, num_input_channels=2, moving_average=5, individual=False)
case("dlinear-individual", context_length=6, prediction_length=3, num_input_channels=3, moving_average=9, individual=True)
