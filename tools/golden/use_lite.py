"""Golden cases of the Universal Sentence Encoder Lite, which transformers does not have: it is written out here after the published
graph; and of prefix tuning on it, whose layers are not equally wide: tests/golden/adapters/use_lite-prefix (see adapters.py).
Run: python3 tools/golden/use_lite.py tests/golden/models   (versions: families.py)"""
import json
import os
import sys
from dataclasses import dataclass

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

from families import build, case, mask_of, tokens


class UseLiteConfig(PreTrainedConfig):
    model_type = "use_lite"


@dataclass
class Output(ModelOutput):
    loss: torch.Tensor = None
    logits: torch.Tensor = None
    last_hidden_state: torch.Tensor = None
    pooler_output: torch.Tensor = None
    hidden_states: tuple = None
    attentions: tuple = None


class Attention(nn.Module):
    def __init__(self, width, out, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, out)

    def forward(self, x, mask, prefix=None):
        """prefix: (2,n,width), keys and values of virtual tokens that stand in front"""
        q, k, v = self.qkv(x).chunk(3, -1)
        if prefix is not None:
            k, v = (torch.cat([more.expand(len(x), -1, -1), y], 1) for more, y in zip(prefix, (k, v)))
            mask = torch.cat([mask.new_ones(len(x), prefix.shape[1]), mask], 1)
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in (q, k, v))
        scores = (q @ k.transpose(-1, -2)) * q.shape[-1] ** -0.5
        weights = scores.masked_fill(mask[:, None, None] == 0, float("-inf")).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2)), weights


class FeedForward(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return self.fc2(self.fc1(x).relu())


class Layer(nn.Module):
    def __init__(self, k, width):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(k.hidden_size, eps=1e-6)
        self.attn = Attention(width, k.hidden_size, k.num_attention_heads)
        self.ffn = FeedForward(k.hidden_size, k.intermediate_size)
        if width != k.hidden_size:
            self.residual_proj = nn.Linear(width, k.hidden_size)

    def forward(self, x, mask, prefix=None):
        y, weights = self.attn(self.ln1(x), mask, prefix)
        x = (self.residual_proj(x) if hasattr(self, "residual_proj") else x) + y
        return x + self.ffn(self.ln2(x)), weights


class UseLiteModel(PreTrainedModel):
    config_class = UseLiteConfig
    _no_split_modules = []

    def __init__(self, k):
        super().__init__(k)
        self.embed = nn.Embedding(k.vocab_size, k.embedding_size)
        self.layers = nn.ModuleList(Layer(k, k.hidden_size if i else k.embedding_size) for i in range(k.num_hidden_layers))
        self.pool = nn.Linear(k.hidden_size, k.hidden_size)
        if type(self) is not UseLiteModel:
            self.classifier = nn.Linear(k.hidden_size, k.num_labels)
        self.post_init()

    def _init_weights(self, module):
        pass

    def forward(self, input_ids, attention_mask, labels=None, output_hidden_states=False, output_attentions=False,
                prefix=None, **_):
        half = self.config.embedding_size // 2
        waves = torch.exp(-torch.arange(half) * torch.log(torch.tensor(10000.0)) / (half - 1))
        # a prefix takes the first positions, as past keys do
        first = 0 if prefix is None else prefix.shape[0]
        angles = torch.arange(first, first + input_ids.shape[1])[:, None] * waves
        x = 2 * self.embed(input_ids) + torch.cat([angles.sin(), angles.cos()], -1)
        hidden, attentions = [x], []
        for layer in self.layers:
            mine = None
            if prefix is not None:
                wide = layer.ln1.weight.shape[0]
                mine, prefix = torch.stack(prefix[:, :2 * wide].chunk(2, -1)), prefix[:, 2 * wide:]
            x, weights = layer(x, attention_mask, mine)
            hidden.append(x)
            attentions.append(weights)
        some = attention_mask[..., None].float()
        pooled = self.pool((x * some).sum(1) / some.sum(1)).tanh()
        states = dict(hidden_states=tuple(hidden), attentions=tuple(attentions))
        if type(self) is UseLiteModel:
            return Output(last_hidden_state=x, pooler_output=pooled, **states)
        logits = self.classifier(pooled)
        loss = nn.functional.cross_entropy(logits, labels) if labels is not None else None
        return Output(loss=loss, logits=logits, **states)


class UseLiteForSequenceClassification(UseLiteModel):
    pass


SMALL = dict(vocab_size=31, embedding_size=8, hidden_size=12, num_hidden_layers=2, num_attention_heads=2, intermediate_size=20,
             max_position_embeddings=11, layer_norm_eps=1e-6, pad_token_id=1)
labels = dict(id2label={i: f"L{i}" for i in range(3)}, label2id={f"L{i}": i for i in range(3)})
ids, mask = tokens(31, 3, 7), mask_of([7, 4, 1], 7)
ids[mask == 0] = 1
batch = dict(input_ids=ids, attention_mask=mask)
case("use_lite", build(UseLiteModel, UseLiteConfig(**SMALL)), **batch)
case("use_lite-sequence", build(UseLiteForSequenceClassification, UseLiteConfig(**SMALL, **labels)), **batch,
     labels=torch.tensor([2, 0, 1]))


def prefix_case(name, base, n):
    """What finish() of adapters.py writes, of a table (n, 2 (8 + 12)): the keys and values of each layer in its own width"""
    source, folder = os.path.join(sys.argv[1], base), os.path.join(sys.argv[1], "../adapters", name)
    model = UseLiteForSequenceClassification.from_pretrained(source, attn_implementation="eager").eval()
    given = load_file(os.path.join(source, "in.safetensors"))
    inputs = {k: v.long() for k, v in given.items()}
    torch.manual_seed(3)
    table = nn.Parameter(torch.randn(n, 40))
    trained = {"prompt_embeddings": table, "base_model.classifier.weight": model.classifier.weight, "base_model.classifier.bias": model.classifier.bias}
    os.makedirs(folder, exist_ok=True)
    save_file({k: p.detach().clone() for k, p in trained.items()}, os.path.join(folder, "adapter_model.safetensors"))
    with open(os.path.join(folder, "adapter_config.json"), "w") as out:
        json.dump(dict(peft_type="PREFIX_TUNING", base_model_name_or_path="../../models/" + base, task_type="SEQ_CLS", modules_to_save=["classifier"],
                       num_virtual_tokens=n, num_layers=2, num_attention_heads=2, num_transformer_submodules=1, token_dim=10), out, indent=2)
    said = model(**inputs, prefix=table)
    golden = {"logits": said.logits, "loss": said.loss}
    said.loss.backward()
    golden |= {"grad." + k: p.grad.clone() for k, p in trained.items()}
    groups = [dict(params=[p for p in trained.values() if p.dim() > 1], weight_decay=0.01),
              dict(params=[p for p in trained.values() if p.dim() < 2], weight_decay=0.0)]
    optimiser = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.98), eps=1e-5)
    for _ in range(3):
        optimiser.zero_grad()
        model(**inputs, prefix=table).loss.backward()
        optimiser.step()
    golden |= {"after." + k: p for k, p in trained.items()}
    save_file({k: v.detach().contiguous().clone() for k, v in golden.items()}, os.path.join(folder, "out.safetensors"))
    save_file(given, os.path.join(folder, "in.safetensors"))
    with open(os.path.join(folder, "base.txt"), "w") as out:
        out.write(base + "\n")


prefix_case("use_lite-prefix", "use_lite-sequence", 3)
