"""Golden cases of the Transformer transducer, against a model written here in PyTorch after the equations in transducer.c: states,
lattices, losses over all alignments and gradients; and a stream in chunks, against the mask that chunks make.
Run: python3 tools/golden/transducer.py tests/golden/models   (versions: families.py)"""
import math

import torch
from torch.nn import functional as F

from families import mask_of, pixels, tokens
from item_models import write

SMALL = dict(vocab_size=7, num_features=6, hidden_size=8, intermediate_size=12, hidden_act="gelu", joint_size=10, encoder_layers=2,
             encoder_attention_heads=2, decoder_layers=2, decoder_attention_heads=2, chunk_size=3, left_context=2, label_context=2,
             pad_token_id=0, ctc_weight=0.3, layer_norm_eps=1e-5, rope_theta=100.0)


def parameters(k, head, seed=7):
    g, p, D = torch.Generator().manual_seed(seed), {}, k["hidden_size"]

    def linear(name, a, b, bias=True):
        p[name + ".weight"] = 0.4 * torch.randn(b, a, generator=g)
        if bias:
            p[name + ".bias"] = 0.4 * torch.randn(b, generator=g)

    def stack(name, layers):
        for i in range(layers):
            at = f"{name}.layers.{i}."
            for norm in ("attention_norm", "feed_forward_norm"):
                p[at + norm + ".weight"], p[at + norm + ".bias"] = 1 + 0.2 * torch.randn(D, generator=g), 0.2 * torch.randn(D, generator=g)
            for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                linear(at + "attention." + part, D, D)
            linear(at + "feed_forward.fc1", D, k["intermediate_size"])
            linear(at + "feed_forward.fc2", k["intermediate_size"], D)
        p[name + ".norm.weight"], p[name + ".norm.bias"] = 1 + 0.2 * torch.randn(D, generator=g), 0.2 * torch.randn(D, generator=g)

    linear("encoder.embed", k["num_features"], D)
    stack("encoder", k["encoder_layers"])
    if head != "TransducerEncoder":
        linear("ctc", D, k["vocab_size"])
    if head == "TransducerForSpeechRecognition":
        p["decoder.embed_tokens.weight"] = 0.4 * torch.randn(k["vocab_size"], D, generator=g)
        stack("decoder", k["decoder_layers"])
        linear("joint.encoder", D, k["joint_size"])
        linear("joint.decoder", D, k["joint_size"], bias=False)
        linear("joint.out", k["joint_size"], k["vocab_size"])
    return {name: t.requires_grad_() for name, t in p.items()}


