"""Golden cases of captioning models: ViT with GPT-2.
Run: python3 tools/golden/vision_encoder_decoder.py tests/golden/models   (versions: families.py)"""
import os

import torch
from safetensors.torch import load_file, save_file
from transformers import DeiTConfig, GPT2Config, ViTConfig, VisionEncoderDecoderConfig, VisionEncoderDecoderModel

from families import case, mask_of, pixels, tokens

V, T = 37, 6
IMAGE = dict(hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20, image_size=8, patch_size=4)
TEXT = dict(vocab_size=V, n_positions=16, n_layer=2, n_head=2, bos_token_id=35, eos_token_id=36, pad_token_id=0)
image, ids, mask = pixels(3, 3, 8, 8), tokens(V, 3, T), mask_of([6, 4, 2], T)
labels = torch.where(mask == 1, ids, -100)


def build(encoder, decoder, seed=7, spread=0.2):
    torch.manual_seed(seed)
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder, decoder_start_token_id=35, pad_token_id=0)
    model = VisionEncoderDecoderModel(config).eval()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        for p in model.parameters():
            p.add_(spread * torch.randn_like(p))
    return model


def old_masks(folder):
    """As first published: with the masks of GPT-2's attentions beside the weights."""
    path = os.path.join(folder, "model.safetensors")
    t = load_file(path)
    for name in "attn", "crossattention":
        t[f"decoder.transformer.h.0.{name}.bias"] = torch.tril(torch.ones(1, 1, 16, 16)).bool()
        t[f"decoder.transformer.h.0.{name}.masked_bias"] = torch.tensor(-1e4)
    save_file(t, path, metadata={"format": "pt"})


def written(model, **how):
    return model.generate(image, max_new_tokens=8, decoder_start_token_id=35, eos_token_id=36, pad_token_id=0, **how)


model = build(ViTConfig(**IMAGE), GPT2Config(**TEXT, n_embd=12))
case("vision-encoder-decoder", model, pixel_values=image, labels=labels,
     extra=dict(sequences=written(model, do_sample=False), sequences_beams=written(model, do_sample=False, num_beams=3)))
model = build(DeiTConfig(**IMAGE), GPT2Config(**TEXT, n_embd=10, tie_word_embeddings=False, scale_attn_by_inverse_layer_idx=True))
case("vision-encoder-decoder-projected", model, change=old_masks, pixel_values=image, decoder_input_ids=ids, decoder_attention_mask=mask,
     extra=dict(sequences=written(model, do_sample=False)))
