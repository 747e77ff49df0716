"""Golden cases of the keyword transformer, which transformers does not have: it is written out here after the paper (Berg et al.
2021) and the published weights.  Run: python3 tools/golden/kwt.py tests/golden/models   (versions: families.py)"""
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils import ModelOutput

from families import build, case, pixels


class KWTConfig(PreTrainedConfig):
    model_type = "kwt"


@dataclass
class Output(ModelOutput):
    loss: torch.Tensor = None
    logits: torch.Tensor = None
    last_hidden_state: torch.Tensor = None
    hidden_states: tuple = None
    attentions: tuple = None


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        weights = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2)), weights


class Mlp(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x):
        return self.fc2(nn.functional.gelu(self.fc1(x), approximate="tanh"))


class Layer(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.attn, self.mlp = Attention(k.hidden_size, k.num_attention_heads), Mlp(k.hidden_size, k.intermediate_size)
        self.ln1, self.ln2 = (nn.LayerNorm(k.hidden_size, eps=1e-6) for _ in range(2))

    def forward(self, x):
        y, weights = self.attn(x)
        x = self.ln1(x + y)
        return self.ln2(x + self.mlp(x)), weights


class KWTModel(PreTrainedModel):
    config_class = KWTConfig
    _no_split_modules = []

    def __init__(self, k):
        super().__init__(k)
        self.class_token = nn.Parameter(torch.zeros(1, k.hidden_size))
        self.pos_embed = nn.Parameter(torch.zeros(1 + k.max_frames, k.hidden_size))
        self.embed = nn.Linear(k.num_features, k.hidden_size)
        self.layers = nn.ModuleList(Layer(k) for _ in range(k.num_hidden_layers))
        if type(self) is not KWTModel:
            self.head = nn.Linear(k.hidden_size, k.num_labels)
        self.post_init()

    def _init_weights(self, module):
        pass

    def forward(self, input_features, labels=None, output_hidden_states=False, output_attentions=False, **_):
        x = torch.cat([self.class_token.expand(len(input_features), 1, -1), self.embed(input_features)], 1)
        x = x + self.pos_embed[:x.shape[1]]
        hidden, attentions = [x], []
        for layer in self.layers:
            x, weights = layer(x)
            hidden.append(x)
            attentions.append(weights)
        states = dict(hidden_states=tuple(hidden), attentions=tuple(attentions))
        if type(self) is KWTModel:
            return Output(last_hidden_state=x, **states)
        logits = self.head(x[:, 0])
        loss = nn.functional.cross_entropy(logits, labels) if labels is not None else None
        return Output(loss=loss, logits=logits, **states)


class KWTForAudioClassification(KWTModel):
    pass


SMALL = dict(hidden_size=12, num_hidden_layers=2, num_attention_heads=2, intermediate_size=20, num_features=7, max_frames=11,
             hidden_act="gelu_pytorch_tanh", layer_norm_eps=1e-6, id2label={i: f"L{i}" for i in range(5)},
             label2id={f"L{i}": i for i in range(5)})
case("kwt", build(KWTModel, KWTConfig(**SMALL)), input_features=pixels(2, 9, 7))
case("kwt-classify", build(KWTForAudioClassification, KWTConfig(**SMALL)), input_features=pixels(3, 11, 7),
     labels=torch.tensor([4, 0, 2]))
