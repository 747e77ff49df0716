"""Golden cases of RoBERTa.  Run: python3 tools/golden/roberta.py tests/golden/models   (versions: families.py)"""
import torch
from transformers import (CamembertConfig, CamembertForTokenClassification, RobertaConfig, RobertaForMaskedLM, RobertaForMultipleChoice,
                          RobertaForQuestionAnswering, RobertaForSequenceClassification,
                          RobertaForTokenClassification, RobertaModel,
                          XLMRobertaConfig, XLMRobertaForSequenceClassification)

from families import build, case, mask_of, tokens

V, T, PAD = 35, 7, 1
SMALL = dict(vocab_size=V, hidden_size=12, num_hidden_layers=2, num_attention_heads=2, intermediate_size=20,
             max_position_embeddings=11, type_vocab_size=1, pad_token_id=PAD, layer_norm_eps=1e-5)
ids, mask = tokens(V, 3, T, low=2), mask_of([7, 4, 1], T)
ids[mask == 0] = PAD
batch = dict(input_ids=ids, attention_mask=mask)
labels = dict(id2label={i: f"L{i}" for i in range(4)}, label2id={f"L{i}": i for i in range(4)})

case("roberta", build(RobertaModel, RobertaConfig(**SMALL)), **batch)
left = torch.flip(ids, [1])  # padding in front: positions count what is not padding
case("roberta-left", build(RobertaModel, RobertaConfig(**dict(SMALL, hidden_act="gelu_pytorch_tanh"))), input_ids=left,
     attention_mask=torch.flip(mask, [1]))
words = torch.where((torch.arange(3 * T).reshape(3, T) % 3 == 1) & (mask == 1), tokens(V, 3, T, seed=2), -100)
case("roberta-masked", build(RobertaForMaskedLM, RobertaConfig(**SMALL)), **batch, labels=words)
case("roberta-masked-apart", build(RobertaForMaskedLM, RobertaConfig(**dict(SMALL, tie_word_embeddings=False))), **batch, labels=words)
case("roberta-sequence", build(RobertaForSequenceClassification, RobertaConfig(**SMALL, **labels)), **batch,
     labels=torch.tensor([3, 0, 2]))
case("roberta-token", build(RobertaForTokenClassification, RobertaConfig(**SMALL, **labels)), **batch,
     labels=torch.where(mask == 1, tokens(4, 3, T, seed=3, low=0), -100))
case("roberta-span", build(RobertaForQuestionAnswering, RobertaConfig(**SMALL)), **batch, start_positions=torch.tensor([1, 0, 0]),
     end_positions=torch.tensor([5, 2, 0]))
case("xlm-roberta", build(XLMRobertaForSequenceClassification, XLMRobertaConfig(**SMALL, **labels)), **batch,
     labels=torch.tensor([3, 0, 2]))
case("camembert", build(CamembertForTokenClassification, CamembertConfig(**SMALL, **labels)), **batch,
     labels=torch.where(mask == 1, tokens(4, 3, T, seed=3, low=0), -100))
case("roberta-choice", build(RobertaForMultipleChoice, RobertaConfig(**SMALL)), labels=torch.tensor([1, 0]),
     **{k: torch.stack([v[:2], v[1:]], 1) for k, v in batch.items()})
