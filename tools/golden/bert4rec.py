"""Golden cases of BERT4Rec, against a model written here in PyTorch after the paper's equations.
Run: python3 tools/golden/bert4rec.py tests/golden/models   (versions: families.py)"""
import torch
from torch.nn import functional as F

from families import tokens
from item_models import ITEMS, SMALL, Values, layer, linear, norm, save

CONFIG = dict(SMALL, hidden_act="gelu", layer_norm_eps=1e-12)


def parameters(k):
    v = Values(k["hidden_size"])
    v.table("item_embeddings.weight", ITEMS + 1, k["hidden_size"])
    v.table("position_embeddings.weight", k["max_position_embeddings"], k["hidden_size"])
    v.norm("embedding_norm")
    v.layers(k)
    v.linear("head.dense", k["hidden_size"], k["hidden_size"])
    v.norm("head.norm")
    v.table("head.bias", ITEMS)
    return v.all()


def run(p, k, ids, mask):
    """(B,T) -> (B,T,D), attention maps, hidden states."""
    x = p["item_embeddings.weight"][ids] + p["position_embeddings.weight"][: ids.shape[1]]
    x = norm(p, "embedding_norm", x, k)
    maps, hidden = [], []
    for i in range(k["num_hidden_layers"]):
        hidden.append(x)
        x, w = layer(p, f"layers.{i}.", x, mask[:, None, None] == 0, k, F.gelu)
        maps.append(w)
    return norm(p, "head.norm", F.gelu(linear(p, "head.dense", x)), k), maps, hidden + [x]


def case(name, ids, mask, labels, last=None):
    p = parameters(CONFIG)
    x, maps, hidden = run(p, CONFIG, ids, mask)
    if last is not None:
        x = x.flatten(0, 1)[last]
    logits = x @ p["item_embeddings.weight"][:ITEMS].T + p["head.bias"]
    loss = F.cross_entropy(logits.flatten(0, -2), labels.flatten(), ignore_index=-100)
    loss.backward()
    found = dict(logits=logits, loss=loss)
    inputs = dict(input_ids=ids, attention_mask=mask, labels=labels, last_positions=last)
    save(name, p, found, maps, hidden, inputs, dict(model_type="bert4rec", architectures=["Bert4RecModel"], **CONFIG))


ids = tokens(ITEMS, 3, 6, low=0)
mask = torch.ones(3, 6, dtype=torch.uint8)
mask[1, 4:] = 0
labels = torch.full((3, 6), -100)
for b, t in ((0, 1), (0, 5), (1, 3), (2, 0)):
    labels[b, t] = ids[b, t]
    ids[b, t] = ITEMS
case("bert4rec", ids, mask, labels)
case("bert4rec-last", ids, mask, torch.tensor([3, 0, 9]), last=torch.tensor([5, 9, 14]))
