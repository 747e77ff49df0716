"""Golden cases of ESM.  Run: python3 tools/golden/esm.py tests/golden/models   (versions: families.py)

Beside them ../tasks/contacts: the model of esm-masked with a tokenizer, and in expect.json what predict_contacts gives."""
import json
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

# A tokenizer of its own for the residues of the cases: ids 4 to 30 in the order of the alphabet.
folder = os.path.join(sys.argv[1], "..", "tasks", "contacts")
vocabulary = ["<cls>", "<pad>", "<eos>", "<unk>", *"ABCDEFGHIJKLMNOPQRSTUVWXYZ", ".", "-", "<mask>"]
masked.save_pretrained(folder)
plain(folder)
with open(os.path.join(folder, "vocab.txt"), "w") as f:
    f.write("\n".join(vocabulary) + "\n")
expect = []
for i, n in enumerate((9, 6, 4)):  # one at a time: transformers cuts the last column off, so it must be <eos>
    one = ids[i:i + 1, :n]
    contacts = masked.predict_contacts(one, torch.ones_like(one))[0]
    expect.append({"text": "".join(vocabulary[t] for t in one[0, 1:-1]), "contacts": contacts.tolist()})
with open(os.path.join(folder, "expect.json"), "w") as f:
    json.dump(expect, f)
