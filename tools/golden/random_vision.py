"""Random configurations of the families of images, run by fovea and by transformers: outputs, maps, hidden states, loss, gradients.

    python3 tools/golden/random_vision.py build/fovea 20              # so many cases of every family
    python3 tools/golden/random_vision.py build/fovea 100 segformer --seed 7

A case is a model with random sizes and options, saved as transformers saves it, and a batch with or without labels.  A case whose
numbers differ is kept under the folder printed.  By hand, not in CI.  (versions: families.py)"""
import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file

from families import build, flatten, gradients, mask_of, pixels, tokens

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
T = transformers
ACTS = ["gelu", "relu", "silu", "gelu_new", "gelu_pytorch_tanh", "tanh", "quick_gelu"]
FAMILIES = {}


def family(make):
    FAMILIES[make.__name__] = make
    return make


def stack(r):
    heads = r.randint(1, 4)
    # a norm over one number has no gradient, and what PyTorch gives for it is rounding
    return dict(hidden_size=heads * r.randint(2, 9), num_hidden_layers=r.randint(1, 3), num_attention_heads=heads,
                intermediate_size=r.randint(3, 40), hidden_act=r.choice(ACTS), layer_norm_eps=r.choice([1e-12, 1e-6, 1e-3]))


def square(r):
    patch = r.randint(1, 5)
    return dict(image_size=patch * r.randint(1, 5) + r.randint(0, patch - 1), patch_size=patch, num_channels=r.choice([1, 3, 4]))


def names(n):
    return dict(id2label={i: f"L{i}" for i in range(n)}, label2id={f"L{i}": i for i in range(n)})


def image_of(r, k, batch, resized):
    p = k["patch_size"]
    h, w = ([p * r.randint(1, 6) + r.randint(0, p - 1) for _ in range(2)] if resized else [k["image_size"]] * 2)
    return pixels(batch, k["num_channels"], h, w, seed=r.randint(0, 9999))


def classes(r, n, batch):
    if n == 1:
        return torch.randn(batch, generator=torch.Generator().manual_seed(r.randint(0, 9999)))
    return torch.randint(0, n, (batch,), generator=torch.Generator().manual_seed(r.randint(0, 9999)))


@family
def vit(r, heads=("ViTModel", "ViTForImageClassification", "ViTForMaskedImageModeling"), config="ViTConfig"):
    k, n, batch, head = {**stack(r), **square(r)}, r.randint(1, 6), r.randint(1, 3), r.choice(heads)
    k.update(qkv_bias=r.random() < 0.7, encoder_stride=k["patch_size"], **names(n))
    masked = "Masked" in head
    resized = not masked and r.random() < 0.5
    inputs = dict(pixel_values=image_of(r, k, batch, resized))
    if masked:
        side = k["image_size"] // k["patch_size"]
        inputs["bool_masked_pos"] = torch.rand(batch, side * side, generator=torch.Generator().manual_seed(3)) < 0.5
        k["image_size"] = side * k["patch_size"]
        inputs["pixel_values"] = image_of(r, k, batch, False)
    elif head.endswith("Classification"):
        inputs["labels"] = classes(r, n, batch)
    return head, getattr(T, config)(**k), inputs, dict(interpolate_pos_encoding=True) if resized else {}


@family
def deit(r):
    return vit(r, ("DeiTModel", "DeiTForImageClassification", "DeiTForImageClassificationWithTeacher", "DeiTForMaskedImageModeling"),
               "DeiTConfig")


@family
def dinov2(r):
    k, n, batch, head = {**stack(r), **square(r)}, r.randint(1, 6), r.randint(1, 3), r.choice(["Dinov2Model", "Dinov2ForImageClassification"])
    del k["intermediate_size"]
    k.update(mlp_ratio=r.randint(1, 5), use_swiglu_ffn=r.random() < 0.4, qkv_bias=r.random() < 0.7, **names(n))
    inputs = dict(pixel_values=image_of(r, k, batch, r.random() < 0.6))
    if head.endswith("Classification"):
        inputs["labels"] = classes(r, n, batch)
    return head, T.Dinov2Config(**k), inputs, {}


def text_of(r, k):
    n, t = r.randint(1, 4), r.randint(2, k["max_position_embeddings"])
    ids = tokens(k["vocab_size"] - 1, n, t, seed=r.randint(0, 9999), low=3)
    lengths = [r.randint(1, t) for _ in range(n)]
    mask = mask_of(lengths, t)
    for row, length in enumerate(lengths):
        ids[row, length - 1:] = k["vocab_size"] - 1
    return ids, mask


