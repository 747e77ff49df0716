"""Golden cases of BERT.  Run: python3 tools/golden/bert.py tests/golden/models   (versions: families.py)"""
import json
import os

import torch
from safetensors.torch import load_file, save_file
from transformers import (BertConfig, BertForMaskedLM, BertForMultipleChoice, BertForNextSentencePrediction, BertForPreTraining, BertForQuestionAnswering,
                          BertForSequenceClassification, BertForTokenClassification, BertModel)

from families import build, case, tokens, two_segments

V, T = 37, 7
SMALL = dict(vocab_size=V, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20,
             max_position_embeddings=11, type_vocab_size=2)
ids, mask, batch, words = two_segments(V, T)


def old_names(folder):
    """As the first checkpoints were published: gamma and beta, heads of pre-training left in, a config of its time."""
    path = os.path.join(folder, "model.safetensors")
    t = {k.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): v
         for k, v in load_file(path).items()}
    t["bert.embeddings.position_ids"] = torch.arange(11)[None]
    save_file(t, path, metadata={"format": "pt"})
    path = os.path.join(folder, "config.json")
    config = json.load(open(path))
    config.update(position_embedding_type="absolute", gradient_checkpointing=False, pooler_type="first_token_transform")
    json.dump(config, open(path, "w"), indent=2)


def without_prefix(folder):
    path = os.path.join(folder, "model.safetensors")
    save_file({k.removeprefix("bert."): v for k, v in load_file(path).items()}, path, metadata={"format": "pt"})


case("bert", build(BertModel, BertConfig(**SMALL)), **batch)
case("bert-one-token", build(BertModel, BertConfig(**dict(SMALL, hidden_size=10, num_attention_heads=1, hidden_act="gelu_new"))),
     input_ids=ids[:, :1])
pairwise = torch.tril(torch.ones(T, T, dtype=torch.long))[None] * mask[:, None, :]
case("bert-mask-of-pairs", build(BertModel, BertConfig(**dict(SMALL, hidden_act="silu"))), input_ids=ids, attention_mask=pairwise,
     instead=dict(attention_mask=torch.where(pairwise[:, None] == 1, 0.0, -torch.inf)),
     position_ids=(torch.arange(T) + 2)[None].repeat(3, 1))
case("bert-pretraining", build(BertForPreTraining, BertConfig(**SMALL)), **batch, labels=words,
     next_sentence_label=torch.tensor([0, 1, 1]))
case("bert-masked", build(BertForMaskedLM, BertConfig(**SMALL)), change=old_names, **batch, labels=words)
case("bert-masked-apart", build(BertForMaskedLM, BertConfig(**dict(SMALL, tie_word_embeddings=False, hidden_act="relu"))),
     **batch, labels=words)
case("bert-next", build(BertForNextSentencePrediction, BertConfig(**SMALL)), **batch, labels=torch.tensor([1, 0, 1]))
labels = dict(id2label={i: f"L{i}" for i in range(5)}, label2id={f"L{i}": i for i in range(5)})
case("bert-sequence", build(BertForSequenceClassification, BertConfig(**SMALL, **labels)), change=without_prefix, **batch,
     labels=torch.tensor([4, 0, 2]))
case("bert-sequence-many", build(BertForSequenceClassification, BertConfig(**SMALL, **labels)), **batch,
     labels=(torch.arange(15).reshape(3, 5) % 4 == 0).float())
case("bert-regression", build(BertForSequenceClassification, BertConfig(**SMALL, num_labels=1)), **batch,
     labels=torch.tensor([0.5, -1.25, 2.0]))
case("bert-token", build(BertForTokenClassification, BertConfig(**SMALL, **labels, classifier_dropout=0.2)), **batch,
     labels=torch.where(mask == 1, tokens(5, 3, T, seed=3, low=0), -100))
case("bert-span", build(BertForQuestionAnswering, BertConfig(**SMALL)), **batch, start_positions=torch.tensor([1, 0, 0]),
     end_positions=torch.tensor([5, 2, 0]))
case("bert-choice", build(BertForMultipleChoice, BertConfig(**SMALL)), labels=torch.tensor([1, 0]),
     **{k: torch.stack([v[:2], v[1:]], 1) for k, v in batch.items()})
