"""Golden cases of Whisper.  Run: python3 tools/golden/whisper.py tests/golden/models   (versions: families.py)

Token ids of the tiny vocabulary: 0..19 text, 20 end, 21 start, 22..24 languages, 25 translate, 26 transcribe, 27 previous
text, 28 no speech, 29 no timestamps, 30..36 timestamps from 0.00 s to 0.12 s.  A window is 12 frames, that is 6 positions."""
import json
import os
import sys

import torch
from transformers import (GenerationConfig, WhisperConfig, WhisperForAudioClassification, WhisperForConditionalGeneration,
                          WhisperModel)

from families import build, case, pixels, tokens

V, MEL, FRAMES, END, START, NO_TIMES = 37, 5, 12, 20, 21, 29
SMALL = dict(vocab_size=V, num_mel_bins=MEL, d_model=12, encoder_layers=2, decoder_layers=2, encoder_attention_heads=2,
             decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, max_source_positions=FRAMES // 2,
             max_target_positions=24, pad_token_id=END, bos_token_id=END, eos_token_id=END, decoder_start_token_id=START,
             begin_suppress_tokens=None)
GENERATE = dict(bos_token_id=END, pad_token_id=END, eos_token_id=END, decoder_start_token_id=START, max_length=24,
                is_multilingual=True, no_timestamps_token_id=NO_TIMES, prev_sot_token_id=27, max_initial_timestamp_index=4,
                lang_to_id={"<|en|>": 22, "<|de|>": 23, "<|fr|>": 24}, task_to_id={"translate": 25, "transcribe": 26},
                suppress_tokens=[3, 25, 26, 27, 28], begin_suppress_tokens=[7, END], return_timestamps=False)
sound, talk = pixels(2, MEL, FRAMES), pixels(1, MEL, 41, seed=8)
labels = tokens(20, 2, 6, seed=2, low=0)
labels[1, 4:] = -100


def text(model):
    """What generate() gives for the first clip: start, language and task in front."""
    model.generation_config = GenerationConfig(**GENERATE)
    rows = {}
    for name, options in (("plain", dict(language="de", task="transcribe")), ("detected", dict(task="translate")),
                          ("times", dict(language="fr", task="transcribe", return_timestamps=True))):
        for search, beams in (("greedy", {}), ("beams", dict(num_beams=3))):
            rows[f"sequences.{name}.{search}"] = model.generate(input_features=sound[:1], do_sample=False, **beams, **options)
    found = model.generate(input_features=talk, attention_mask=torch.ones(1, talk.shape[2]).long(), do_sample=False, language="de",
                           task="transcribe", return_timestamps=True, return_segments=True)
    rows["sequences.talk"] = found["sequences"]
    rows["sequences.talk.times"] = torch.tensor([[s["start"], s["end"], len(s["tokens"])] for s in found["segments"][0]])
    for name, row in rows.items():
        print(name, row.tolist())
    return rows


def with_generation(folder, settings=GENERATE):
    with open(os.path.join(folder, "generation_config.json"), "w") as f:
        json.dump(settings, f, indent=1)


# Times of tokens need a window in which there is a way to find: 80 frames, 40 positions, timestamps up to 0.80 s.
LONG = 80
WORDS = dict(SMALL, vocab_size=30 + LONG // 2 + 1, max_source_positions=LONG // 2, max_target_positions=40)
TIMED = dict(GENERATE, max_length=40, max_initial_timestamp_index=20, alignment_heads=[[0, 1], [1, 0], [1, 1]])


def times(model):
    """Tokens of a talk of several windows, greedily and by beams, and when each of them was said."""
    model.generation_config = GenerationConfig(**TIMED)
    talk = pixels(1, MEL, 3 * LONG - 20, seed=10)
    rows = {"times.input": talk}
    for name, beams in (("greedy", 1), ("beams", 3)):
        found = model.generate(input_features=talk, attention_mask=torch.ones(1, talk.shape[2]).long(), do_sample=False, language="de",
                               num_beams=beams, task="transcribe", return_timestamps=True, return_segments=True,
                               return_token_timestamps=True)
        parts = found["segments"][0]
        rows[f"times.{name}.ids"] = torch.cat([s["tokens"] for s in parts])[None]
        rows[f"times.{name}"] = torch.cat([s["token_timestamps"].float() for s in parts])
    for name, row in rows.items():
        print(name, [round(x, 4) for x in row.flatten().tolist()][:50])
    return rows


case("whisper", build(WhisperModel, WhisperConfig(**SMALL)), input_features=sound, decoder_input_ids=tokens(V, 2, 5))
model = build(WhisperForConditionalGeneration, WhisperConfig(**SMALL), spread=0.3, seed=6)
case("whisper-text", model, input_features=sound, labels=labels, extra={"sequences.input": talk, **text(model)}, change=with_generation)
model = build(WhisperForConditionalGeneration, WhisperConfig(**WORDS), spread=0.8, seed=15)
case("whisper-words", model, input_features=pixels(1, MEL, LONG, seed=9), decoder_input_ids=tokens(20, 1, 6), only=["logits"],
     extra=times(model), change=lambda folder: with_generation(folder, TIMED))
case("whisper-classify", build(WhisperForAudioClassification, WhisperConfig(**SMALL, num_labels=3, classifier_proj_size=7)),
     input_features=sound, labels=torch.tensor([2, 0]))
