"""Golden cases of adapters: what PEFT computes with random adapters on the models of tests/golden/models.

A case is a folder of tests/golden/adapters: adapter_config.json and adapter_model.safetensors as PEFT saves them,
base.txt (the folder of the model below tests/golden/models), in.safetensors, and out.safetensors: logits and loss with the
adapter, grad.<name> for each parameter that is trained, and after.<name>: that parameter after three steps of AdamW.  Names
are those of adapter_model.safetensors.  Cases of virtual tokens have logits of the text alone; where a network makes the virtual
tokens it is in prompt_encoder.safetensors, under our names.
Bottlenecks, which PEFT has not, are computed by the few lines of Bottleneck below.
Run: python3 tools/golden/adapters.py tests/golden [CASE]...
(made with peft 0.21.2, transformers 5.22.2, torch 2.15.0)"""
import json
import os
import shutil
import sys

import torch
import transformers
from peft import (IA3Config, LoraConfig, PrefixTuningConfig, PromptEncoderConfig, PromptTuningConfig, get_peft_model)
from peft.utils import get_peft_model_state_dict
from safetensors.torch import load_file, save_file

root, only = sys.argv[1], sys.argv[2:]


def named(model):
    """name in adapter_model.safetensors -> parameter, for what is trained"""
    saved = get_peft_model_state_dict(model)
    by_data = {p.data_ptr(): p for p in model.parameters() if p.requires_grad}
    return {k: by_data[v.data_ptr()] for k, v in saved.items()
            if v.data_ptr() in by_data and ".modules_to_save." not in k}


def named_virtual(model):
    """the same of virtual tokens: PEFT's file has what a network makes of them, ours the network too"""
    found = {}
    network = len(list(model.prompt_encoder.default.named_parameters())) > 1
    for k, p in model.named_parameters():
        if not p.requires_grad:
            continue
        if k == "prompt_encoder.default.embedding.weight" and not network:
            k = "prompt_embeddings"
        found[k.replace("prompt_encoder.default.", "prompt_encoder.").replace(".modules_to_save.default", "")] = p
    return found


def finish(folder, base, model, inputs, given, trained, logits=None):
    """out.safetensors, in.safetensors, base.txt; logits: where they are not all that the model gives"""
    model.zero_grad()
    out = model(**inputs)
    out.loss.backward()
    golden = {"logits": out.logits if logits is None else logits, "loss": out.loss}
    for k, p in trained.items():
        golden["grad." + k] = p.grad
    optimiser = torch.optim.AdamW(list(trained.values()), lr=1e-2, betas=(0.9, 0.98), eps=1e-5, weight_decay=0.01)
    # what has one axis is not decayed
    for g in optimiser.param_groups:
        vectors = [p for p in g["params"] if p.dim() < 2]
        g["params"] = [p for p in g["params"] if p.dim() >= 2]
    if vectors:
        optimiser.add_param_group({"params": vectors, "weight_decay": 0.0})
    for _ in range(3):
        optimiser.zero_grad()
        model(**inputs).loss.backward()
        optimiser.step()
    for k, p in trained.items():
        golden["after." + k] = p
    save_file({k: v.detach().float().contiguous().clone() for k, v in golden.items()},
              os.path.join(folder, "out.safetensors"))
    given = {k: inputs[k].to(v.dtype) for k, v in given.items()}
    save_file(given, os.path.join(folder, "in.safetensors"))
    with open(os.path.join(folder, "base.txt"), "w") as f:
        f.write(base + "\n")
    print(os.path.basename(folder), len(trained), "trained", float(out.loss))


def case(name, base, config, labels=None):
    if only and name not in only:
        return
    torch.manual_seed(3)
    folder, source = os.path.join(root, "adapters", name), os.path.join(root, "models", base)
    shutil.rmtree(folder, ignore_errors=True)
    settings = transformers.AutoConfig.from_pretrained(source)
    cls = getattr(transformers, settings.architectures[0])
    inner = cls.from_pretrained(source, attn_implementation="eager")
    inputs = load_file(os.path.join(source, "in.safetensors"))
    inputs = {k: v.long() if v.dtype in (torch.int32, torch.uint8) else v for k, v in inputs.items()}
    config.base_model_name_or_path = "../../models/" + base
    virtual = getattr(config, "num_virtual_tokens", 0)
    if virtual and config.task_type == "CAUSAL_LM":
        inputs["labels"][:, 0] = -100  # PEFT also predicts the first token, from the virtual ones
    model = get_peft_model(inner, config).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(0.1 * torch.randn_like(p))
    os.makedirs(folder)
    model.save_pretrained(folder, safe_serialization=True)
    for extra in ("README.md",):
        if os.path.exists(os.path.join(folder, extra)):
            os.remove(os.path.join(folder, extra))
    out = model(**inputs)
    trained = named_virtual(model) if virtual else named(model)
    logits = out.logits
    if virtual and logits.dim() == 3 and config.task_type == "CAUSAL_LM":
        logits = logits[:, -inputs["input_ids"].shape[1]:]
    if virtual and "prompt_embeddings" not in trained:
        save_file({k: p.detach().clone() for k, p in trained.items()}, os.path.join(folder, "prompt_encoder.safetensors"))
    finish(folder, base, model, inputs, load_file(os.path.join(source, "in.safetensors")), trained, logits)


