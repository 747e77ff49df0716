"""What generate() gives for golden cases: tensors called "sequences:key=value,..", one row for each input, -1 behind its end.

Each input goes alone and without its padding, so that nothing but itself can matter.  tests/gen/test_generate.c reads the options
from the name.  (made with transformers 5.22.2, torch 2.15.0)"""
import torch

SEARCHES = ("max_new_tokens=9,num_beams=1", "max_new_tokens=9,num_beams=3", "max_new_tokens=6,num_beams=4,length_penalty=-1.5,num_return_sequences=3",
            "max_new_tokens=9,num_beams=3,early_stopping=true", "max_new_tokens=9,num_beams=2,early_stopping=never,length_penalty=2.0",
            "max_new_tokens=12,num_beams=1,repetition_penalty=1.7", "max_new_tokens=12,num_beams=1,no_repeat_ngram_size=2",
            "max_new_tokens=9,min_new_tokens=6,num_beams=3", "max_length=11,min_length=9,num_beams=1")


def options(text):
    value = {"true": True, "false": False}
    found = {}
    for pair in text.split(","):
        key, x = pair.split("=")
        found[key] = value.get(x, float(x) if "." in x else int(x) if x.lstrip("-").isdigit() else x)
    return found


def sequences(model, ids, mask, searches=SEARCHES):
    """The tensors, for case(extra=...)."""
    out = {}
    encoder = model.config.is_encoder_decoder
    for text in searches:
        rows = []
        for row, keep in zip(ids, mask):
            one = row[keep == 1][None]
            got = model.generate(input_ids=one, attention_mask=torch.ones_like(one), do_sample=False, **options(text))
            rows += [g[1 if encoder else one.shape[1]:].tolist() for g in got]
        pads = model.generation_config.pad_token_id
        ends = model.generation_config.eos_token_id
        ends = ends if isinstance(ends, list) else [ends]
        for r in rows:  # generate() pads the hypotheses of one input to one length
            stop = next((i for i, t in enumerate(r) if t in ends), len(r) - 1)
            assert all(t == pads or pads == 0 and t == ends[0] for t in r[stop + 1:]), r  # where padding is 0, with the end
            del r[stop + 1:]
        width = max(len(r) for r in rows)
        out["sequences:" + text] = torch.tensor([r + [-1] * (width - len(r)) for r in rows], dtype=torch.int32)
        print("  ", text, rows)
    return out


def end_with(model, ids, mask):
    """Makes a token that greedy search comes to late the end, so that something does end, and not at once."""
    model.generation_config.eos_token_id, late = None, (0, 0)
    for row, keep in zip(ids, mask):
        one = row[keep == 1][None]
        got = model.generate(input_ids=one, attention_mask=torch.ones_like(one), do_sample=False, num_beams=1, max_new_tokens=8)
        new = got[0, 1 if model.config.is_encoder_decoder else one.shape[1]:-1].tolist()
        late = max([late] + [(new.index(t), t) for t in new])
    model.config.eos_token_id = model.generation_config.eos_token_id = late[1]


def keep_config(model):
    """For case(change=...): generation_config.json too, which cases are else without."""
    return model.generation_config.save_pretrained
