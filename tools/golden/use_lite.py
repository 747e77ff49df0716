"""Golden cases of the Universal Sentence Encoder Lite, which transformers does not have: it is written out here after the published
graph.  Run: python3 tools/golden/use_lite.py tests/golden/models   (versions: families.py)"""
from dataclasses import dataclass

import torch
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

    def forward(self, x, mask):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
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

    def forward(self, x, mask):
        y, weights = self.attn(self.ln1(x), mask)
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

    def forward(self, input_ids, attention_mask, labels=None, output_hidden_states=False, output_attentions=False, **_):
        half = self.config.embedding_size // 2
        waves = torch.exp(-torch.arange(half) * torch.log(torch.tensor(10000.0)) / (half - 1))
        angles = torch.arange(input_ids.shape[1])[:, None] * waves
        x = 2 * self.embed(input_ids) + torch.cat([angles.sin(), angles.cos()], -1)
        hidden, attentions = [x], []
        for layer in self.layers:
            x, weights = layer(x, attention_mask)
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
