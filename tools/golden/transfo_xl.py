"""Golden cases of Transformer-XL, which transformers no longer has: a reference in double precision after the paper
(Dai et al. 2019), with the parameter names of transformers' last TransfoXLLMHeadModel.

A case is what families.py says, with "mems" (layers,B,M,D) in and out; transfo-xl-segments has ids (5,B,T) of five segments
in a row, and the logits and memories of each, the memory growing from nothing; transfo-xl-memory has a text of 2,400 ids and
the log-probability of each, read in segments of 48 with memories of 1, 256, 1,000 and 2,000 tokens and distances beyond 300 clamped,
and of one memory those with a continuous cache beside the model (Grave et al. 2017): tests/models/test_transfo_xl.c runs both.
Run: python3 tools/golden/transfo_xl.py tests/golden   (made with torch 2.15.0)"""
import json
import math
import os
import shutil
import sys

import torch
from safetensors.torch import save_file
from torch.nn.functional import layer_norm, linear, log_softmax

DEFAULTS = dict(vocab_size=35, cutoffs=[], div_val=1, d_model=12, d_embed=12, n_head=3, d_head=5, d_inner=20, n_layer=2, mem_len=6,
                clamp_len=-1, same_length=False, pre_lnorm=False, untie_r=True, proj_share_all_but_first=True, tie_word_embeddings=True,
                dropout=0.1, dropatt=0.0, layer_norm_epsilon=1e-5, init_std=0.02, proj_init_std=0.01)
HARMLESS = dict(model_type="transfo-xl", architectures=["TransfoXLLMHeadModel"], adaptive=True, attn_type=0, eos_token_id=0,
                init="normal", init_range=0.01, sample_softmax=-1)