def halves(r, width=None):
    text = dict(stack(r), vocab_size=r.randint(10, 50), max_position_embeddings=r.randint(2, 12))
    vision = {**stack(r), **square(r)}
    vision["image_size"] -= vision["image_size"] % vision["patch_size"]
    return text, vision


@family
def clip(r):
    text, vision = halves(r)
    text.update(eos_token_id=r.choice([2, text["vocab_size"] - 1]), projection_dim=6)
    ids, mask = text_of(r, text)
    resized = r.random() < 0.4
    image = image_of(r, vision, r.choice([len(ids), r.randint(1, 3)]), resized)
    inputs = dict(input_ids=ids, pixel_values=image)
    if r.random() < 0.6:
        inputs["attention_mask"] = mask
    how = dict(interpolate_pos_encoding=resized, return_loss=len(ids) == len(image))
    return "CLIPModel", T.CLIPConfig(text_config=text, vision_config=vision, projection_dim=r.randint(1, 12)), inputs, how


@family
def siglip(r):
    text, vision = halves(r)
    text["projection_size"] = vision["hidden_size"]
    ids, mask = text_of(r, text)
    resized = r.random() < 0.4
    image = image_of(r, vision, r.choice([len(ids), r.randint(1, 3)]), resized)
    how = dict(interpolate_pos_encoding=resized, return_loss=len(ids) == len(image))
    return "SiglipModel", T.SiglipConfig(text_config=text, vision_config=vision), dict(input_ids=ids, pixel_values=image), how


@family
def yolos(r):
    k, n, batch = {**stack(r), **square(r)}, r.randint(1, 5), r.randint(1, 3)
    p = k["patch_size"]
    k.update(image_size=[p * r.randint(1, 4), p * r.randint(1, 4)], num_detection_tokens=r.randint(1, 7),
             use_mid_position_embeddings=k["num_hidden_layers"] > 1 and r.random() < 0.6, eos_coefficient=r.choice([0.1, 0.5]), **names(n))
    inputs = dict(pixel_values=pixels(batch, k["num_channels"], p * r.randint(1, 5), p * r.randint(1, 5), seed=r.randint(0, 9999)))
    if r.random() < 0.2:
        return "YolosModel", T.YolosConfig(**k), inputs, {}
    most = r.randint(1, 9)
    g = torch.Generator().manual_seed(r.randint(0, 9999))
    inputs["class_labels"] = torch.randint(0, n, (batch, most), generator=g)
    inputs["class_labels"][torch.rand(batch, most, generator=g) < 0.3] = -100
    inputs["boxes"] = torch.rand(batch, most, 4, generator=g) * 0.5 + 0.05
    objects = [dict(class_labels=c[c >= 0], boxes=b[c >= 0]) for c, b in zip(inputs["class_labels"], inputs["boxes"])]
    return "YolosForObjectDetection", T.YolosConfig(**k), inputs, dict(labels=objects, class_labels=None, boxes=None)


@family
def segformer(r):
    n, stages, batch = r.randint(2, 5), r.randint(1, 4), r.randint(1, 2)
    heads = [r.randint(1, 3) for _ in range(stages)]
    k = dict(num_encoder_blocks=stages, depths=[r.randint(1, 2) for _ in heads], sr_ratios=[r.choice([1, 2, 3]) for _ in heads],
             hidden_sizes=[h * r.randint(2, 6) for h in heads], patch_sizes=[r.choice([3, 5, 7]) for _ in heads],
             strides=[r.choice([1, 2, 4])] + [r.choice([1, 2]) for _ in heads[1:]], num_attention_heads=heads,
             mlp_ratios=[r.randint(1, 4) for _ in heads], hidden_act=r.choice(ACTS), decoder_hidden_size=r.randint(1, 12),
             num_channels=r.choice([1, 3]), **names(n))
    h, w = r.randint(24, 40), r.randint(24, 40)
    head = r.choice(["SegformerModel", "SegformerForImageClassification", "SegformerForSemanticSegmentation"])
    inputs = dict(pixel_values=pixels(batch, k["num_channels"], h, w, seed=r.randint(0, 9999)))
    if head.endswith("Classification"):
        inputs["labels"] = classes(r, n, batch)
    if head.endswith("Segmentation"):
        marks = torch.randint(0, n, (batch, r.randint(5, h), r.randint(5, w)))
        marks[:, :2] = 255
        inputs["labels"] = marks
    return head, T.SegformerConfig(**k), inputs, {}


