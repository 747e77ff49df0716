"""Golden cases of BST, against a model written here in PyTorch after the paper's equations.
Run: python3 tools/golden/bst.py tests/golden/models   (versions: families.py)"""
import torch
from torch.nn import functional as F

from families import tokens
from item_models import ITEMS, SMALL, Values, layer, linear, save

CONFIG = dict(SMALL, hidden_act="leaky_relu", layer_norm_eps=1e-5, feature_buckets=9, feature_size=3, head_sizes=[10, 6])


def parameters(k):
    v = Values(k["hidden_size"])
    v.table("item_embeddings.weight", ITEMS + 1, k["hidden_size"])
    v.table("position_embeddings.weight", k["max_position_embeddings"], k["hidden_size"])
    if k["num_features"]:
        v.table("feature_embeddings.weight", k["feature_buckets"], k["feature_size"])
    v.layers(k)
    sizes = [k["max_position_embeddings"] * k["hidden_size"] + k["num_features"] * k["feature_size"], *k["head_sizes"], 1]
    for i, (a, b) in enumerate(zip(sizes, sizes[1:])):
        v.linear(f"head.{i}", a, b)
    return v.all()


def run(p, k, ids, mask, features):
    x = p["item_embeddings.weight"][ids] + p["position_embeddings.weight"]
    maps, hidden = [], []
    for i in range(k["num_hidden_layers"]):
        hidden.append(x)
        x, w = layer(p, f"layers.{i}.", x, mask[:, None, None] == 0, k, F.leaky_relu)
        maps.append(w)
    hidden.append(x)
    x = (x * mask[:, :, None]).flatten(1)
    if features is not None:
        x = torch.cat([x, p["feature_embeddings.weight"][features].flatten(1)], 1)
    for i in range(len(k["head_sizes"])):
        x = F.leaky_relu(linear(p, f"head.{i}", x))
    return linear(p, f"head.{len(k['head_sizes'])}", x)[:, 0], maps, hidden


def case(name, ids, mask, labels, features=None):
    k = dict(CONFIG, num_features=0 if features is None else features.shape[1])
    p = parameters(k)
    logits, maps, hidden = run(p, k, ids, mask, features)
    loss = F.binary_cross_entropy_with_logits(logits, labels)
    loss.backward()
    inputs = dict(input_ids=ids, attention_mask=mask, features=features, labels=labels)
    save(name, p, dict(logits=logits, loss=loss), maps, hidden, inputs, dict(model_type="bst", architectures=["BstModel"], **k))


ids = tokens(ITEMS + 1, 4, SMALL["max_position_embeddings"], low=0)
mask = torch.ones(4, SMALL["max_position_embeddings"], dtype=torch.uint8)
mask[1, 4:] = 0
mask[2, 1:] = 0
labels = torch.tensor([1.0, 0.0, 0.0, 1.0])
case("bst", ids, mask, labels, features=torch.tensor([[0, 8], [3, 1], [5, 5], [2, 7]]))
case("bst-plain", ids, mask, labels)