class Reference:
    def __init__(self, seed=3, **config):
        self.k = k = dict(DEFAULTS, **config)
        self.ends = k["cutoffs"] + [k["vocab_size"]]
        self.p, self.tied = {}, {}
        generator = torch.Generator().manual_seed(seed)
        spread = lambda *shape, by=0.3: (by * torch.randn(shape, generator=generator)).float().double().requires_grad_()
        D, H, W = k["d_model"], k["n_head"], k["d_head"]
        wide = k["div_val"] == 1
        for i, end in enumerate(self.ends[-1:] if wide else self.ends):
            rows = end if wide or i == 0 else end - self.ends[i - 1]
            d = k["d_embed"] // k["div_val"]**i
            self.p[f"transformer.word_emb.emb_layers.{i}.weight"] = spread(rows, d)
            if not wide or d != D:
                self.p[f"transformer.word_emb.emb_projs.{i}"] = spread(D, d)
                if i and k["proj_share_all_but_first"]:
                    self.tied[f"crit.out_projs.{i}"] = f"transformer.word_emb.emb_projs.{i}"
                else:
                    self.p[f"crit.out_projs.{i}"] = spread(D, d)
            if k["tie_word_embeddings"]:
                self.tied[f"crit.out_layers.{i}.weight"] = f"transformer.word_emb.emb_layers.{i}.weight"
            else:
                self.p[f"crit.out_layers.{i}.weight"] = spread(rows, d)
            self.p[f"crit.out_layers.{i}.bias"] = spread(rows)
        if k["cutoffs"]:
            self.p["crit.cluster_weight"] = spread(len(k["cutoffs"]), k["d_embed"])
            self.p["crit.cluster_bias"] = spread(len(k["cutoffs"]))
        if not k["untie_r"]:
            self.p["transformer.r_w_bias"], self.p["transformer.r_r_bias"] = spread(H, W), spread(H, W)
        for n in range(k["n_layer"]):
            at = f"transformer.layers.{n}."
            shapes = {"dec_attn.qkv_net.weight": (3 * H * W, D), "dec_attn.r_net.weight": (H * W, D), "dec_attn.o_net.weight": (D, H * W),
                      "pos_ff.CoreNet.0.weight": (k["d_inner"], D), "pos_ff.CoreNet.0.bias": (k["d_inner"],),
                      "pos_ff.CoreNet.3.weight": (D, k["d_inner"]), "pos_ff.CoreNet.3.bias": (D,)}
            if k["untie_r"]:
                shapes.update({"dec_attn.r_w_bias": (H, W), "dec_attn.r_r_bias": (H, W)})
            for part in ("dec_attn", "pos_ff"):
                shapes.update({f"{part}.layer_norm.weight": (D,), f"{part}.layer_norm.bias": (D,)})
            self.p.update({at + name: spread(*shape) for name, shape in shapes.items()})

    def __getitem__(self, name):
        return self.p.get(self.tied.get(name, name))

    def embed(self, ids):
        D, wide = self.k["d_model"], self.k["div_val"] == 1
        x = torch.zeros(*ids.shape, D, dtype=torch.double)
        for i, end in enumerate(self.ends[-1:] if wide else self.ends):
            begin = 0 if i == 0 else self.ends[i - 1]
            here = (ids >= begin) & (ids < end)
            rows = self[f"transformer.word_emb.emb_layers.{i}.weight"][(ids - begin).clamp(0, end - begin - 1)]
            proj = self[f"transformer.word_emb.emb_projs.{i}"]
            x = x + here[..., None] * (rows if proj is None else linear(rows, proj))
        return x * math.sqrt(D)

    def logits(self, x):
        """log-probabilities where there are clusters"""
        wide, out, head = self.k["div_val"] == 1, [], None
        for i, end in enumerate(self.ends):
            begin, t = 0 if i == 0 else self.ends[i - 1], 0 if wide else i
            proj, w, b = self[f"crit.out_projs.{t}"], self[f"crit.out_layers.{t}.weight"], self[f"crit.out_layers.{t}.bias"]
            h = x if proj is None else x @ proj
            if wide:
                w, b = w[begin:end], b[begin:end]
            if len(self.ends) == 1:
                return linear(h, w, b)
            if i == 0:
                w, b = torch.cat([w, self["crit.cluster_weight"]]), torch.cat([b, self["crit.cluster_bias"]])
                head = log_softmax(linear(h, w, b), -1)
                out.append(head[..., :end])
            else:
                out.append(log_softmax(linear(h, w, b), -1) + head[..., self.ends[0] + i - 1, None])
        return torch.cat(out, -1)

    def attend(self, n, x, memory):
        """Each score by its own formula, query by query and key by key: no shift."""
        k, at = self.k, f"transformer.layers.{n}.dec_attn."
        H, W, D = k["n_head"], k["d_head"], k["d_model"]
        z = torch.cat([memory, x], 1)
        norm = lambda y: layer_norm(y, (D,), self[at + "layer_norm.weight"], self[at + "layer_norm.bias"], k["layer_norm_epsilon"])
        a = norm(z) if k["pre_lnorm"] else z
        B, L, T, M = *a.shape[:2], x.shape[1], memory.shape[1]
        q, key, v = (y.view(B, L, H, W) for y in linear(a, self[at + "qkv_net.weight"]).chunk(3, -1))
        q = q[:, M:]
        u_bias = self[at + "r_w_bias"] if k["untie_r"] else self["transformer.r_w_bias"]
        v_bias = self[at + "r_r_bias"] if k["untie_r"] else self["transformer.r_r_bias"]
        distance = torch.arange(T)[:, None] + M - torch.arange(L)[None, :]
        counted = distance.clamp(min=0).double()
        if k["clamp_len"] > 0:
            counted = counted.clamp(max=k["clamp_len"])
        wave = counted[..., None] / 10000**(torch.arange(0, D, 2).double() / D)
        r = linear(torch.cat([wave.sin(), wave.cos()], -1), self[at + "r_net.weight"]).view(T, L, H, W)
        score = torch.einsum("bihw,bjhw->bhij", q + u_bias, key) + torch.einsum("bihw,ijhw->bhij", q + v_bias, r)
        seen = distance >= 0
        if k["same_length"]:
            seen = seen & (distance < k["mem_len"])
        weights = (score / math.sqrt(W)).masked_fill(~seen, -math.inf).softmax(-1)
        y = linear(torch.einsum("bhij,bjhw->bihw", weights, v).reshape(B, T, H * W), self[at + "o_net.weight"])
        return (x + y if k["pre_lnorm"] else norm(x + y)), weights

    def layer(self, n, x, memory):
        k, at = self.k, f"transformer.layers.{n}.pos_ff."
        x, weights = self.attend(n, x, memory)
        norm = lambda y: layer_norm(y, y.shape[-1:], self[at + "layer_norm.weight"], self[at + "layer_norm.bias"], k["layer_norm_epsilon"])
        h = norm(x) if k["pre_lnorm"] else x
        h = linear(h, self[at + "CoreNet.0.weight"], self[at + "CoreNet.0.bias"]).relu()
        h = linear(h, self[at + "CoreNet.3.weight"], self[at + "CoreNet.3.bias"])
        return (x + h if k["pre_lnorm"] else norm(x + h)), weights

    def __call__(self, ids, mems=None, keep=None):
        """ids (B,T), mems (layers,B,M,D); keep: states of the new memory"""
        layers, D = self.k["n_layer"], self.k["d_model"]
        if mems is None:
            mems = torch.zeros(layers, len(ids), 0, D, dtype=torch.double)
        x, out, new = self.embed(ids), {}, []
        for n in range(layers):
            out[f"hidden_states.{n}"] = x
            new.append(torch.cat([mems[n], x], 1)[:, -keep:].detach())
            x, out[f"attentions.{n}"] = self.layer(n, x, mems[n].double())
        out[f"hidden_states.{layers}"] = x
        return dict(out, logits=self.logits(x), mems=torch.stack(new))

    def save(self, folder):
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(dict(self.k, **HARMLESS), f, indent=2, sort_keys=True)
        save_file({n: t.detach().float().contiguous() for n, t in self.p.items()}, os.path.join(folder, "model.safetensors"), {"format": "pt"})


