"""Golden cases of ALBERT.  Run: python3 tools/golden/albert.py tests/golden/models   (versions: families.py)"""
import torch
from transformers import (AlbertConfig, AlbertForMaskedLM, AlbertForMultipleChoice, AlbertForPreTraining, AlbertForQuestionAnswering,
                          AlbertForSequenceClassification, AlbertForTokenClassification, AlbertModel)

from families import build, case, tokens, two_segments

V, T = 37, 7
SMALL = dict(vocab_size=V, embedding_size=10, hidden_size=12, num_hidden_layers=3, num_attention_heads=3, intermediate_size=20,
             max_position_embeddings=11, type_vocab_size=2)
ids, mask, batch, words = two_segments(V, T)
labels = dict(id2label={i: f"L{i}" for i in range(5)}, label2id={f"L{i}": i for i in range(5)})

case("albert", build(AlbertModel, AlbertConfig(**SMALL)), **batch)
case("albert-groups", build(AlbertModel, AlbertConfig(**dict(SMALL, num_hidden_layers=5, num_hidden_groups=2, inner_group_num=2,
                                                             hidden_act="gelu"))), **batch)
case("albert-pretraining", build(AlbertForPreTraining, AlbertConfig(**SMALL)), **batch, labels=words,
     sentence_order_label=torch.tensor([0, 1, 1]))
case("albert-masked", build(AlbertForMaskedLM, AlbertConfig(**SMALL)), **batch, labels=words)
case("albert-masked-apart", build(AlbertForMaskedLM, AlbertConfig(**SMALL, tie_word_embeddings=False)), **batch, labels=words)
case("albert-sequence", build(AlbertForSequenceClassification, AlbertConfig(**SMALL, **labels)), **batch,
     labels=torch.tensor([4, 0, 2]))
case("albert-token", build(AlbertForTokenClassification, AlbertConfig(**SMALL, **labels)), **batch,
     labels=torch.where(mask == 1, tokens(5, 3, T, seed=3, low=0), -100))
case("albert-span", build(AlbertForQuestionAnswering, AlbertConfig(**SMALL)), **batch, start_positions=torch.tensor([1, 0, 0]),
     end_positions=torch.tensor([5, 2, 0]))
case("albert-choice", build(AlbertForMultipleChoice, AlbertConfig(**SMALL)),
     input_ids=torch.stack([ids[:2], ids[1:]], 1), attention_mask=torch.stack([mask[:2], mask[1:]], 1), labels=torch.tensor([1, 0]))
