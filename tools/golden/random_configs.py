"""Random configurations of the causal families, run by fovea and by transformers: outputs, maps, hidden states, loss, gradients.

    python3 tools/golden/random_configs.py build/fovea 100            # so many cases of every family
    python3 tools/golden/random_configs.py build/fovea 300 qwen3 --seed 7

A case is a model with random sizes and options, saved as transformers saves it, and a batch: padded before, behind or not at all, with
position_ids (B,T), (1,T) or none, with labels or without.  Positions that are padding are not compared: a row in which all keys are
masked gives zeros in fovea and a mean in transformers.  What fovea refuses is counted and its sentence printed; a case whose numbers
differ is kept under the folder printed.  By hand, not in CI.  (versions: families.py)"""
import argparse
import collections
import random
import shutil
import subprocess
import sys
import tempfile

import torch
import transformers
from safetensors.torch import load_file, save_file

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
FAMILIES = {}
ACTS = ["gelu", "relu", "silu", "gelu_new", "gelu_pytorch_tanh", "gelu_fast", "tanh", "sigmoid"]


def family(*heads):
    def add(make):
        FAMILIES[make.__name__] = (heads, make)
        return make
    return add


def sizes(r, heads=None):
    """What all configurations have; key heads divide the heads."""
    keys = r.choice([1, 2, 3])
    n = keys * r.choice([1, 2, 3]) if heads is None else heads
    return dict(vocab_size=r.randint(20, 60), num_hidden_layers=r.randint(1, 3), num_attention_heads=n, num_key_value_heads=keys,
                intermediate_size=r.randint(3, 40), max_position_embeddings=r.choice([16, 24, 64]), initializer_range=r.choice([0.05, 0.3]),
                rms_norm_eps=r.choice([1e-6, 1e-5, 1e-2]), hidden_act=r.choice(ACTS), tie_word_embeddings=r.random() < 0.5,
                pad_token_id=0, bos_token_id=1, eos_token_id=2)


