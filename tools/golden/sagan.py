"""Golden cases of SAGAN, against a model written here in PyTorch: no published implementation has its names.
Run: python3 tools/golden/sagan.py tests/golden/models   (versions: families.py)"""
import json
import os
import shutil
import sys

import torch
from safetensors.torch import save_file
from torch.nn import functional as F

from families import pixels


class Sagan:
    """Parameters by the names of the file; in evaluation: running statistics, singular vectors as they are."""

    def __init__(self, config, seed=7):
        self.k, self.p, self.buffers, self.maps = config, {}, {}, []
        self.g = torch.Generator().manual_seed(seed)
        G, D, n = config["generator_channels"], config["discriminator_channels"], config["num_labels"]
        self.blocks = (config["image_size"] // 4).bit_length() - 1
        self.weight("generator.first", (G * 16, config["latent_size"]))
        for i in range(self.blocks):
            self.block(f"generator.blocks.{i}", G, G, n)
            self.block(f"discriminator.blocks.{i}", D if i else config["num_channels"], D, 0)
        for name, C in (("generator", G), ("discriminator", D)):
            if config["attention_size"]:
                for part, a, b in (("query", C, C // 8), ("key", C, C // 8), ("value", C, C // 2), ("output", C // 2, C)):
                    self.weight(f"{name}.attention.{part}", (b, a, 1, 1))
                self.p[f"{name}.attention.gamma"] = self.normal(1)
        self.norm("generator.norm", G, n)
        self.weight("generator.last", (config["num_channels"], G, 3, 3))
        self.weight("discriminator.judge", (1, D))
        if n > 1:
            self.weight("discriminator.classes", (n, D), bias=False)
        for t in self.p.values():
            t.requires_grad_()

    def normal(self, *shape):
        return 0.3 * torch.randn(shape, generator=self.g)

    def weight(self, name, shape, bias=True):
        w = self.p[name + ".weight"] = self.normal(*shape)
        if bias:
            self.p[name + ".bias"] = self.normal(shape[0])
        u, s, v = torch.linalg.svd(w.reshape(shape[0], -1), full_matrices=False)
        self.buffers[name + ".weight_u"], self.buffers[name + ".weight_v"] = u[:, 0].contiguous(), v[0].contiguous()

    def norm(self, name, channels, labels):
        self.p[name + ".gain.weight"], self.p[name + ".bias.weight"] = 1 + self.normal(labels, channels), self.normal(labels, channels)
        self.buffers[name + ".running_mean"], self.buffers[name + ".running_var"] = self.normal(channels), 0.5 + self.normal(channels).abs()

    def block(self, name, a, b, labels):
        if labels:
            self.norm(name + ".norm1", a, labels)
            self.norm(name + ".norm2", b, labels)
        self.weight(name + ".conv1", (b, a, 3, 3))
        self.weight(name + ".conv2", (b, b, 3, 3))
        self.weight(name + ".shortcut", (b, a, 1, 1))

    def sn(self, name, fixed=False):
        w = self.p[name + ".weight"]
        y = w / (self.buffers[name + ".weight_u"] @ w.reshape(w.shape[0], -1) @ self.buffers[name + ".weight_v"])
        return y.detach() if fixed else y

    def b(self, name, fixed):
        return self.p[name + ".bias"].detach() if fixed else self.p[name + ".bias"]

    def conv(self, name, x, fixed=False):
        w = self.sn(name, fixed)
        return F.conv2d(x, w, self.b(name, fixed), padding=w.shape[2] // 2)

    def cond(self, name, x, labels):
        y = F.batch_norm(x, self.buffers[name + ".running_mean"], self.buffers[name + ".running_var"])
        return y * self.p[name + ".gain.weight"][labels][:, :, None, None] + self.p[name + ".bias.weight"][labels][:, :, None, None]

    def attend(self, name, x, fixed=False):
        q, k, v = (self.conv(f"{name}.attention.{part}", x, fixed).flatten(2) for part in ("query", "key", "value"))
        a = (q.transpose(1, 2) @ k).softmax(-1)
        self.maps.append(a[:, None])
        y = (v @ a.transpose(1, 2)).reshape(x.shape[0], -1, *x.shape[2:])
        gamma = self.p[name + ".attention.gamma"]
        return x + (gamma.detach() if fixed else gamma) * self.conv(f"{name}.attention.output", y, fixed)

    def generate(self, z, labels):
        x = F.linear(z, self.sn("generator.first"), self.p["generator.first.bias"]).reshape(len(z), -1, 4, 4)
        for i in range(self.blocks):
            at = f"generator.blocks.{i}"
            y = self.conv(at + ".conv1", F.interpolate(self.cond(at + ".norm1", x, labels).relu(), scale_factor=2))
            y = self.conv(at + ".conv2", self.cond(at + ".norm2", y, labels).relu())
            x = y + self.conv(at + ".shortcut", F.interpolate(x, scale_factor=2))
            if x.shape[2] == self.k["attention_size"]:
                x = self.attend("generator", x)
        return self.conv("generator.last", self.cond("generator.norm", x, labels).relu()).tanh()

    def judge(self, x, labels, fixed=False):
        for i in range(self.blocks):
            at = f"discriminator.blocks.{i}"
            y = self.conv(at + ".conv1", x.relu() if i else x, fixed)
            y = F.avg_pool2d(self.conv(at + ".conv2", y.relu(), fixed), 2)
            x = y + F.avg_pool2d(self.conv(at + ".shortcut", x, fixed), 2)
            if x.shape[2] == self.k["attention_size"]:
                x = self.attend("discriminator", x, fixed)
        h = x.relu().sum((2, 3))
        y = F.linear(h, self.sn("discriminator.judge", fixed), self.b("discriminator.judge", fixed))[:, 0]
        if "discriminator.classes.weight" in self.p:
            y = y + (self.sn("discriminator.classes", fixed)[labels] * h).sum(1)
        return y


def case(name, config, z, labels, image):
    model = Sagan(config)
    folder = os.path.join(sys.argv[1], name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    kinds = labels if labels is not None else torch.zeros(len(z), dtype=torch.long)
    fake = model.generate(z, kinds)
    found = dict(images=fake)
    if image is not None:
        both = model.judge(torch.cat([image, fake.detach()]), torch.cat([kinds, kinds]))
        yes, no = both.chunk(2)
        d = (1 - yes).relu().mean() + (1 + no).relu().mean()
        g = -model.judge(fake, kinds, fixed=True).mean()
        (d + g).backward()
        found.update({"logits_real": yes, "logits_fake": no, "loss_dict.discriminator": d, "loss_dict.generator": g, "loss": d + g})
        found.update({"grad." + k: p.grad for k, p in model.p.items() if p.grad is not None})
    found.update({f"attentions.{i}": m for i, m in enumerate(model.maps)})
    inputs = dict(latents=z, labels=labels, pixel_values=image)
    save_file({k: v for k, v in inputs.items() if v is not None}, os.path.join(folder, "in.safetensors"))
    save_file({k: v.detach().clone().contiguous() for k, v in found.items()}, os.path.join(folder, "out.safetensors"))
    save_file({k: v.detach().contiguous() for k, v in {**model.p, **model.buffers}.items()}, os.path.join(folder, "model.safetensors"))
    json.dump(dict(model_type="sagan", architectures=["SaganModel"], **config), open(os.path.join(folder, "config.json"), "w"), indent=2)
    size = sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder))
    print(f"{name}: {size // 1024} KiB; {' '.join(sorted(k for k in found if not k.startswith('grad.')))}")


SMALL = dict(image_size=16, num_channels=3, latent_size=6, generator_channels=8, discriminator_channels=8, attention_size=8, num_labels=3)
case("sagan", SMALL, pixels(2, 6), torch.tensor([2, 0]), pixels(2, 3, 16, 16, seed=2).tanh())
case("sagan-plain", dict(SMALL, num_labels=1, attention_size=0, num_channels=1), pixels(3, 6), None, None)
