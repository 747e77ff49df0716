"""A Hugging Face directory from llama2.c's stories260K (MIT licence): config.json, model.safetensors, tokenizer.model, and
greedy.txt, the 200 tokens its own program writes.

Run: python3 tools/golden/stories.py DIR_WITH_stories260K.bin tests/golden/stories260K   (numpy 2, safetensors 0.5)

llama2.c turns neighbouring pairs of a head's columns, Hugging Face the two halves: rows of wq and wk change places."""
import json
import os
import shutil
import struct
import sys

import numpy as np
from safetensors.numpy import save_file

source, target = sys.argv[1:]
with open(os.path.join(source, "stories260K.bin"), "rb") as f:
    D, hidden, layers, heads, kv_heads, vocab, length = struct.unpack("7i", f.read(28))
    rest = np.frombuffer(f.read(), dtype="<f4")
W = D // heads
at = 0


def take(*shape):
    global at
    x = rest[at:at + int(np.prod(shape))].reshape(shape)
    at += x.size
    return np.ascontiguousarray(x)


def halves(w, n):
    return np.ascontiguousarray(w.reshape(n, W // 2, 2, D).transpose(0, 2, 1, 3).reshape(n * W, D))


tensors = {"model.embed_tokens.weight": take(vocab, D)}
parts = [("input_layernorm", (D,)), ("self_attn.q_proj", (D, D)), ("self_attn.k_proj", (kv_heads * W, D)),
         ("self_attn.v_proj", (kv_heads * W, D)), ("self_attn.o_proj", (D, D)), ("post_attention_layernorm", (D,)),
         ("mlp.gate_proj", (hidden, D)), ("mlp.down_proj", (D, hidden)), ("mlp.up_proj", (hidden, D))]
for name, shape in parts:
    for i in range(layers):
        w = take(*shape)
        if name.endswith(("q_proj", "k_proj")):
            w = halves(w, heads if name.endswith("q_proj") else kv_heads)
        tensors[f"model.layers.{i}.{name}.weight"] = w
tensors["model.norm.weight"] = take(D)
os.makedirs(target, exist_ok=True)
save_file(tensors, os.path.join(target, "model.safetensors"), {"format": "pt"})
config = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=D, intermediate_size=hidden, num_hidden_layers=layers,
              num_attention_heads=heads, num_key_value_heads=kv_heads, vocab_size=vocab, max_position_embeddings=length,
              rms_norm_eps=1e-5, rope_theta=10000.0, hidden_act="silu", tie_word_embeddings=True, bos_token_id=1, eos_token_id=2)
with open(os.path.join(target, "config.json"), "w") as f:
    json.dump(config, f, indent=2)
with open(os.path.join(target, "tokenizer_config.json"), "w") as f:
    json.dump(dict(tokenizer_class="LlamaTokenizer", add_bos_token=True, add_eos_token=False, bos_token="<s>", eos_token="</s>",
                   unk_token="<unk>"), f, indent=2)
shutil.copy(os.path.join(source, "tok512.model"), os.path.join(target, "tokenizer.model"))
shutil.copy(os.path.join(source, "expected_greedy_200.txt"), os.path.join(target, "greedy.txt"))