def write(folder, file, tensors):
    as_stored = lambda t: t.detach().float().contiguous() if t.is_floating_point() else t.contiguous()
    save_file({n: as_stored(t) for n, t in tensors.items()}, os.path.join(folder, file))


def case(name, model, memory=None, T=7, B=2):
    folder = os.path.join(sys.argv[1], "models", name)
    model.save(folder)
    k, generator = model.k, torch.Generator().manual_seed(1)
    ids = torch.randint(1, k["vocab_size"], (B, T), generator=generator)
    inputs = dict(input_ids=ids, labels=ids.clone())
    if memory:
        inputs["mems"] = torch.randn(k["n_layer"], B, memory, k["d_model"], generator=generator)
    out = model(ids, inputs.get("mems"), keep=memory or min(T, k["mem_len"]))
    logp = log_softmax(out["logits"], -1)[:, :-1].gather(-1, ids[:, 1:, None])
    out["loss"] = -logp.mean()
    out["loss"].backward()
    out.update({"grad." + n: t.grad for n, t in model.p.items() if t.grad is not None})
    write(folder, "in.safetensors", inputs)
    write(folder, "out.safetensors", out)


ADAPTIVE = dict(cutoffs=[10, 22], div_val=2, d_embed=8)
case("transfo-xl", Reference())
case("transfo-xl-adaptive", Reference(**ADAPTIVE), memory=5)
case("transfo-xl-clamped", Reference(clamp_len=4, untie_r=False, same_length=True, tie_word_embeddings=False), memory=6)
case("transfo-xl-pre-norm", Reference(pre_lnorm=True, cutoffs=[10, 22], d_embed=8), memory=3)

model = Reference(**dict(ADAPTIVE, n_layer=3, proj_share_all_but_first=False))
folder = os.path.join(sys.argv[1], "transfo-xl-segments")
model.save(folder)
ids, out, mems = torch.randint(0, 35, (5, 2, 6), generator=torch.Generator().manual_seed(2)), {}, None
for i, segment in enumerate(ids):
    found = model(segment, mems, keep=8)
    mems = found["mems"]
    out.update({f"logits.{i}": found["logits"], f"mems.{i}": mems})
write(folder, "in.safetensors", dict(input_ids=ids))
write(folder, "out.safetensors", out)

def cached(states, ids, logp, size=100, theta=2.0, weight=0.2):
    """p = (1 - weight) p_model + weight * softmax(theta h_t.h_i) where ids[t+1] followed h_i: token by token, from the formula"""
    out = [0.0, float(logp[1])]
    for t in range(1, len(ids) - 1):
        first = max(0, t - size)
        w = (theta * states[first:t] @ states[t]).softmax(0)
        p = w[ids[first + 1:t + 1] == ids[t + 1]].sum()
        out.append(math.log((1 - weight) * math.exp(logp[t + 1]) + weight * p))
    return torch.tensor(out, dtype=torch.double)


model = Reference(clamp_len=300, n_layer=2)
folder = os.path.join(sys.argv[1], "transfo-xl-memory")
model.save(folder)
ids, out = torch.randint(0, 35, (2400,), generator=torch.Generator().manual_seed(4)), {}
with torch.no_grad():
    for memory in (1, 256, 1000, 2000):
        mems, found, states = None, [torch.zeros(1)], []
        for begin in range(0, len(ids) - 1, 48):
            segment, following = ids[begin:begin + 48], ids[begin + 1:begin + 49]
            result = model(segment[None], mems, keep=memory)
            mems = result["mems"]
            states.append(result["hidden_states.2"][0])
            logp = log_softmax(result["logits"][0, :len(following)], -1)
            found.append(logp.gather(-1, following[:, None])[:, 0])
        out[f"logp.{memory}"] = torch.cat(found)
        if memory == 256:
            out["cached.256"] = cached(torch.cat(states), ids, out["logp.256"])
write(folder, "in.safetensors", dict(input_ids=ids))
write(folder, "out.safetensors", out)
