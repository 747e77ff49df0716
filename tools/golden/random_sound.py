"""Random configurations of families of sound, series and proteins, run by fovea and by transformers, as random_vision.py does for images.

    python3 tools/golden/random_sound.py build/fovea 20 [FAMILY...] [--seed 7]

(versions: families.py)"""
import torch
import transformers as T

import random_vision
from families import mask_of, pixels, tokens
from random_vision import ACTS, classes, names, stack

FAMILIES = {}


def family(make):
    FAMILIES[make.__name__] = make
    return make


@family
def esm(r):
    k = stack(r)
    k.pop("hidden_act")
    k["hidden_size"] += k["hidden_size"] // k["num_attention_heads"] % 2 * k["num_attention_heads"]  # rotation takes pairs
    n, rows, width = r.randint(1, 5), r.randint(1, 3), r.randint(3, 12)
    k.update(vocab_size=33, pad_token_id=1, mask_token_id=32, max_position_embeddings=r.choice([16, 40]), token_dropout=r.random() < 0.6,
             position_embedding_type=r.choice(["absolute", "rotary"]), emb_layer_norm_before=r.random() < 0.5, **names(n))
    ids = tokens(31, rows, width, seed=r.randint(0, 9999), low=4)
    ids[torch.rand(ids.shape, generator=torch.Generator().manual_seed(r.randint(0, 9999))) < 0.2] = 32
    ids[:, 0] = 5
    mask = mask_of([r.randint(1, width) for _ in range(rows)], width)
    ids[mask == 0] = 1
    head = r.choice(["EsmModel", "EsmForMaskedLM", "EsmForSequenceClassification", "EsmForTokenClassification"])
    inputs = dict(input_ids=ids, attention_mask=mask)
    if "Masked" in head:
        inputs["labels"] = torch.where(mask == 1, tokens(33, rows, width, seed=3), -100)
    elif "Sequence" in head:
        inputs["labels"] = classes(r, n, rows)
    elif "Token" in head:
        inputs["labels"] = torch.where(mask == 1, tokens(n, rows, width, seed=3, low=0), -100)
    return head, T.EsmConfig(**k), inputs, {}


def speech(r):
    heads, other = r.randint(1, 3), r.choice([1, 2])
    return dict(vocab_size=r.randint(12, 40), encoder_layers=r.randint(1, 2), decoder_layers=r.randint(1, 3), encoder_attention_heads=heads,
                decoder_attention_heads=other, d_model=4 * heads * r.randint(1, 3), encoder_ffn_dim=r.randint(3, 24),
                decoder_ffn_dim=r.randint(3, 24), activation_function=r.choice(ACTS), pad_token_id=0, bos_token_id=1, eos_token_id=2,
                decoder_start_token_id=3)


@family
def whisper(r):
    k, n, rows = speech(r), r.randint(2, 4), r.randint(1, 2)
    k.update(num_mel_bins=r.randint(2, 9), max_source_positions=r.randint(3, 9), max_target_positions=r.randint(6, 12),
             classifier_proj_size=r.randint(2, 9), scale_embedding=r.random() < 0.3, **names(n))
    head = r.choice(["WhisperModel", "WhisperForConditionalGeneration", "WhisperForAudioClassification"])
    inputs = dict(input_features=pixels(rows, k["num_mel_bins"], 2 * k["max_source_positions"], seed=r.randint(0, 9999)))
    if head == "WhisperModel":
        inputs["decoder_input_ids"] = tokens(k["vocab_size"], rows, r.randint(1, 6), low=4)
    elif "Generation" in head:
        inputs["labels"] = tokens(k["vocab_size"], rows, r.randint(2, 6), low=4)
    else:
        inputs["labels"] = classes(r, n, rows)
    return head, T.WhisperConfig(**k), inputs, {}


@family
def moonshine(r):
    heads, rows = r.randint(1, 3), r.randint(1, 2)
    k = dict(vocab_size=r.randint(12, 40), hidden_size=heads * r.choice([12, 14, 16]), intermediate_size=r.randint(3, 24),
             encoder_num_hidden_layers=r.randint(1, 2), decoder_num_hidden_layers=r.randint(1, 2), encoder_num_attention_heads=heads,
             decoder_num_attention_heads=heads, encoder_num_key_value_heads=heads, decoder_num_key_value_heads=heads,
             encoder_hidden_act=r.choice(ACTS), decoder_hidden_act=r.choice(ACTS), attention_bias=r.random() < 0.5,
             max_position_embeddings=64, pad_token_id=2, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)
    inputs = dict(input_values=pixels(rows, r.randint(1000, 2600), seed=r.randint(0, 9999)))
    inputs["labels"] = tokens(k["vocab_size"], rows, r.randint(2, 8), low=4)
    return "MoonshineForConditionalGeneration", T.MoonshineConfig(**k), inputs, {}


@family
def ast(r):
    k, n, rows, p = stack(r), r.randint(1, 5), r.randint(1, 2), r.randint(2, 4)
    k.update(patch_size=p, frequency_stride=r.randint(1, p), time_stride=r.randint(1, p), max_length=p + r.randint(1, 9),
             num_mel_bins=p + r.randint(0, 7), qkv_bias=r.random() < 0.7, **names(n))
    k["frequency_stride"] = k["time_stride"]  # others are refused
    head = r.choice(["ASTModel", "ASTForAudioClassification"])
    inputs = dict(input_values=pixels(rows, k["max_length"], k["num_mel_bins"], seed=r.randint(0, 9999)))
    if "Class" in head:
        inputs["labels"] = classes(r, n, rows)
    return head, T.ASTConfig(**k), inputs, {}


@family
def patchtst(r):
    heads, rows = r.randint(1, 3), r.randint(2, 3)
    k = dict(num_input_channels=r.randint(1, 3), context_length=r.randint(8, 20), prediction_length=r.randint(1, 6), patch_length=r.randint(2, 5),
             patch_stride=r.randint(1, 4), num_hidden_layers=r.randint(1, 2), d_model=2 * heads * r.randint(1, 3), num_attention_heads=heads,
             share_embedding=r.random() < 0.6, ffn_dim=r.randint(3, 20), norm_type=r.choice(["batchnorm", "layernorm"]), bias=r.random() < 0.6,
             activation_function=r.choice(ACTS), pre_norm=r.random() < 0.6, positional_encoding_type=r.choice(["sincos", "random"]),
             use_cls_token=r.random() < 0.4, scaling=r.choice(["std", "mean", None]), loss="mse",
             pooling_type=r.choice(["mean", "max"]))
    head = r.choice(["PatchTSTModel", "PatchTSTForPrediction"])
    inputs = dict(past_values=pixels(rows, k["context_length"], k["num_input_channels"], seed=r.randint(0, 9999)))
    if "Prediction" in head:
        inputs["future_values"] = pixels(rows, k["prediction_length"], k["num_input_channels"], seed=r.randint(0, 9999))
    return head, T.PatchTSTConfig(**k), inputs, {}


if __name__ == "__main__":
    random_vision.FAMILIES = FAMILIES
    random_vision.main()