def rotate(x, theta):
    """x (B,H,T,W): pairs (i, i + W/2) turned by t theta^(-2i/W)."""
    T, W = x.shape[2:]
    angle = torch.arange(T)[:, None] * theta ** (-2 * torch.arange(W // 2) / W)
    a, b = x[..., :W // 2], x[..., W // 2:]
    return torch.cat([a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()], -1)


def stack(p, k, name, x, allowed):
    """allowed (B,T,T): which keys a query sees."""
    D, H = k["hidden_size"], k[name + "_attention_heads"]
    B, T = x.shape[:2]
    maps, hidden = [], []

    def linear(at, y):
        return F.linear(y, p[at + ".weight"], p[at + ".bias"])

    def norm(at, y):
        return F.layer_norm(y, (D,), p[at + ".weight"], p[at + ".bias"], k["layer_norm_eps"])

    for i in range(k[name + "_layers"]):
        hidden.append(x)
        at = f"{name}.layers.{i}."
        h = norm(at + "attention_norm", x)
        q, key, v = (linear(at + "attention." + n, h).reshape(B, T, H, D // H).transpose(1, 2) for n in ("q_proj", "k_proj", "v_proj"))
        q, key = rotate(q, k["rope_theta"]), rotate(key, k["rope_theta"])
        scores = (q @ key.transpose(2, 3) / math.sqrt(D // H)).masked_fill(~allowed[:, None], -math.inf)
        w = scores.softmax(-1)
        maps.append(w)
        x = x + linear(at + "attention.out_proj", (w @ v).transpose(1, 2).reshape(B, T, D))
        x = x + linear(at + "feed_forward.fc2", F.gelu(linear(at + "feed_forward.fc1", norm(at + "feed_forward_norm", x))))
    x = norm(name + ".norm", x)
    return x, maps, hidden + [x]


def rnnt(logits, labels, tlen, ulen, blank):
    """Minus the log-likelihood of each sequence over all alignments, in double."""
    total, lp = [], logits.double().log_softmax(-1)
    for b in range(len(lp)):
        T, U = int(tlen[b]), int(ulen[b])
        alpha = {(0, 0): lp.new_zeros(())}
        for t in range(T):
            for u in range(U + 1):
                ways = []
                if t:
                    ways.append(alpha[t - 1, u] + lp[b, t - 1, u, blank])
                if u:
                    ways.append(alpha[t, u - 1] + lp[b, t, u - 1, labels[b, u - 1]])
                if ways:
                    alpha[t, u] = torch.logsumexp(torch.stack(ways), 0)
        total.append(-alpha[T - 1, U] - lp[b, T - 1, U, blank])
    return torch.stack(total)


def case(name, head, x, mask=None, labels=None, tlen=None, ulen=None):
    k = SMALL
    p = parameters(k, head)
    B, T = x.shape[:2]
    allowed = torch.ones(B, T, T).bool() if mask is None else (mask if mask.dim() == 3 else mask[:, None, :].expand(B, T, T)).bool()
    h, maps, hidden = stack(p, k, "encoder", F.linear(x, p["encoder.embed.weight"], p["encoder.embed.bias"]), allowed)
    found, loss = {}, 0
    found.update({f"encoder_hidden_states.{i}": v for i, v in enumerate(hidden)})
    inputs = dict(input_features=x, attention_mask=mask, labels=labels, input_lengths=tlen, label_lengths=ulen)
    if head == "TransducerEncoder":
        found["last_hidden_state"] = h
    else:
        found["encoder_last_hidden_state"] = h
        frames = F.linear(h, p["ctc.weight"], p["ctc.bias"])
        found["logits" if head == "TransducerForCTC" else "ctc_logits"] = frames
        if labels is not None:
            ctc = F.ctc_loss(frames.log_softmax(-1).transpose(0, 1), labels.clamp(min=0), tlen, ulen, blank=0, reduction="sum")
            loss = loss + (1 if head == "TransducerForCTC" else k["ctc_weight"]) * ctc
    if head == "TransducerForSpeechRecognition":
        ids = torch.cat([torch.zeros(B, 1, dtype=torch.long), labels.clamp(min=0)], 1)
        U, w = ids.shape[1], k["label_context"]
        near = torch.ones(U, U).tril() * (1 - torch.ones(U, U).tril(-w))
        g, more, states = stack(p, k, "decoder", p["decoder.embed_tokens.weight"][ids], near.bool().expand(B, U, U))
        found.update({f"decoder_attentions.{i}": m for i, m in enumerate(more)})
        found.update({f"decoder_hidden_states.{i}": v for i, v in enumerate(states)})
        z = F.linear(h, p["joint.encoder.weight"], p["joint.encoder.bias"])[:, :, None] + F.linear(g, p["joint.decoder.weight"])[:, None]
        logits = F.linear(z.tanh(), p["joint.out.weight"], p["joint.out.bias"])
        found["logits"] = logits
        loss = loss + rnnt(logits, labels, tlen, ulen, 0).sum()
        inputs["decoder_input_ids"] = ids
    if labels is not None:
        found["loss"] = (loss / int(ulen.sum())).float()
        found["loss"].backward()
        found.update({"grad." + n: t.grad for n, t in p.items() if t.grad is not None})
    kind = "encoder_attentions" if head == "TransducerForSpeechRecognition" else "attentions"
    found.update({f"{kind}.{i}": m for i, m in enumerate(maps)})
    write(name, inputs, found, p, dict(model_type="transducer", architectures=[head], **SMALL))


def chunked(lengths, T, chunk, left):
    q, key = torch.arange(T)[:, None], torch.arange(T)[None, :]
    near = (key >= q // chunk * chunk - left) & (key < (q // chunk + 1) * chunk)
    return near[None].long() * mask_of(lengths, T)[:, None, :]


labels = tokens(7, 3, 3, seed=2)
labels[1, 2:] = -100
ulen, tlen = torch.tensor([3, 2, 3]), torch.tensor([9, 7, 8])
x = pixels(3, 9, 6)
case("transducer", "TransducerForSpeechRecognition", x, mask_of([9, 7, 8], 9), labels, tlen, ulen)
case("transducer-ctc", "TransducerForCTC", x, mask_of([9, 7, 8], 9), labels, tlen, ulen)
case("transducer-chunks", "TransducerForSpeechRecognition", x, chunked([9, 7, 9], 9, 3, 2), labels, tlen, ulen)
case("transducer-stream", "TransducerEncoder", pixels(1, 11, 6, seed=3), chunked([11], 11, 3, 2))
