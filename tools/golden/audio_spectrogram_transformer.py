"""Golden cases of the audio spectrogram transformer.  Run:
python3 tools/golden/audio_spectrogram_transformer.py tests/golden/models   (versions: families.py)"""
import torch
from transformers import ASTConfig, ASTForAudioClassification, ASTModel

from families import build, case, pixels

SMALL = dict(hidden_size=12, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, patch_size=4, frequency_stride=3,
             time_stride=3, max_length=11, num_mel_bins=10)
sound = pixels(2, 11, 10)

case("audio-spectrogram-transformer", build(ASTModel, ASTConfig(**SMALL)), input_values=sound)
case("audio-spectrogram-transformer-classify",
     build(ASTForAudioClassification, ASTConfig(**dict(SMALL, qkv_bias=False), num_labels=3)), input_values=sound,
     labels=torch.tensor([2, 0]))