case("bert-lora", "bert-sequence", LoraConfig(task_type="SEQ_CLS", r=4, lora_alpha=8, lora_dropout=0.0))
case("bert-rslora-biases", "bert-token",
     LoraConfig(task_type="TOKEN_CLS", r=4, lora_alpha=8, use_rslora=True, bias="lora_only", target_modules=["query", "key", "output.dense"]))
case("gpt2-lora", "gpt2-language", LoraConfig(task_type="CAUSAL_LM", r=3, lora_alpha=6, fan_in_fan_out=True))
case("gpt2-dora", "gpt2-language",
     LoraConfig(task_type="CAUSAL_LM", r=3, lora_alpha=6, use_dora=True, fan_in_fan_out=True, target_modules=["c_attn", "c_fc"]))
case("gpt2-ia3", "gpt2-language",
     IA3Config(task_type="CAUSAL_LM", fan_in_fan_out=True, target_modules=["c_attn", "mlp.c_proj"], feedforward_modules=["mlp.c_proj"]))
case("llama-lora", "llama-language",
     LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=16, target_modules=r".*\.(q_proj|v_proj|down_proj)"))
case("llama-dora", "llama-language",
     LoraConfig(task_type="CAUSAL_LM", r=2, lora_alpha=4, use_dora=True, target_modules=["q_proj", "o_proj"], layers_to_transform=[1]))
case("t5-lora", "t5-text", LoraConfig(task_type="SEQ_2_SEQ_LM", r=4, lora_alpha=8))
case("t5-ia3", "t5-text", IA3Config(task_type="SEQ_2_SEQ_LM", target_modules=["k", "v", "wo"], feedforward_modules=["wo"]))
case("bert-lora-embedding", "bert-sequence", LoraConfig(task_type="SEQ_CLS", r=3, lora_alpha=6, target_modules=["query", "word_embeddings"]))
case("gpt2-lora-embedding", "gpt2-language",
     LoraConfig(task_type="CAUSAL_LM", r=2, lora_alpha=4, fan_in_fan_out=True, target_modules=["c_attn", "wte"]))
case("llama-lora-embedding", "llama-language",
     LoraConfig(task_type="CAUSAL_LM", r=2, lora_alpha=4, target_modules=["q_proj", "embed_tokens"]))
case("bert-all-biases", "bert-sequence", LoraConfig(task_type="SEQ_CLS", r=2, lora_alpha=2, bias="all", target_modules=["value"]))


def published(name):
    """transformers 5 has other names for ViT's modules than the checkpoints, and the adapters, that were published"""
    for new, old in (("vit.layers.", "vit.encoder.layer."), ("attention.q_proj", "attention.attention.query"),
                     ("attention.k_proj", "attention.attention.key"), ("attention.v_proj", "attention.attention.value"),
                     ("mlp.fc1", "intermediate.dense"), ("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value"), ("fc1", "intermediate.dense"), ("mlp.fc2", "output.dense")):
        name = name.replace(new, old)
    return name


def vit_case(name, config):
    if only and name not in only:
        return
    case(name, "vit-classify", config)
    folder = os.path.join(root, "adapters", name)
    for file in ("adapter_model.safetensors", "out.safetensors"):
        path = os.path.join(folder, file)
        save_file({published(k): v for k, v in load_file(path).items()}, path)
    path = os.path.join(folder, "adapter_config.json")
    settings = json.load(open(path))
    for key in ("target_modules", "feedforward_modules"):
        if settings.get(key):
            settings[key] = [published(x) for x in settings[key]]
    json.dump(settings, open(path, "w"), indent=2)


vit_case("vit-lora", LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], modules_to_save=["classifier"]))
vit_case("vit-ia3", IA3Config(target_modules=["k_proj", "v_proj", "fc1"], feedforward_modules=["fc1"], modules_to_save=["classifier"]))
for family, base, task in (("bert", "bert-sequence", "SEQ_CLS"), ("gpt2", "gpt2-language", "CAUSAL_LM"),
                           ("llama", "llama-language", "CAUSAL_LM"), ("t5", "t5-text", "SEQ_2_SEQ_LM")):
    case(family + "-prompt", base, PromptTuningConfig(task_type=task, num_virtual_tokens=3))
    case(family + "-p-tuning", base, PromptEncoderConfig(task_type=task, num_virtual_tokens=3, encoder_hidden_size=8))
    if family != "t5":
        case(family + "-prefix", base, PrefixTuningConfig(task_type=task, num_virtual_tokens=3))
case("gpt2-prefix-projection", "gpt2-language",
     PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2, prefix_projection=True, encoder_hidden_size=8))
case("bert-token-prefix", "bert-token", PrefixTuningConfig(task_type="TOKEN_CLS", num_virtual_tokens=3))


