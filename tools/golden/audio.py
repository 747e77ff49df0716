"""Golden sound: synthetic clips in every format, and what transformers' feature extractors make of them.

tests/golden/audio: sweep.{wav,flac,ogg,mp3} (a sweep with tones and noise; mono but for the FLAC, which is stereo at 44.1 kHz),
decoded.safetensors (NAME: the mono samples that soundfile decodes), and for each extractor a folder with
preprocessor_config.json and out.safetensors (out: what it makes of sweep.wav).  tests/data/test_audio.c reads them.  The
keyword transformer's MFCC, which transformers does not have, are computed here in double, as its published file does.
Run: python3 tools/golden/audio.py tests/golden/audio   (made with transformers 5.22.2, soundfile 0.13)"""
import json
import os
import sys

import numpy as np
import soundfile
import torch
from safetensors.torch import save_file
from transformers import ASTFeatureExtractor, SpeechT5FeatureExtractor, Wav2Vec2FeatureExtractor, WhisperFeatureExtractor

folder = sys.argv[1]
os.makedirs(folder, exist_ok=True)
rng = np.random.default_rng(7)


def at(*names):
    return os.path.join(folder, *names)


def sweep(seconds, rate, top):
    t = np.arange(int(seconds * rate)) / rate
    x = 0.4 * np.sin(2 * np.pi * (60 * t + (top - 60) * t * t / (2 * seconds))) * np.minimum(1, t / 0.05)
    return x + 0.15 * np.sin(2 * np.pi * 440 * t) + rng.normal(0, 0.01, len(t))


decoded = {}


def add(name, x, rate, **how):
    soundfile.write(at(name), x, rate, **how)
    again, got = soundfile.read(at(name), dtype="float32", always_2d=True)
    assert got == rate
    decoded[name] = torch.from_numpy(again.mean(1).copy())


mono = sweep(0.5, 16000, 7000)
add("sweep.wav", mono, 16000, subtype="PCM_16")
short = sweep(0.1, 44100, 15000)
add("sweep.flac", np.stack([short, np.roll(short, 50)], 1), 44100, subtype="PCM_16")
add("sweep.ogg", sweep(0.1, 22050, 8000), 22050, format="OGG", subtype="VORBIS")
add("sweep.mp3", sweep(0.1, 16000, 5000), 16000, format="MP3")
save_file(decoded, at("decoded.safetensors"))
x = soundfile.read(at("sweep.wav"), dtype="float32")[0]


def mfcc(x, frames, fft=512, window=480, hop=160, mels=80, low=20., high=7600., count=40, rate=16000):
    n = (frames - 1) * hop + window
    x = np.pad(x.astype(np.float64), (0, max(0, n - len(x))))[:n]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(window) / window)
    f = np.stack([x[i * hop:i * hop + window] * hann for i in range(frames)])
    mel = lambda hz: 1127 * np.log(1 + hz / 700)
    at_bin = mel(np.arange(fft // 2 + 1) * rate / fft)[:, None]
    corner = np.linspace(mel(low), mel(high), mels + 2)
    bank = np.maximum(0, np.minimum((at_bin - corner[:-2]) / (corner[1:-1] - corner[:-2]), (corner[2:] - at_bin) / (corner[2:] - corner[1:-1])))
    y = np.log(np.maximum(np.abs(np.fft.rfft(f, fft)) @ bank, 1e-12))
    dct = np.cos(np.pi / mels * (np.arange(mels) + .5) * np.arange(count)[:, None]) * np.sqrt(2 / mels)
    return torch.from_numpy(y @ dct.T).float()


extractors = {
    "whisper": WhisperFeatureExtractor(feature_size=20, chunk_length=1),
    "whisper-normal": WhisperFeatureExtractor(feature_size=16, chunk_length=1, do_normalize=True),
    "ast": ASTFeatureExtractor(num_mel_bins=24, max_length=60),
    "ast-cut": ASTFeatureExtractor(num_mel_bins=32, max_length=20, do_normalize=False),
    "wav2vec2": Wav2Vec2FeatureExtractor(do_normalize=True),
    "moonshine": Wav2Vec2FeatureExtractor(do_normalize=False),
    "speecht5": SpeechT5FeatureExtractor(num_mel_bins=24),
    "speecht5-short": SpeechT5FeatureExtractor(num_mel_bins=20, win_length=25, hop_length=10, fmin=50, fmax=8000, mel_floor=1e-3),
}
for name, extractor in extractors.items():
    extractor.save_pretrained(at(name))
    how = {"do_normalize": True} if name == "whisper-normal" else {}
    given = dict(audio_target=x) if name.startswith("speecht5") else dict(raw_speech=x)  # targets are spectrograms
    out = extractor(**given, sampling_rate=16000, return_tensors="pt", **how)
    save_file({"out": next(v for k, v in out.items() if k.startswith("input_"))[0].contiguous()}, at(name, "out.safetensors"))
    with open(at(name, "preprocessor_config.json")) as f:
        print(name, json.load(f))
os.makedirs(at("kwt"), exist_ok=True)
with open(at("kwt", "preprocessor_config.json"), "w") as f:
    json.dump({"feature_extractor_type": "KWTFeatureExtractor", "feature_size": 40, "sampling_rate": 16000, "max_length": 60}, f)
    f.write("\n")
save_file({"out": mfcc(x, 60)}, at("kwt", "out.safetensors"))
