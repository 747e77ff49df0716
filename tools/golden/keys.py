"""Keys of config.json that change numbers: which transformers reads, and that fovea reads them too or refuses them.

Takes a few golden models of each family and changes one key of the configuration at a time: every key that the class of the
configuration knows and, for each, values of its kind.  Where transformers still opens the directory and its outputs change, fovea must
compute the same or refuse; where they do not change, fovea's must not either.  Prints what is wrong, and writes what changes numbers to
tests/golden/configs/keys.jsonl, which tests/models/test_keys.c goes through.  A line is a case: the output that is looked at, keys with
values that change nothing ("same"), that fovea must refuse ("refused"), and that change numbers, with a few of those ("changed").

    python3 tools/golden/keys.py build/fovea [MODEL_TYPE...]

(made with transformers 5.22.2, torch 2.15.0)"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file

from families import flatten

transformers.logging.set_verbosity(transformers.logging.CRITICAL)
transformers.utils.logging.disable_progress_bar()
torch.set_num_threads(1)
GOLDEN = pathlib.Path(__file__).resolve().parents[2] / "tests/golden"
MODELS = GOLDEN / "models"
OURS = {"transfo-xl", "sagan", "kwt", "dlinear", "sasrec", "transfo_xl"}  # families that transformers does not have
# Keys that say how a class is found or what is written, or which are checked elsewhere: never part of the network.
NEVER = {"model_type", "architectures", "transformers_version", "dtype", "torch_dtype", "id2label", "label2id", "num_labels", "_name_or_path",
         "return_dict", "output_attentions", "output_hidden_states", "use_cache", "is_encoder_decoder", "_attn_implementation",
         "problem_type", "attn_implementation", "quantization_config", "_experts_implementation", "experts_implementation"}


def values(key, v):
    """Other values of the same kind; of what is not given, one of each kind."""
    if isinstance(v, bool):
        return [not v]
    if isinstance(v, int):
        return sorted({v + 1, 1 if v != 1 else 2})
    if isinstance(v, float):
        return [v * 2 + 0.25]
    if isinstance(v, str):
        if v in transformers.activations.ACT2FN:
            return ["relu" if v != "relu" else "gelu", "relu2", "leaky_relu"]
        return []
    if v is None:
        return [True, 3, 0.5]
    return []


def keys_of(config):
    """Keys of the class and of those above it, with their values here."""
    known = {k: v for k, v in config.to_dict().items() if k not in NEVER and not k.startswith("_")}
    for k, v in vars(type(config)).items():
        if not k.startswith("_") and k not in NEVER and isinstance(v, (bool, int, float, str, type(None))) and k not in known:
            known[k] = v
    for k, of in config.attribute_map.items():
        if k not in NEVER and not k.startswith("_") and isinstance(getattr(config, of, None), (bool, int, float)):
            known[k] = getattr(config, of)
    for k in ("model_type", "base_config_key", "base_model_prefix", "is_composition", "has_no_defaults_at_init"):
        known.pop(k, None)
    return known


def inputs_of(case):
    given = load_file(MODELS / case / "in.safetensors")
    given = {k: v.long() if v.dtype == torch.int32 else v for k, v in given.items()}
    if "class_labels" in given:
        given["labels"] = [dict(class_labels=c[c >= 0], boxes=b[c >= 0]) for c, b in zip(given.pop("class_labels"), given.pop("boxes"))]
    return given


def theirs(folder, given):
    """What transformers computes from the directory; None: it does not open it."""
    try:
        config = transformers.AutoConfig.from_pretrained(folder)
        cls = getattr(transformers, config.architectures[0])
        model, info = cls.from_pretrained(folder, output_loading_info=True, attn_implementation="eager")
        if info["missing_keys"] or info["mismatched_keys"]:
            return None
        with torch.no_grad():
            return {k: v.float() for k, v in flatten(model.eval()(**given, return_dict=True)).items()}
    except Exception:
        return None


def ours(fovea, folder):
    done = subprocess.run([fovea, "forward", "-m", folder, "-i", f"{folder}/in.safetensors", "-o", f"{folder}/got.safetensors"],
                          capture_output=True, text=True)
    return load_file(f"{folder}/got.safetensors") if not done.returncode else done.stderr.strip()


def alike(a, b, bound=1e-4, mask=None):
    """Every output of a is in b with the same numbers; mask: where no token is, nothing is compared, as a row without keys gives zeros in
    fovea and a mean in transformers."""
    for name, x in a.items():
        if name not in b or b[name].shape != x.shape:
            return False
        off = x - b[name].float()
        if mask is not None and off.shape[:2] == mask.shape:
            off = off[mask == 1]
        if not off.abs().max() <= bound * max(1, x.abs().max()):
            return False
    return True


def compared(out):
    """Outputs that both have: caches, and what fovea only gives when asked, aside; and the loss of spans, which counts padding."""
    skipped = ("past_", "hidden_states", "attentions", "mems") + (("loss",) if "start_logits" in out else ())
    return {k: v for k, v in out.items() if not k.startswith(skipped)}


def shown(out):
    return next(k for k in ("logits", "last_hidden_state", *out) if k in out)


def sample(x):
    """A few numbers from end to end."""
    flat = x.flatten()
    return [float(f"{float(flat[i * (len(flat) - 1) // 4]):.6g}") for i in range(5)]


def audit(fovea, case, found):
    folder = tempfile.mkdtemp(prefix="keys-")
    for f in os.listdir(MODELS / case):
        if f != "generation_config.json":
            shutil.copy(MODELS / case / f, folder)
    raw, given = json.load(open(f"{folder}/config.json")), inputs_of(case)
    base, here = theirs(folder, given), ours(fovea, folder)
    if base is None:
        given = dict(given, interpolate_pos_encoding=True)
        base = theirs(folder, given)
    if base is None or isinstance(here, str):
        print(f"{case}: not compared: {here if isinstance(here, str) else 'transformers fails'}", flush=True)
        return 0, 0
    base = {k: v for k, v in compared(base).items() if k in here}
    if not base or not alike(base, here):
        print(f"{case}: not compared: differs as it is", flush=True)
        return 0, 0
    n = wrong = 0
    lists = dict(case=case, output=shown(base), same=[], refused=[], changed=[])
    found.append(lists)
    for key, v in keys_of(transformers.AutoConfig.from_pretrained(folder)).items():
        for other in values(key, v):
            json.dump(dict(raw, **{key: other}), open(f"{folder}/config.json", "w"))
            want = theirs(folder, given)
            if want is None:
                continue
            want = {k: w for k, w in compared(want).items() if k in base}
            got, changed, n = ours(fovea, folder), not alike(base, want, 1e-6), n + 1
            refused = isinstance(got, str)
            padding = given.get("decoder_attention_mask", given.get("attention_mask"))
            if not refused and not alike(want, got, mask=padding):
                wrong += 1
                print(f"{case}: {key} = {json.dumps(other)}: WRONG, {'changes' if changed else 'changes nothing in'} transformers", flush=True)
            elif not refused and not alike(want, got):
                continue  # but for padding
            elif changed and refused:
                lists["refused"].append([key, other])
            elif changed:
                lists["changed"].append([key, other, sample(want[lists["output"]])])
            elif not refused:
                lists["same"].append([key, other])
            else:
                print(f"{case}: {key} = {json.dumps(other)}: refused though nothing changes: {got[-150:]}", flush=True)
    shutil.rmtree(folder)
    return n, wrong


def cases(types):
    """Up to two heads of each model type."""
    chosen = {}
    for case in sorted(os.listdir(MODELS)):
        path = MODELS / case / "config.json"
        if not path.exists() or not (MODELS / case / "in.safetensors").exists():
            continue
        config = json.load(open(path))
        kind, head = config.get("model_type"), (config.get("architectures") or ["?"])[0]
        if kind in OURS or not hasattr(transformers, head) or (types and kind not in types):
            continue
        of = chosen.setdefault(kind, {})
        if head not in of and len(of) < 2:
            of[head] = case
    return [case for of in chosen.values() for case in of.values()]


def main():
    found, n, wrong = [], 0, 0
    for case in cases(sys.argv[2:]):
        a, b = audit(sys.argv[1], case, found)
        n, wrong = n + a, wrong + b
        print(f"{case}: {a} tried, {b} wrong", flush=True)
    print(f"{n} tried, {wrong} wrong")
    if len(sys.argv) == 2:
        (GOLDEN / "configs/keys.jsonl").write_text("".join(json.dumps(x) + "\n" for x in found))
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
