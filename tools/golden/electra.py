"""Golden cases of ELECTRA.  Run: python3 tools/golden/electra.py tests/golden/models   (versions: families.py)"""
import torch
from transformers import (ElectraConfig, ElectraForMaskedLM, ElectraForPreTraining, ElectraForQuestionAnswering,
                          ElectraForSequenceClassification, ElectraForTokenClassification, ElectraModel)

from families import build, case, tokens, two_segments

V, T = 37, 7
SMALL = dict(vocab_size=V, embedding_size=10, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20,
             max_position_embeddings=11, type_vocab_size=2)
ids, mask, batch, words = two_segments(V, T)
labels = dict(id2label={i: f"L{i}" for i in range(5)}, label2id={f"L{i}": i for i in range(5)})

case("electra", build(ElectraModel, ElectraConfig(**SMALL)), **batch)
case("electra-one-width", build(ElectraModel, ElectraConfig(**dict(SMALL, embedding_size=12, hidden_act="relu"))), input_ids=ids)
case("electra-replaced", build(ElectraForPreTraining, ElectraConfig(**dict(SMALL, hidden_act="gelu_new"))), **batch,
     labels=tokens(2, 3, T, seed=3, low=0))
case("electra-replaced-all", build(ElectraForPreTraining, ElectraConfig(**SMALL)), input_ids=ids,
     labels=tokens(2, 3, T, seed=3, low=0))
case("electra-masked", build(ElectraForMaskedLM, ElectraConfig(**dict(SMALL, hidden_act="relu"))), **batch, labels=words)
case("electra-masked-apart", build(ElectraForMaskedLM, ElectraConfig(**SMALL, tie_word_embeddings=False)), **batch, labels=words)
case("electra-sequence", build(ElectraForSequenceClassification, ElectraConfig(**SMALL, **labels)), **batch,
     labels=torch.tensor([4, 0, 2]))
case("electra-token", build(ElectraForTokenClassification, ElectraConfig(**SMALL, **labels)), **batch,
     labels=torch.where(mask == 1, tokens(5, 3, T, seed=3, low=0), -100))
case("electra-span", build(ElectraForQuestionAnswering, ElectraConfig(**SMALL)), **batch, start_positions=torch.tensor([1, 0, 0]),
     end_positions=torch.tensor([5, 2, 0]))
