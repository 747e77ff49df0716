"""Golden files for the marian family: two tiny random models as transformers saves them, with logits, loss, gradients
and generated ids.  Run: python3 tools/golden/marian.py tests/golden   (made with transformers 5.22.2, torch 2.15.0)"""
import os
import sys

import torch
from safetensors.torch import save_file
from transformers import MarianConfig, MarianMTModel

out = sys.argv[1]
CASES = {
    "marian-shared": dict(vocab_size=41, activation_function="swish", scale_embedding=True),
    "marian-apart": dict(vocab_size=37, decoder_vocab_size=29, share_encoder_decoder_embeddings=False, activation_function="relu"),
}
for name, extra in CASES.items():
    torch.manual_seed(7)
    vocab = extra.get("decoder_vocab_size", extra["vocab_size"])
    config = MarianConfig(d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=2,
                          encoder_ffn_dim=24, decoder_ffn_dim=40, max_position_embeddings=32, dropout=0.0, attention_dropout=0.0,
                          pad_token_id=vocab - 1, decoder_start_token_id=vocab - 1, eos_token_id=0, forced_eos_token_id=0, **extra)
    model = MarianMTModel(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_(0.2 * torch.randn_like(p))
        model.final_logits_bias.normal_(0, 0.1)
    folder = os.path.join(out, name)
    model.save_pretrained(folder)
    for f in ("generation_config.json",):
        os.remove(os.path.join(folder, f))

    batch, source, target = 3, 9, 7
    ids = torch.randint(1, config.vocab_size - 1, (batch, source))
    mask = torch.ones(batch, source, dtype=torch.long)
    mask[1, 5:] = 0
    mask[2, 1:] = 0
    ids[mask == 0] = config.pad_token_id
    labels = torch.randint(1, vocab - 1, (batch, target))
    labels[1, 4:] = -100
    decoder_ids = model.prepare_decoder_input_ids_from_labels(labels)
    got = model(input_ids=ids, attention_mask=mask, decoder_input_ids=decoder_ids, labels=labels, output_attentions=False)
    got.loss.backward()
    tensors = {
        "input_ids": ids.int(), "attention_mask": mask.to(torch.uint8), "decoder_input_ids": decoder_ids.int(), "labels": labels.int(),
        "logits": got.logits, "loss": got.loss.reshape(1), "encoder_last_hidden_state": got.encoder_last_hidden_state,
    }
    for key, p in model.named_parameters():
        if p.grad is not None:
            tensors["grad." + key] = p.grad
    with torch.no_grad():
        for beams in (1, 4):
            best = model.generate(input_ids=ids, attention_mask=mask, num_beams=beams, max_length=12, length_penalty=1.0)
            tensors[f"beam{beams}"] = best.int()
        model.config._attn_implementation = "eager"
        seen = model(input_ids=ids, attention_mask=mask, decoder_input_ids=decoder_ids, output_attentions=True)
    for kind, maps in (("encoder", seen.encoder_attentions), ("decoder", seen.decoder_attentions), ("cross", seen.cross_attentions)):
        for i, m in enumerate(maps or ()):
            if m is not None:
                tensors[f"{kind}_attentions.{i}"] = m
    save_file({k: v.detach().contiguous() for k, v in tensors.items()}, os.path.join(out, name + ".safetensors"))
    print(name, sorted(tensors)[:12], "...", sum(p.numel() for p in model.parameters()))
