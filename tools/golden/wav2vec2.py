"""Golden cases of wav2vec 2.0.  Run: python3 tools/golden/wav2vec2.py tests/golden/models   (versions: families.py)

The CTC loss is the mean over labels where all rows have as many, which transformers calls "mean"; label_lengths, which it counts
itself, are put beside its inputs."""
import json
import os
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import Wav2Vec2Config, Wav2Vec2CTCTokenizer, Wav2Vec2FeatureExtractor, Wav2Vec2ForCTC, Wav2Vec2Model

from families import build, case, mask_of, pixels, tokens

V, N = 9, 160
SMALL = dict(vocab_size=V, hidden_size=12, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16, conv_dim=(6, 6, 8),
             conv_stride=(5, 2, 2), conv_kernel=(10, 3, 2), num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=3,
             ctc_loss_reduction="mean", layerdrop=0.0, pad_token_id=0)
clips = pixels(2, N)
labels = tokens(V, 2, 3, seed=2)


def with_lengths(name):
    path = os.path.join(sys.argv[1], name, "in.safetensors")
    save_file({**load_file(path), "label_lengths": torch.tensor([3, 3])}, path)


case("wav2vec2", build(Wav2Vec2Model, Wav2Vec2Config(**SMALL)), input_values=clips)
case("wav2vec2-ctc", build(Wav2Vec2ForCTC, Wav2Vec2Config(**SMALL)), input_values=clips, labels=labels)
with_lengths("wav2vec2-ctc")
stable = dict(SMALL, do_stable_layer_norm=True, feat_extract_norm="layer", conv_bias=True, num_conv_pos_embeddings=5, mask_time_prob=0.0)
case("wav2vec2-stable", build(Wav2Vec2ForCTC, Wav2Vec2Config(**stable)), input_values=clips, attention_mask=mask_of([N, N - 37], N),
     labels=labels)
with_lengths("wav2vec2-stable")


def with_letters(name, model):
    """The tokenizer beside the model, what it makes of a text, and what is heard in the first clip."""
    folder = os.path.join(sys.argv[1], name)
    with tempfile.TemporaryDirectory() as other:
        path = os.path.join(other, "vocab.json")
        json.dump({c: i for i, c in enumerate(["<pad>", "<unk>", "|", "A", "B", "C", "D", "E", "F"])}, open(path, "w"))
        tokenizer = Wav2Vec2CTCTokenizer(path, bos_token=None, eos_token=None)
    tokenizer.save_pretrained(folder)
    Wav2Vec2FeatureExtractor(sampling_rate=8000, return_attention_mask=True).save_pretrained(folder)
    ids = model(clips[:1]).logits.argmax(-1)[0]
    json.dump(dict(text="BAD CAFE", ids=tokenizer("BAD CAFE").input_ids, heard=tokenizer.decode(ids)),
              open(os.path.join(folder, "text.json"), "w"))


with_letters("wav2vec2-ctc", build(Wav2Vec2ForCTC, Wav2Vec2Config(**SMALL)))
