"""Rules of generation_config.json beyond the searches of generated.py: what generate() gives with each of them.

tests/golden/generate/rules.json: a list of {"model": a case of tests/golden/models, "config": keys, "sequences": one row for each
input, and the sums of their scores where these are log-probabilities}.  Inputs go alone and without their padding.  (made with transformers 5.22.2, torch 2.15.0)"""
import json
import pathlib

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "tests/golden"
BEAMS = {"num_beams": 3, "max_new_tokens": 8}


def scored(model, ids, **rules):
    """The sum of transformers' scores of what it writes: with renormalize_logits they are log-probabilities."""
    out = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, return_dict_in_generate=True, output_scores=True,
                         **rules)
    return round(float(model.compute_transition_scores(out.sequences, out.scores).sum()), 5)


def greedy(model, ids, n=8, **rules):
    got = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, **{"num_beams": 1, "max_new_tokens": n, **rules})
    return got[0, 1 if model.config.is_encoder_decoder else ids.shape[1]:].tolist()


def rules(model, inputs):
    """Keys that change what this model writes: they are chosen by what it writes without them."""
    plain = [greedy(model, x) for x in inputs]
    first, runs = sorted({r[0] for r in plain}), [r[:3] for r in plain]
    yield {"begin_suppress_tokens": first}
    yield {"begin_suppress_tokens": first, **BEAMS}
    yield {"sequence_bias": [[[first[0]], -3.0], [runs[0][:2], -50.0], [runs[-1], 4.5]]}
    yield {"sequence_bias": [[[first[0]], -3.0], [runs[0][:2], -50.0], [[7], 1.25]], **BEAMS}
    yield {"bad_words_ids": [runs[0], runs[-1][:2]]}
    for size in (1, 2):
        yield {"encoder_no_repeat_ngram_size": size}
        yield {"encoder_no_repeat_ngram_size": size, **BEAMS, "renormalize_logits": True}
    yield {"renormalize_logits": True, "repetition_penalty": 1.3}
    yield {"renormalize_logits": True, "no_repeat_ngram_size": 2, "sequence_bias": [[runs[0][:2], 2.5]]}
    yield {"begin_suppress_tokens": first, "sequence_bias": [[[3], 2.0]], "repetition_penalty": 1.4, "no_repeat_ngram_size": 2,
           "encoder_no_repeat_ngram_size": 2, **BEAMS}


def main():
    out = []
    for name, kind in (("gpt2-apart", AutoModelForCausalLM), ("llama-language", AutoModelForCausalLM),
                       ("bart-scaled", AutoModelForSeq2SeqLM), ("t5-text", AutoModelForSeq2SeqLM)):
        where = GOLDEN / "models" / name
        model = kind.from_pretrained(where).eval()
        given = load_file(where / "in.safetensors")
        inputs = [row[keep == 1][None].long() for row, keep in zip(given["input_ids"], given["attention_mask"])]
        for keys in rules(model, inputs):
            all_keys = {"max_new_tokens": 8, "num_beams": 1, **keys}
            out.append({"model": name, "config": all_keys, "sequences": [greedy(model, x, **all_keys) for x in inputs]})
            if "renormalize_logits" in keys and "num_beams" not in keys:
                out[-1]["scores"] = [scored(model, x, **all_keys) for x in inputs]
            print(name, keys, out[-1]["sequences"])
    path = GOLDEN / "generate/rules.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text("[\n" + ",\n".join(json.dumps(c) for c in out) + "\n]\n")


main()
