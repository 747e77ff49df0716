"""Golden cases of MPNet.  Run: python3 tools/golden/mpnet.py tests/golden/models   (versions: families.py)"""
import torch
from transformers import (MPNetConfig, MPNetForMaskedLM, MPNetForMultipleChoice, MPNetForQuestionAnswering, MPNetForSequenceClassification,
                          MPNetForTokenClassification, MPNetModel)

from families import build, case, mask_of, tokens

V, T, PAD = 35, 7, 1
SMALL = dict(vocab_size=V, hidden_size=12, num_hidden_layers=2, num_attention_heads=2, intermediate_size=20,
             max_position_embeddings=24, layer_norm_eps=1e-5)
ids, mask = tokens(V, 3, T, low=2), mask_of([7, 4, 1], T)
ids[mask == 0] = PAD
batch = dict(input_ids=ids, attention_mask=mask)
labels = dict(id2label={i: f"L{i}" for i in range(4)}, label2id={f"L{i}": i for i in range(4)})
words = torch.where((torch.arange(3 * T).reshape(3, T) % 3 == 1) & (mask == 1), tokens(V, 3, T, seed=2), -100)

case("mpnet", build(MPNetModel, MPNetConfig(**SMALL)), **batch)
case("mpnet-long", build(MPNetModel, MPNetConfig(**dict(SMALL, hidden_act="gelu_new"))), input_ids=tokens(V, 2, 22, low=2, seed=5))
case("mpnet-masked", build(MPNetForMaskedLM, MPNetConfig(**dict(SMALL, hidden_act="relu"))), **batch, labels=words)
case("mpnet-masked-apart", build(MPNetForMaskedLM, MPNetConfig(**SMALL, tie_word_embeddings=False)), **batch, labels=words)
case("mpnet-sequence", build(MPNetForSequenceClassification, MPNetConfig(**SMALL, **labels)), **batch, labels=torch.tensor([3, 0, 2]))
case("mpnet-token", build(MPNetForTokenClassification, MPNetConfig(**SMALL, **labels)), **batch,
     labels=torch.where(mask == 1, tokens(4, 3, T, seed=3, low=0), -100))
case("mpnet-span", build(MPNetForQuestionAnswering, MPNetConfig(**SMALL)), **batch, start_positions=torch.tensor([1, 0, 0]),
     end_positions=torch.tensor([5, 2, 0]))
case("mpnet-choice", build(MPNetForMultipleChoice, MPNetConfig(**SMALL)), labels=torch.tensor([1, 0]),
     **{k: torch.stack([v[:2], v[1:]], 1) for k, v in batch.items()})
