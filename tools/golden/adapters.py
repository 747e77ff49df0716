"""Golden cases of adapters: what PEFT computes with random adapters on the models of tests/golden/models.

A case is a folder of tests/golden/adapters: adapter_config.json and adapter_model.safetensors as PEFT saves them,
base.txt (the folder of the model below tests/golden/models), in.safetensors, and out.safetensors: logits and loss with the
adapter, grad.<name> for each parameter that is trained, and after.<name>: that parameter after three steps of AdamW.  Names
are those of adapter_model.safetensors.
Run: python3 tools/golden/adapters.py tests/golden
(made with peft 0.21.2, transformers 5.22.2, torch 2.15.0)"""
import os
import shutil
import sys

import torch
import transformers
from peft import IA3Config, LoraConfig, get_peft_model
from peft.utils import get_peft_model_state_dict
from safetensors.torch import load_file, save_file

root = sys.argv[1]


def named(model):
    """name in adapter_model.safetensors -> parameter, for what is trained"""
    saved = get_peft_model_state_dict(model)
    by_data = {p.data_ptr(): p for p in model.parameters() if p.requires_grad}
    return {k: by_data[v.data_ptr()] for k, v in saved.items()
            if v.data_ptr() in by_data and ".modules_to_save." not in k}


def case(name, base, config, labels=None):
    torch.manual_seed(3)
    folder, source = os.path.join(root, "adapters", name), os.path.join(root, "models", base)
    shutil.rmtree(folder, ignore_errors=True)
    settings = transformers.AutoConfig.from_pretrained(source)
    cls = getattr(transformers, settings.architectures[0])
    inner = cls.from_pretrained(source, attn_implementation="eager")
    inputs = load_file(os.path.join(source, "in.safetensors"))
    inputs = {k: v.long() if v.dtype in (torch.int32, torch.uint8) else v for k, v in inputs.items()}
    config.base_model_name_or_path = "../../models/" + base
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
    out.loss.backward()
    trained = named(model)
    golden = {"logits": out.logits, "loss": out.loss}
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
    shutil.copy(os.path.join(source, "in.safetensors"), folder)
    with open(os.path.join(folder, "base.txt"), "w") as f:
        f.write(base + "\n")
    print(name, len(trained), "trained", float(out.loss))


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
case("bert-all-biases", "bert-sequence", LoraConfig(task_type="SEQ_CLS", r=2, lora_alpha=2, bias="all", target_modules=["value"]))
