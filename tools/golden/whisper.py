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


def with_generation(folder):
    with open(os.path.join(folder, "generation_config.json"), "w") as f:
        json.dump(GENERATE, f, indent=1)


case("whisper", build(WhisperModel, WhisperConfig(**SMALL)), input_features=sound, decoder_input_ids=tokens(V, 2, 5))
model = build(WhisperForConditionalGeneration, WhisperConfig(**SMALL), spread=0.3, seed=6)
case("whisper-text", model, input_features=sound, labels=labels, extra={"sequences.input": talk, **text(model)}, change=with_generation)
case("whisper-classify", build(WhisperForAudioClassification, WhisperConfig(**SMALL, num_labels=3, classifier_proj_size=7)),
     input_features=sound, labels=torch.tensor([2, 0]))
