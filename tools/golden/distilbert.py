"""Golden cases of DistilBERT.  Run: python3 tools/golden/distilbert.py tests/golden/models   (versions: families.py)"""
import torch
from transformers import (DistilBertConfig, DistilBertForMaskedLM, DistilBertForMultipleChoice, DistilBertForQuestionAnswering,
                          DistilBertForSequenceClassification, DistilBertForTokenClassification, DistilBertModel)

from families import build, case, mask_of, tokens

V, T = 39, 7
SMALL = dict(vocab_size=V, dim=12, n_layers=2, n_heads=3, hidden_dim=20, max_position_embeddings=11)
ids, mask = tokens(V, 3, T), mask_of([7, 4, 1], T)
ids[mask == 0] = 0
batch = dict(input_ids=ids, attention_mask=mask)
labels = dict(id2label={i: f"L{i}" for i in range(3)}, label2id={f"L{i}": i for i in range(3)})

case("distilbert", build(DistilBertModel, DistilBertConfig(**SMALL)), **batch)
words = torch.where((torch.arange(3 * T).reshape(3, T) % 3 == 1) & (mask == 1), tokens(V, 3, T, seed=2), -100)
case("distilbert-masked", build(DistilBertForMaskedLM, DistilBertConfig(**SMALL)), **batch, labels=words)
case("distilbert-masked-apart", build(DistilBertForMaskedLM, DistilBertConfig(**SMALL, tie_word_embeddings=False, activation="relu")),
     **batch, labels=words)
case("distilbert-sequence", build(DistilBertForSequenceClassification, DistilBertConfig(**SMALL, **labels)), **batch,
     labels=torch.tensor([2, 0, 1]))
case("distilbert-token", build(DistilBertForTokenClassification, DistilBertConfig(**SMALL, **labels)), **batch,
     labels=torch.where(mask == 1, tokens(3, 3, T, seed=3, low=0), -100))
case("distilbert-span", build(DistilBertForQuestionAnswering, DistilBertConfig(**SMALL)), **batch,
     start_positions=torch.tensor([1, 0, 0]), end_positions=torch.tensor([5, 2, 0]))
case("distilbert-choice", build(DistilBertForMultipleChoice, DistilBertConfig(**SMALL)), labels=torch.tensor([1, 0]),
     **{k: torch.stack([v[:2], v[1:]], 1) for k, v in batch.items()})
