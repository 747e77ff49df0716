"""What the golden cases of causal families share: a batch with padding behind and one with padding before, and a case for each head.

A family's script gives its classes and configurations:

    from causal import SMALL, language, spans, tags, texts
    language("qwen3", Qwen3ForCausalLM, Qwen3Config(**SMALL))

(versions: families.py)"""
import json
import os

import torch

from families import build, case, mask_of, tokens
from generated import end_with, sequences

V, T, PAD = 35, 9, 34
SMALL = dict(vocab_size=V, hidden_size=12, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4,
             max_position_embeddings=24, pad_token_id=PAD, bos_token_id=0, eos_token_id=0)
NAMES = dict(id2label={i: f"L{i}" for i in range(3)}, label2id={f"L{i}": i for i in range(3)})
ids, mask = tokens(V - 1, 3, T), mask_of([9, 4, 1], T)
ids[mask == 0] = PAD
batch = dict(input_ids=ids, attention_mask=mask)
following = torch.where(mask == 1, ids, -100)
TWO = ("max_new_tokens=9,num_beams=1", "max_new_tokens=9,num_beams=3")


def flipped(x):
    """Padding before instead of behind."""
    lengths = mask.sum(1)
    return torch.stack([torch.cat([row[n:], row[:n]]) for row, n in zip(x, lengths)])


def language(name, head, config, spread=0.4, searches=TWO, lengths=(9, 4, 1), change=None, **more):
    """Logits, hidden states, maps, loss, gradients, and what generate() writes.  lengths: where layers see a window only, long enough
    that no row sees padding alone, of which transformers gives the mean and fovea nothing."""
    model = build(head, config, spread=spread)
    keep = mask_of(lengths, T)
    row = torch.where(keep == 1, ids, PAD)
    row[row == PAD] = torch.where(keep == 1, 5, PAD)[row == PAD]
    end_with(model, row, keep)
    case(name, model, extra=sequences(model, row, keep, searches), change=change, input_ids=row, attention_mask=keep,
         labels=torch.where(keep == 1, row, -100), **more)


def texts(name, head, config):
    """A label of each text, padding before it: rows of padding are fovea's own, so maps and hidden states are left out."""
    case(name, build(head, config), only=("logits", "loss"), input_ids=flipped(ids), attention_mask=flipped(mask),
         labels=torch.tensor([2, 0, 1]))


def tags(name, head, config):
    case(name, build(head, config), **batch, labels=torch.where(mask == 1, ids % 3, -100))


def spans(name, head, config):
    case(name, build(head, config), **batch, start_positions=torch.tensor([2, 0, 0]), end_positions=torch.tensor([7, 3, 0]))


def rewritten(**changes):
    """For change=...: config.json with keys set, or removed where the value is None."""
    def change(folder):
        path = os.path.join(folder, "config.json")
        with open(path) as f:
            config = json.load(f)
        for key, value in changes.items():
            config.pop(key, None)
            if value is not None:
                config[key] = value
        with open(path, "w") as f:
            json.dump(config, f, indent=2)
    return change
