"""Golden cases of ESM.  Run: python3 tools/golden/esm.py tests/golden/models   (versions: families.py)

tests/golden/tasks/contacts.safetensors beside them: input_ids, attention_mask and what predict_contacts gives for the
model of esm-masked."""
import os
import sys

import torch
from safetensors.torch import load_file, save_file
from transformers import EsmConfig, EsmForMaskedLM, EsmForSequenceClassification, EsmForTokenClassification, EsmModel

from families import build, case, mask_of, tokens

V, T, PAD, MASK = 33, 9, 1, 32
SMALL = dict(vocab_size=V, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20,
             max_position_embeddings=12, pad_token_id=PAD, mask_token_id=MASK, layer_norm_eps=1e-5)
ESM2 = dict(SMALL, position_embedding_type="rotary", token_dropout=True, emb_layer_norm_before=False)
ESM1B = dict(SMALL, position_embedding_type="absolute", token_dropout=True, emb_layer_norm_before=True)
ids, mask = tokens(24, 3, T, low=4), mask_of([9, 6, 4], T)
ids[:, 0] = 0
for i, n in enumerate((9, 6, 4)):
    ids[i, n - 1] = 2
ids[mask == 0] = PAD
hidden = ids.clone()
hidden[0, 3] = hidden[0, 5] = hidden[1, 2] = MASK
batch = dict(input_ids=ids, attention_mask=mask)
labels = dict(id2label={i: f"L{i}" for i in range(3)}, label2id={f"L{i}": i for i in range(3)})
words = torch.where(hidden == MASK, ids, -100)



def plain(folder):
    """save_pretrained calls the norms' parameters gamma and beta; the published files have weight and bias."""
    path = os.path.join(folder, "model.safetensors")
    changed = {k.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias"): v
               for k, v in load_file(path).items()}
    save_file(changed, path, metadata={"format": "pt"})


case("esm", build(EsmModel, EsmConfig(**ESM2)), change=plain, **batch)
masked = build(EsmForMaskedLM, EsmConfig(**ESM2))
case("esm-masked", masked, change=plain, input_ids=hidden, attention_mask=mask, labels=words)
case("esm-unmasked", build(EsmForMaskedLM, EsmConfig(**dict(ESM1B, token_dropout=False, tie_word_embeddings=False))), change=plain,
     input_ids=hidden, labels=words)
case("esm-1b", build(EsmForMaskedLM, EsmConfig(**ESM1B)), change=plain, input_ids=hidden, attention_mask=mask, labels=words)
case("esm-sequence", build(EsmForSequenceClassification, EsmConfig(**ESM2, **labels)), change=plain, **batch, labels=torch.tensor([2, 0, 1]))
case("esm-token", build(EsmForTokenClassification, EsmConfig(**ESM2, **labels)), change=plain, **batch,
     labels=torch.where(mask == 1, tokens(3, 3, T, seed=3, low=0), -100))

# transformers cuts the last column off, whatever it holds: one sequence at a time, so that it is <eos>
found = {}
for i, n in enumerate((9, 6, 4)):
    one = ids[i:i + 1, :n]
    found[f"input_ids.{i}"] = one
    found[f"contacts.{i}"] = masked.predict_contacts(one, torch.ones_like(one)).detach()
folder = os.path.join(sys.argv[1], "..", "tasks")
save_file({k: v.contiguous() for k, v in found.items()}, os.path.join(folder, "contacts.safetensors"))