@family
def videomae(r):
    k, n, batch = {**stack(r), **square(r)}, r.randint(1, 5), r.randint(1, 2)
    k.update(num_frames=r.randint(2, 6), tubelet_size=r.randint(1, 2), qv_bias=r.random() < 0.6, use_mean_pooling=r.random() < 0.6, **names(n))
    inputs = dict(pixel_values=pixels(batch, k["num_frames"], k["num_channels"], k["image_size"], k["image_size"], seed=r.randint(0, 9999)))
    head = r.choice(["VideoMAEModel", "VideoMAEForVideoClassification"])
    if head.endswith("Classification"):
        inputs["labels"] = classes(r, n, batch)
    return head, T.VideoMAEConfig(**k), inputs, {}


@family
def captions(r):
    image = {**stack(r), **square(r)}
    heads = r.randint(1, 3)
    text = T.GPT2Config(vocab_size=r.randint(10, 40), n_positions=r.randint(4, 12), n_embd=heads * r.randint(2, 8), n_head=heads,
                        n_layer=r.randint(1, 3), n_inner=r.choice([None, 9]), tie_word_embeddings=r.random() < 0.5,
                        scale_attn_by_inverse_layer_idx=r.random() < 0.3, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    encoder = r.choice([T.ViTConfig, T.DeiTConfig])(**image)
    config = T.VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, text, decoder_start_token_id=1, pad_token_id=0)
    batch = r.randint(1, 3)
    inputs = dict(pixel_values=image_of(r, image, batch, False), labels=tokens(text.vocab_size, batch, r.randint(2, text.n_positions)))
    return "VisionEncoderDecoderModel", config, inputs, {}


def make(head, config, seed):
    if head != "VisionEncoderDecoderModel":
        return build(getattr(T, head), config, seed=seed)
    torch.manual_seed(seed)
    model = T.VisionEncoderDecoderModel(config).eval()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return model


def run(program, folder, r):
    head, config, inputs, how = FAMILIES[r.family](r)
    model = make(head, config, r.randint(0, 9999))
    model.save_pretrained(folder)
    given = {k: v for k, v in {**inputs, **how}.items() if v is not None}
    if "return_loss" in given and not given["return_loss"]:
        del given["return_loss"]
    output = model(**given, output_attentions=True, output_hidden_states=True, return_dict=True)
    want = flatten(output)
    if output.get("loss") is not None:
        output.loss.backward()
        want.update({"grad." + k: g for k, g in gradients(model, folder).items()})
    save_file({k: v.contiguous() for k, v in inputs.items()}, os.path.join(folder, "in.safetensors"))
    out = os.path.join(folder, "ours.safetensors")
    grad = ["--grad"] if output.get("loss") is not None else []
    done = subprocess.run([program, "forward", "-m", folder, "-i", os.path.join(folder, "in.safetensors"), "-o", out, "--attentions", "--hidden-states",
                           *grad], capture_output=True, text=True)
    if done.returncode:
        return head, done.stderr.strip()
    got = load_file(out)
    for name, w in want.items():
        if name not in got:  # transformers saves ESM's norms with the names of TensorFlow
            name = name.replace(".gamma", ".weight").replace(".beta", ".bias")
        if name.startswith("grad.") and name not in got and not w.any():  # no object, so no box has a gradient
            continue
        if name not in got or got[name].shape != w.shape:
            return head, f"{name}: {tuple(got[name].shape) if name in got else 'missing'}, expected {tuple(w.shape)}"
        off, norm = (got[name] - w).norm().item(), w.norm().item()
        most = (got[name] - w).abs().max().item() if w.numel() else 0
        if name.startswith("grad."):
            if not off <= 1e-3 * norm + 1e-5:
                return head, f"{name}: off by {off} of {norm}"
        elif not most <= 1e-4 * max(1, w.abs().max().item()):
            return head, f"{name}: off by {most}"
    return head, None


def main():
    p = argparse.ArgumentParser()
    p.add_argument("program")
    p.add_argument("count", type=int)
    p.add_argument("family", nargs="*")
    p.add_argument("--seed", type=int, default=1)
    args = p.parse_args()
    wrong = 0
    for name in args.family or FAMILIES:
        bad = 0
        for i in range(args.count):
            r = random.Random(f"{name} {args.seed} {i}")
            r.family = name
            folder = tempfile.mkdtemp()
            head, problem = run(args.program, folder, r)
            if problem:
                print(f"{name} {i}: {head}: {problem}  ({folder})", flush=True)
                bad += 1
            else:
                shutil.rmtree(folder)
        print(f"{name}: {args.count - bad} of {args.count} alike", flush=True)
        wrong += bad
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
