"""Golden cases of SpeechT5's text to speech and of its vocoder.  Run: python3 tools/golden/speecht5.py tests/golden/models
(versions: families.py)

The prenet of the decoder drops half of its units always, also where nothing is trained; here nothing is dropped, as in fovea
without a mask of its own.  Means and variances of the batch norms are random, as other parameters are.  "sequences.*" are what
generate_speech() gave: spectrograms and cross-attentions (layers, heads, steps, tokens)."""
import torch
from transformers import SpeechT5Config, SpeechT5ForTextToSpeech, SpeechT5HifiGan, SpeechT5HifiGanConfig
from transformers.models.speecht5.modeling_speecht5 import SpeechT5SpeechDecoderPrenet
from transformers.utils import ModelOutput

from families import build, case, mask_of, pixels, tokens

SpeechT5SpeechDecoderPrenet._consistent_dropout = lambda self, x, p: x
V, MEL, PAD, END, SPEAKER = 23, 6, 1, 2, 5
SMALL = dict(vocab_size=V, hidden_size=12, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=16, decoder_layers=2,
             decoder_attention_heads=3, decoder_ffn_dim=20, num_mel_bins=MEL, speech_decoder_prenet_units=7, reduction_factor=2,
             speaker_embedding_dim=SPEAKER, speech_decoder_postnet_layers=3, speech_decoder_postnet_units=8, max_speech_positions=60,
             max_text_positions=30, encoder_max_relative_position=4, conv_dim=[4], conv_stride=[5], conv_kernel=[10],
             num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2)


def voice(seed=7, **changed):
    model = build(SpeechT5ForTextToSpeech, SpeechT5Config(**{**SMALL, **changed}), seed=seed)
    for layer in model.speech_decoder_postnet.layers:
        layer.batch_norm.running_mean.normal_(0, 0.3)
        layer.batch_norm.running_var.uniform_(0.5, 1.5)
    return model


def texts(lengths, width):
    ids, mask = tokens(V, len(lengths), width, low=4), mask_of(lengths, width)
    for i, n in enumerate(lengths):
        ids[i, n - 1] = END
    ids[mask == 0] = PAD
    return ids, mask


def spoken(model, ids, mask, speakers, **how):
    """What is said of each text."""
    rows = {}
    with torch.no_grad():
        for i in range(len(ids)):
            n = int(mask[i].sum())
            mel, cross = model.generate_speech(ids[i:i + 1, :n], speakers[i:i + 1], output_cross_attentions=True, **how)
            rows[f"sequences.{i}.spectrogram"], rows[f"sequences.{i}.cross"] = mel, cross
            print(i, n, tuple(mel.shape), tuple(cross.shape))
    return rows


ids, mask = texts([9, 5, 7], 9)
labels = pixels(3, 12, MEL, seed=3)
labels[1, 7:], labels[2, 10:] = -100, -100
speakers = pixels(3, SPEAKER, seed=5)
model = voice()
how = dict(threshold=0.9, minlenratio=0.5, maxlenratio=3.0)
case("speecht5", model, input_ids=ids, attention_mask=mask, labels=labels, decoder_attention_mask=mask_of([12, 7, 10], 12),
     speaker_embeddings=speakers, extra=spoken(model, ids, mask, speakers, **how))
case("speecht5-one", voice(8, reduction_factor=1, hidden_act="relu", guided_attention_loss_num_heads=-1, speech_decoder_postnet_kernel=3,
     speech_decoder_prenet_layers=1), input_ids=ids, attention_mask=mask, labels=labels)
case("speecht5-given", voice(9, use_guided_attention_loss=False), input_ids=ids, decoder_input_values=pixels(3, 5, MEL, seed=4),
     speaker_embeddings=speakers)


def vocoder(seed, **changed):
    """The model gives a bare tensor; the file says which class it is by the class's name."""
    def forward(self, spectrogram, **unused):
        return ModelOutput(waveform=SpeechT5HifiGan.forward(self, spectrogram))
    cls = type("SpeechT5HifiGan", (SpeechT5HifiGan,), {"forward": forward})
    small = dict(model_in_dim=MEL, upsample_initial_channel=16, upsample_rates=[3, 2], upsample_kernel_sizes=[7, 4],
                 resblock_kernel_sizes=[3, 5], resblock_dilation_sizes=[[1, 3], [1, 2]])
    model = build(cls, SpeechT5HifiGanConfig(**{**small, **changed}), seed=seed)
    model.mean.normal_(0, 0.3)
    model.scale.uniform_(0.5, 1.5)
    return model


case("speecht5_hifigan", vocoder(3), spectrogram=pixels(2, 9, MEL))
case("speecht5_hifigan-plain", vocoder(4, normalize_before=False, leaky_relu_slope=0.2, upsample_rates=[4], upsample_kernel_sizes=[8],
     resblock_kernel_sizes=[3], resblock_dilation_sizes=[[1, 2, 3]]), spectrogram=pixels(1, 5, MEL))