def t5_prefix(name):
    """T5's keys are as wide as the model in PEFT's view, which those of models/t5-text are not: a base of its own, beside the adapter"""
    folder = os.path.join(root, "adapters", name)
    settings = transformers.AutoConfig.from_pretrained(os.path.join(root, "models", "t5-text"), d_kv=4)
    torch.manual_seed(5)
    base = transformers.T5ForConditionalGeneration(settings)
    with torch.no_grad():
        for p in base.parameters():
            p.copy_(0.3 * torch.randn_like(p))
    kept = os.path.join(root, "models", "t5-narrow-keys")
    shutil.rmtree(kept, ignore_errors=True)
    base.save_pretrained(kept)
    given = load_file(os.path.join(root, "models", "t5-text", "in.safetensors"))
    labels = given["labels"].long()
    given["decoder_input_ids"] = base.prepare_decoder_input_ids_from_labels(labels).to(torch.int32)
    save_file(given, os.path.join(kept, "in.safetensors"))
    case(name, "t5-narrow-keys", PrefixTuningConfig(task_type="SEQ_2_SEQ_LM", num_virtual_tokens=3))
    shutil.move(kept, os.path.join(folder, "base"))
    with open(os.path.join(folder, "base.txt"), "w") as f:
        f.write("../adapters/" + name + "/base\n")


if not only or "t5-prefix" in only:
    t5_prefix("t5-prefix")


class Bottleneck(torch.nn.Module):
    """A linear map and, behind it, y + scaling * up(act(down(y)))"""

    def __init__(self, inner, width, n, act, scaling):
        super().__init__()
        self.inner, self.act, self.scaling = inner, act, scaling
        self.adapter_down = torch.nn.Sequential(torch.nn.Linear(width, n))
        self.adapter_up = torch.nn.Linear(n, width)

    @property
    def weight(self):  # T5 looks at its dtype
        return self.inner.weight

    def forward(self, x):
        y = self.inner(x)
        return y + self.scaling * self.adapter_up(self.act(self.adapter_down(y)))


def bottleneck_case(name, base, ends, act="swish", scaling=1.0, factor=4, modules_to_save=(), **settings):
    """ends: the last parts of the names of the maps that bottlenecks stand behind"""
    if only and name not in only:
        return
    torch.manual_seed(3)
    folder, source = os.path.join(root, "adapters", name), os.path.join(root, "models", base)
    shutil.rmtree(folder, ignore_errors=True)
    config = transformers.AutoConfig.from_pretrained(source)
    model = getattr(transformers, config.architectures[0]).from_pretrained(source, attn_implementation="eager").eval()
    given = load_file(os.path.join(source, "in.safetensors"))
    inputs = {k: v.long() if v.dtype in (torch.int32, torch.uint8) else v for k, v in given.items()}
    for p in model.parameters():
        p.requires_grad = False
    acts = {"swish": torch.nn.functional.silu, "relu": torch.relu, "gelu": torch.nn.functional.gelu, "tanh": torch.tanh}
    trained = {}
    for module, inner in list(model.named_modules()):
        if not isinstance(inner, (torch.nn.Linear, transformers.pytorch_utils.Conv1D)) or not module.endswith(tuple(ends)):
            continue
        width = inner.weight.shape[1] if isinstance(inner, transformers.pytorch_utils.Conv1D) else inner.weight.shape[0]
        parent, leaf = module.rsplit(".", 1)
        wrapped = Bottleneck(inner, width, max(1, int(width / factor)), acts[act], scaling)
        setattr(model.get_submodule(parent), leaf, wrapped)
        trained |= {f"base_model.model.{published(module)}.{k}": p for k, p in wrapped.named_parameters() if k.startswith("adapter")}
    for module in modules_to_save:
        for k, p in model.get_submodule(module).named_parameters():
            p.requires_grad = True
            trained[f"base_model.model.{module}.{k}"] = p
    with torch.no_grad():
        for p in trained.values():
            p.add_(0.1 * torch.randn_like(p))
    os.makedirs(folder)
    save_file({k: p.detach().clone().contiguous() for k, p in trained.items()}, os.path.join(folder, "adapter_model.safetensors"))
    settings |= {"peft_type": "BOTTLENECK", "base_model_name_or_path": "../../models/" + base, "reduction_factor": factor, "non_linearity": act,
                 "scaling": scaling, "modules_to_save": list(modules_to_save)}
    with open(os.path.join(folder, "adapter_config.json"), "w") as f:
        json.dump(settings, f, indent=2)
    finish(folder, base, model, inputs, given, trained)


bottleneck_case("bert-houlsby", "bert-sequence", ["output.dense"], modules_to_save=["classifier"])
bottleneck_case("gpt2-houlsby", "gpt2-language", ["c_proj"], act="gelu")
bottleneck_case("llama-pfeiffer", "llama-language", ["down_proj"], act="relu", mh_adapter=False)
bottleneck_case("t5-houlsby", "t5-text", ["Attention.o", "DenseReluDense.wo"], act="tanh", scaling=0.5)
bottleneck_case("vit-pfeiffer", "vit-classify", ["mlp.fc2"], mh_adapter=False, modules_to_save=["classifier"])