def rope(r, width, types=("default", "linear", "dynamic", "yarn", "llama3", "longrope"), positions=24):
    """rope_parameters for `width` rotated elements of a head."""
    kind = r.choice(types)
    p = dict(rope_type=kind, rope_theta=r.choice([100.0, 10000.0, 5e5]))
    if kind in ("linear", "dynamic", "yarn", "llama3"):
        p["factor"] = r.choice([2.0, 4.5])
    if kind == "dynamic" and width < 4:
        p = dict(rope_type="default", rope_theta=50.0)
    if kind in ("yarn", "llama3", "longrope") and r.random() < 0.8:
        p["original_max_position_embeddings"] = r.choice([4, 8, 64])
    if kind == "yarn" and r.random() < 0.5:
        p.update(beta_fast=r.choice([4.0, 40.0]), beta_slow=r.choice([0.5, 1.5]), truncate=r.random() < 0.5)
    if kind in ("yarn", "longrope") and r.random() < 0.3:
        p["attention_factor"] = r.choice([0.7, 1.3])
    elif kind == "yarn" and r.random() < 0.5:
        p.update(mscale=0.7, mscale_all_dim=0.3)
    if kind == "llama3":
        p.update(low_freq_factor=1.0, high_freq_factor=r.choice([2.0, 4.0]))
    if kind == "longrope":
        p.update(short_factor=[round(r.uniform(1, 2), 3) for _ in range(width // 2)],
                 long_factor=[round(r.uniform(1, 9), 3) for _ in range(width // 2)])
        if r.random() < 0.5:
            p["factor"] = r.choice([1.0, 4.0])
    return p


def layers(r, n):
    return [r.choice(["full_attention", "sliding_attention"]) for _ in range(n)]


@family("Qwen3ForCausalLM", "Qwen3Model", "Qwen3ForSequenceClassification", "Qwen3ForTokenClassification", "Qwen3ForQuestionAnswering")
def qwen3(r):
    k = sizes(r)
    k.update(hidden_size=r.randint(3, 40), head_dim=r.choice([2, 6, 8, 20]), attention_bias=r.random() < 0.3)
    if r.random() < 0.5:
        k.update(use_sliding_window=True, sliding_window=r.randint(1, 9), max_window_layers=r.randint(0, 3))
        if r.random() < 0.5:
            k["layer_types"] = layers(r, k["num_hidden_layers"])
    return transformers.Qwen3Config(**k, rope_parameters=rope(r, k["head_dim"]))


@family("GemmaForCausalLM", "GemmaModel", "GemmaForSequenceClassification", "GemmaForTokenClassification")
def gemma(r):
    k = sizes(r)
    k.update(hidden_size=r.randint(3, 40), head_dim=r.choice([2, 6, 8, 20]), attention_bias=r.random() < 0.3)
    return transformers.GemmaConfig(**k, rope_parameters=rope(r, k["head_dim"]))


@family("Gemma3ForCausalLM", "Gemma3TextModel", "Gemma3TextForSequenceClassification")
def gemma3(r):
    k = sizes(r)
    k["hidden_activation"] = k.pop("hidden_act")
    k.update(hidden_size=k["num_attention_heads"] * r.randint(1, 6), head_dim=r.choice([2, 6, 8, 20]), attention_bias=r.random() < 0.3,
             sliding_window=r.randint(1, 9), query_pre_attn_scalar=r.choice([3, 8, 256]))
    if r.random() < 0.5:
        k["layer_types"] = layers(r, k["num_hidden_layers"])
    else:
        k["sliding_window_pattern"] = r.randint(1, 3)
    ropes = {"full_attention": rope(r, k["head_dim"]), "sliding_attention": rope(r, k["head_dim"])}
    return transformers.Gemma3TextConfig(**k, rope_parameters=ropes)


@family("Phi3ForCausalLM", "Phi3Model", "Phi3ForSequenceClassification", "Phi3ForTokenClassification")
def phi3(r):
    k = sizes(r)
    head, share = r.choice([(4, 1.0), (6, 1.0), (8, 0.75), (20, 0.7), (12, 0.5), (20, 0.4)])
    k.update(hidden_size=head * k["num_attention_heads"], resid_pdrop=0.1, original_max_position_embeddings=r.choice([4, 8, 64]),
             sliding_window=r.choice([None, None, 3, 7]))
    p = rope(r, int(head * share), ("default", "longrope"))
    p.pop("original_max_position_embeddings", None)
    return transformers.Phi3Config(**k, rope_parameters=dict(p, partial_rotary_factor=share))


@family("GPTNeoXForCausalLM", "GPTNeoXModel", "GPTNeoXForSequenceClassification", "GPTNeoXForTokenClassification",
        "GPTNeoXForQuestionAnswering")
def gpt_neox(r):
    k = sizes(r)
    head, share = r.choice([(4, 1.0), (8, 0.25), (8, 0.75), (20, 0.7), (12, 0.5), (16, 0.25)])
    k.pop("num_key_value_heads")
    k["layer_norm_eps"] = k.pop("rms_norm_eps")
    k.update(hidden_size=head * k["num_attention_heads"], attention_bias=r.random() < 0.7, use_parallel_residual=r.random() < 0.6)
    return transformers.GPTNeoXConfig(**k, rope_parameters=dict(rope(r, int(head * share)), partial_rotary_factor=share))


@family("OPTForCausalLM", "OPTModel", "OPTForSequenceClassification", "OPTForQuestionAnswering")
def opt(r):
    k = sizes(r)
    for key in ("num_key_value_heads", "rms_norm_eps", "initializer_range"):
        k.pop(key)
    k.update(ffn_dim=k.pop("intermediate_size"), activation_function=k.pop("hidden_act"), enable_bias=r.random() < 0.7,
             hidden_size=k["num_attention_heads"] * r.randint(1, 6), do_layer_norm_before=r.random() < 0.6,
             _remove_final_layer_norm=r.random() < 0.3)
    if r.random() < 0.5:
        k["word_embed_proj_dim"] = r.randint(2, 20)
    return transformers.OPTConfig(**k)


# ---- one case ----

def positions_of(r, config, B, T):
    """What fovea decides row by row transformers decides by the longest row: there all rows are alike."""
    ropes = getattr(config, "rope_parameters", None) or {}
    kinds = [ropes.get("rope_type")] + [v.get("rope_type") for v in ropes.values() if isinstance(v, dict)]
    grows = any(k in ("dynamic", "longrope") for k in kinds)
    most = config.max_position_embeddings
    if grows or r.random() < 0.5 or T + 3 > most:
        return None, grows
    if r.random() < 0.5:
        return torch.arange(T)[None] + r.randint(0, 3), grows
    return torch.stack([torch.arange(T) + r.randint(0, 3) for _ in range(B)]), grows


def mask_of(r, B, T):
    lengths = [r.randint(1, T) for _ in range(B)]
    behind = torch.tensor([[int(t < n) for t in range(T)] for n in lengths])
    return behind if r.random() < 0.5 else behind.flip(1)


def batch_of(r, config, head):
    B, T, V = r.randint(1, 3), r.randint(1, 14), config.get_text_config().vocab_size
    ids = torch.tensor([[r.randrange(3, V) for _ in range(T)] for _ in range(B)])
    batch = dict(input_ids=ids)
    positions, grows = positions_of(r, config, B, T)
    if positions is not None:
        batch["position_ids"] = positions
    mask = torch.ones_like(ids) if grows or r.random() < 0.3 else mask_of(r, B, T)
    if (mask == 0).any() or r.random() < 0.5:
        batch["attention_mask"] = mask
    ids[mask == 0] = config.pad_token_id if config.pad_token_id is not None else 0
    if head.endswith("Model") and "LMHead" not in head or r.random() < 0.3:
        return batch, mask
    if "SequenceClass" in head:
        batch["labels"] = torch.tensor([r.randrange(config.num_labels) for _ in range(B)])
    elif "TokenClass" in head:
        batch["labels"] = torch.where(mask == 1, ids % config.num_labels, -100)
    elif "Question" in head:
        batch["start_positions"] = torch.tensor([r.randrange(T) for _ in range(B)])
        batch["end_positions"] = torch.tensor([r.randrange(T) for _ in range(B)])
    elif T > 1:
        before = torch.cat([torch.zeros(B, 1), mask[:, :-1]], 1)  # a token is predicted at the one before it, which is no padding
        batch["labels"] = torch.where((mask == 1) & (before == 1), ids, -100)
        if not ((batch["labels"][:, 1:] != -100).any()):
            del batch["labels"]
    return batch, mask


def wanted(model, batch):
    out = model(**batch, output_attentions=True, output_hidden_states=True, return_dict=True)
    found = {}
    for name, value in out.items():
        if torch.is_tensor(value):
            found[name] = value
        elif isinstance(value, tuple) and all(torch.is_tensor(v) for v in value):
            found.update({f"{name}.{i}": v for i, v in enumerate(value)})
    if out.get("loss") is not None:
        out.loss.backward()
        found.update({"grad." + k: p.grad for k, p in model.named_parameters() if p.grad is not None})
    return {k: v.detach() for k, v in found.items()}


def compared(name, got, want, mask):
    """The largest difference, as a share of what is allowed."""
    if got.shape != want.shape:
        return float("inf")
    if name.startswith("grad."):
        return float((got - want).norm()) / (1e-3 * float(want.norm()) + 1e-5)
    keep = torch.ones_like(want, dtype=torch.bool)
    if want.dim() >= 2 and want.shape[:2] == mask.shape:
        keep = (mask == 1).view(*mask.shape, *[1] * (want.dim() - 2)).expand_as(want)
    if name.startswith("attentions"):
        keep = (mask == 1)[:, None, :, None].expand_as(want)
    off = (got - want).abs()[keep]
    return float(off.max()) / (2e-4 * max(1.0, float(want[keep].abs().max()))) if off.numel() else 0.0


def run(fovea, folder, kind, seed):
    """None: equal; else what differs, or what was refused."""
    r = random.Random(f"{kind}-{seed}")
    heads, make = FAMILIES[kind]
    head = r.choice(heads)
    config = make(r)
    config.architectures = [head]
    if "Class" in head:
        n = r.randint(2, 4)
        config.id2label = {i: f"L{i}" for i in range(n)}
        config.label2id = {f"L{i}": i for i in range(n)}
    torch.manual_seed(seed)
    model = getattr(transformers, head)._from_config(config, attn_implementation="eager").eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p))
    model.save_pretrained(folder)
    batch, mask = batch_of(r, config, head)
    save_file({k: v.contiguous() for k, v in batch.items()}, f"{folder}/in.safetensors")
    want = wanted(model, batch)
    grad = "loss" in want
    done = subprocess.run([fovea, "forward", "-m", folder, "-i", f"{folder}/in.safetensors", "-o", f"{folder}/got.safetensors",
                           "--attentions", "--hidden-states"] + ["--grad"] * grad, capture_output=True, text=True)
    if done.returncode:
        return "refused", f"{head}: {done.stderr.strip()}"
    got = load_file(f"{folder}/got.safetensors")
    if "grad.embed_out.weight" in got:  # GPT-NeoX's name in files
        got["grad.lm_head.weight"] = got["grad.embed_out.weight"]
    # the loss of spans is over all positions, padding too
    spans = "Question" in head and (mask == 0).any()
    for name in want:
        if name not in got:
            return "wrong", f"{head}: {name} is missing"
        if spans and (name == "loss" or name.startswith("grad.")):
            continue
        off = compared(name, got[name], want[name], mask)
        if not off <= 1:
            return "wrong", f"{head}: {name}: {off:.3g} times what is allowed"
    return "equal", ""


def main():
    p = argparse.ArgumentParser()
    p.add_argument("fovea")
    p.add_argument("cases", type=int)
    p.add_argument("families", nargs="*")
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    torch.set_num_threads(1)
    wrong = 0
    for kind in a.families or FAMILIES:
        count = collections.Counter()
        for i in range(a.cases):
            folder = tempfile.mkdtemp(prefix="random-")
            verdict, why = run(a.fovea, folder, kind, a.seed * 100000 + i)
            count[verdict] += 1
            if verdict != "equal":
                print(f"{kind} {a.seed * 100000 + i}: {verdict}: {why}" + (f" ({folder})" if verdict == "wrong" else ""), flush=True)
            if verdict != "wrong":
                shutil.rmtree(folder)
        wrong += count["wrong"]
        print(f"{kind}: {count['equal']} equal, {count['refused']} refused, {count['wrong']} wrong", flush=True)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
