"""Golden cases of the model families: a tiny random model as transformers saves it, an input, and what comes out.

A case is a folder of tests/golden/models: config.json and model.safetensors as save_pretrained writes them,
in.safetensors (input_ids, attention_mask, labels, ...) and out.safetensors: every output under the name transformers
gives it (tuples as hidden_states.0, attentions.1, ...) and, where there is a loss, grad.<parameter> for each parameter
that got a gradient.  tests/models/test_families.c runs all of them.  A family's script is a few lines:

    from families import build, case, mask_of, tokens
    case("bert-masked", build(BertForMaskedLM, config), input_ids=ids, attention_mask=mask, labels=labels)

Names that begin with "sequences" are what generate() gave, for tests of their own.
Run a family's script with the folder: python3 tools/golden/bert.py tests/golden/models
(made with transformers 5.22.2, torch 2.15.0)"""
import os
import shutil
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers.utils import ModelOutput


def build(cls, config, seed=7, spread=0.2):
    """A model whose parameters are all random, biases and norms too: zeros and ones would hide mistakes.  Tables that are
    computed (sinusoids) stay."""
    torch.manual_seed(seed)
    model = cls._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(spread * torch.randn_like(p))
    return model


def tokens(vocab, *shape, seed=1, low=1):
    return torch.randint(low, vocab, shape, generator=torch.Generator().manual_seed(seed))


def pixels(*shape, seed=1):
    """Images as a processor gives them: normalised floats."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def mask_of(lengths, width):
    """(B,width): row b begins with lengths[b] ones."""
    return (torch.arange(width)[None, :] < torch.tensor(lengths)[:, None]).long()


def two_segments(vocab, width):
    """Three pairs of segments for an encoder: (ids, mask, batch with types, words to be predicted)."""
    ids, mask = tokens(vocab, 3, width), mask_of([7, 4, 1], width)
    ids[mask == 0] = 0
    types = (torch.arange(width)[None, :] >= torch.tensor([3, 2, 9])[:, None]).long()
    predicted = (torch.arange(3 * width).reshape(3, width) % 3 == 1) & (mask == 1)
    batch = dict(input_ids=ids, attention_mask=mask, token_type_ids=types)
    return ids, mask, batch, torch.where(predicted, tokens(vocab, 3, width, seed=2), -100)


def sources(vocab, width, pad, end):
    """Three sources that end with `end`, and labels of six tokens: (ids, mask, batch, labels)."""
    ids, mask, labels = tokens(vocab, 3, width, low=3), mask_of([9, 4, 2], width), tokens(vocab, 3, 6, seed=2, low=3)
    ids[mask == 0] = pad
    for i, n in enumerate((9, 4, 2)):
        ids[i, n - 1] = end
    labels[1, 4:] = -100
    return ids, mask, dict(input_ids=ids, attention_mask=mask), labels


def with_bias(model):
    """The bias on the logits of a BART, which begins as zeros."""
    model.final_logits_bias.normal_(0, 0.3, generator=torch.Generator().manual_seed(3))
    return model


def flatten(output):
    """A ModelOutput as flat names; caches are left out."""
    flat = {}
    for name, value in output.items():
        if torch.is_tensor(value):
            flat[name] = value
        elif isinstance(value, tuple) and all(torch.is_tensor(v) for v in value):
            flat.update({f"{name}.{i}": v for i, v in enumerate(value)})
        elif isinstance(value, ModelOutput):  # of one of two encoders
            flat.update({f"{name}.{key}": v for key, v in flatten(value).items()})
    return flat


def gradients(model, folder):
    """{published name: gradient}.  transformers may call a parameter otherwise than its file does: then the gradients go the
    way the weights went, through save_pretrained."""
    grads = {k: p.grad.detach().clone() for k, p in model.named_parameters() if p.grad is not None}
    published = load_file(os.path.join(folder, "model.safetensors"))
    if all(k in published for k in grads):
        return grads
    with tempfile.TemporaryDirectory() as other:
        model.save_pretrained(other, state_dict=grads)
        return load_file(os.path.join(other, "model.safetensors"))


def case(name, model, extra=None, change=None, instead=None, only=None, **inputs):
    """Writes the case.  extra: tensors for out.safetensors beside the outputs; change(folder): called once the model is saved;
    instead: inputs that transformers wants in another form; only: outputs that are kept, and the gradients."""
    folder = os.path.join(sys.argv[1], name)
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    if os.path.exists(os.path.join(folder, "generation_config.json")):
        os.remove(os.path.join(folder, "generation_config.json"))
    if change:
        change(folder)
    output = model(**{**inputs, **(instead or {})}, output_attentions=True, output_hidden_states=True, return_dict=True)
    found = {k: v for k, v in flatten(output).items() if only is None or k in only}
    if output.get("loss") is not None:
        model.zero_grad()
        output.loss.backward()
        found.update({"grad." + key: g for key, g in gradients(model, folder).items()})
    found.update(extra or {})
    found = {k: v.detach().clone().contiguous() for k, v in found.items()}
    save_file({k: v.contiguous() for k, v in inputs.items()}, os.path.join(folder, "in.safetensors"))
    save_file(found, os.path.join(folder, "out.safetensors"))
    size = sum(os.path.getsize(os.path.join(folder, f)) for f in os.listdir(folder))
    plain = sorted(k for k in found if not k.startswith("grad."))
    print(f"{name}: {size // 1024} KiB; {len(found) - len(plain)} gradients; {' '.join(plain)}")
