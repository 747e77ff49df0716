"""Random configurations of a family against transformers: outputs, attention maps, hidden states, loss, gradients.

Each case is a tiny random model of one architecture with random sizes and options, saved by transformers and run by
`fovea forward`.  What fovea refuses is counted and printed; what differs is wrong.
Run: python3 tools/golden/random_models.py build/fovea electra,albert 100 [first seed]
(seen with transformers 5.22.2, torch 2.15.0)"""
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter

import torch
import transformers
from safetensors.torch import load_file, save_file

from families import build, flatten, mask_of, tokens

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
HEADS = ("ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "ForMultipleChoice")
ACTS = ("gelu", "relu", "silu", "gelu_new", "tanh")


def sizes(r):
    heads = r.randint(1, 4)
    return heads, heads * r.randint(2, 6)


def encoder(r, **more):
    heads, width = sizes(r)
    return dict(vocab_size=r.randint(20, 60), hidden_size=width, num_attention_heads=heads, num_hidden_layers=r.randint(1, 4),
                intermediate_size=r.randint(3, 30), max_position_embeddings=40, hidden_act=r.choice(ACTS),
                layer_norm_eps=r.choice((1e-12, 1e-5)), tie_word_embeddings=r.random() < 0.7, **more)


def stacks(r, **more):
    heads, width = sizes(r)
    others = r.choice([h for h in (1, 2, 3, 4, 6) if width % h == 0])
    return dict(vocab_size=r.randint(20, 60), d_model=width, encoder_attention_heads=heads, decoder_attention_heads=others,
                encoder_layers=r.randint(1, 3), decoder_layers=r.randint(1, 3), encoder_ffn_dim=r.randint(3, 30),
                decoder_ffn_dim=r.randint(3, 30), max_position_embeddings=40, activation_function=r.choice(ACTS),
                scale_embedding=r.random() < 0.5, **more)


def even(k):
    """Sinusoids need an even width; both numbers of heads still divide it."""
    k["d_model"] *= 2
    return k


def t5(r):
    heads, width = sizes(r)
    buckets = r.choice((4, 8, 12))
    return dict(vocab_size=r.randint(20, 60), d_model=width, d_kv=r.randint(2, 6), d_ff=r.randint(3, 30), num_layers=r.randint(1, 3),
                num_decoder_layers=r.randint(1, 3), num_heads=heads, relative_attention_num_buckets=buckets,
                relative_attention_max_distance=r.randint(buckets, 20), decoder_start_token_id=0,
                feed_forward_proj=r.choice(("relu", "gated-gelu", "gated-silu", "gelu")))


SEQ = ("Model", "ForConditionalGeneration")
T5_HEADS = SEQ + ("EncoderModel", "ForTokenClassification", "ForSequenceClassification", "ForQuestionAnswering")
BART_HEADS = SEQ + ("ForSequenceClassification", "ForQuestionAnswering")
FAMILIES = {  # name: prefix of the classes, architectures, configuration
    "bert": ("Bert", ("Model", "ForPreTraining", "ForNextSentencePrediction") + HEADS, lambda r: encoder(r, type_vocab_size=2)),
    "roberta": ("Roberta", ("Model",) + HEADS, lambda r: encoder(r, type_vocab_size=2, pad_token_id=1)),
    "distilbert": ("DistilBert", ("Model",) + HEADS, lambda r: (lambda k: dict(
        vocab_size=k["vocab_size"], dim=k["hidden_size"], n_heads=k["num_attention_heads"], n_layers=k["num_hidden_layers"],
        hidden_dim=k["intermediate_size"], max_position_embeddings=40, activation=r.choice(("gelu", "relu")),
        tie_word_embeddings=k["tie_word_embeddings"]))(encoder(r))),
    "electra": ("Electra", ("Model", "ForPreTraining") + HEADS[:4], lambda r: encoder(
        r, embedding_size=r.choice((5, 8, 12)), type_vocab_size=2)),
    "albert": ("Albert", ("Model", "ForPreTraining") + HEADS, lambda r: encoder(
        r, embedding_size=r.choice((5, 8, 12)), num_hidden_groups=r.randint(1, 3), inner_group_num=r.randint(1, 2), type_vocab_size=2)),
    "mpnet": ("MPNet", ("Model",) + HEADS, lambda r: encoder(r, pad_token_id=1)),
    "deberta-v2": ("DebertaV2", ("Model",) + HEADS, lambda r: (lambda k: dict(
        k, type_vocab_size=r.choice((0, 2)), relative_attention=r.random() < 0.85, max_relative_positions=r.choice((-1, 6, 12)),
        position_buckets=r.choice((-1, 2, 4, 8)), share_att_key=r.random() < 0.6, pos_att_type=r.choice(("c2p", "p2c", "c2p|p2c", "p2c|c2p")),
        norm_rel_ebd=r.choice(("none", "layer_norm")), position_biased_input=r.random() < 0.4, legacy=r.random() < 0.6,
        pooler_hidden_act=r.choice(ACTS), **(dict(conv_kernel_size=r.choice((1, 3, 5)), conv_act=r.choice(ACTS)) if r.random() < 0.4
                                             else {})))(encoder(r))),
    "t5": ("T5", T5_HEADS, t5),
    "mt5": ("MT5", T5_HEADS, t5),
    "bart": ("Bart", BART_HEADS, stacks),
    "marian": ("Marian", ("MTModel",), lambda r: even(stacks(r, pad_token_id=0, decoder_start_token_id=0))),
    "mbart": ("MBart", BART_HEADS, stacks),
    "pegasus": ("Pegasus", SEQ, lambda r: even(stacks(r))),
    "m2m_100": ("M2M100", SEQ, lambda r: even(stacks(r))),
}


def batch_of(r, config, head, seed):
    """Rows padded on the right, each with one end of sequence."""
    V, B, T = config.vocab_size, r.randint(1, 3), r.randint(1, 30)
    lengths = [r.randint(1, T) for _ in range(B)]
    ids, mask = tokens(V, B, T, seed=seed, low=3), mask_of(lengths, T)
    ids[mask == 0] = config.pad_token_id if config.pad_token_id is not None else 0
    if config.is_encoder_decoder or getattr(config, "d_kv", None):
        for i, n in enumerate(lengths):
            ids[i, n - 1] = config.eos_token_id
    batch = dict(input_ids=ids, attention_mask=mask)
    if r.random() < 0.2:
        batch = dict(input_ids=tokens(V, B, T, seed=seed, low=3))
        if config.is_encoder_decoder:
            batch["input_ids"][:, -1] = config.eos_token_id
    if head.endswith("ForMultipleChoice"):
        return {k: torch.stack([v, v.flip(0)], 1) for k, v in batch.items()} | dict(labels=tokens(2, B, seed=seed + 1, low=0))
    if getattr(config, "type_vocab_size", 0) == 2 and r.random() < 0.7 and "Roberta" not in head:
        batch["token_type_ids"] = tokens(2, B, T, seed=seed + 2, low=0)
    if head.endswith(("ConditionalGeneration", "MTModel")):
        batch["labels"] = tokens(V, B, r.randint(1, 20), seed=seed + 1, low=3)
        if head.endswith("MTModel"):
            batch["decoder_input_ids"] = batch["labels"]
    elif head.endswith("ForSequenceClassification"):
        batch["labels"] = tokens(config.num_labels, B, seed=seed + 1, low=0)
    elif head.endswith("ForNextSentencePrediction"):
        batch["labels"] = tokens(2, B, seed=seed + 1, low=0)
    elif head.endswith("ForTokenClassification"):
        batch["labels"] = tokens(config.num_labels, B, T, seed=seed + 1, low=0)
    elif head.endswith("ForQuestionAnswering"):
        batch.update({k: tokens(T, B, seed=seed + i, low=0) for i, k in enumerate(("start_positions", "end_positions"))})
    elif head.endswith("ForMaskedLM"):
        batch["labels"] = torch.where(torch.rand(B, T, generator=torch.Generator().manual_seed(seed)) < 0.5, ids, -100)
        batch["labels"][0, 0] = 5
    elif head == "ElectraForPreTraining":
        batch["labels"] = tokens(2, B, T, seed=seed + 1, low=0)
    elif head.endswith("ForPreTraining"):
        batch["labels"] = ids
        batch["sentence_order_label" if head.startswith("Albert") else "next_sentence_label"] = tokens(2, B, seed=seed + 1, low=0)
    elif config.is_encoder_decoder and head.endswith("Model") and not head.endswith("EncoderModel"):
        batch["decoder_input_ids"] = tokens(V, B, r.randint(1, 20), seed=seed + 1, low=3)
    return batch


def difference(theirs, ours):
    """The name of an output that differs, or None.  A row whose keys are all padding is not compared: there are none here."""
    for name, want in theirs.items():
        if name not in ours:
            return f"{name} is missing"
        got, want = ours[name].double(), want.detach().double()
        if got.shape != want.shape:
            return f"{name}: {tuple(got.shape)}, not {tuple(want.shape)}"
        off = (got - want).norm() / max(want.norm(), 1e-2)
        if not off <= 1e-3:
            return f"{name}: off by {off:.2g}"
    return None


def one(fovea, family, seed):
    r = random.Random(seed)
    prefix, heads, configure = FAMILIES[family]
    head = prefix + r.choice(heads)
    options = configure(r)
    if "Sequence" in head or "Token" in head:
        options["num_labels"] = r.randint(3 if family == "bart" else 2, 5)
    config = getattr(transformers, prefix + "Config")(**options)
    model = build(getattr(transformers, head), config, seed=seed, spread=0.3)
    batch = batch_of(r, config, head, seed)
    output = model(**batch, output_attentions=True, output_hidden_states=True, return_dict=True)
    theirs = flatten(output)
    loss = output.get("loss")
    if loss is not None:
        loss.backward()
        theirs.update({"grad." + k: p.grad for k, p in model.named_parameters() if p.grad is not None})
    with tempfile.TemporaryDirectory() as d:
        model.save_pretrained(d)
        save_file({k: v.clone().contiguous() for k, v in batch.items()}, os.path.join(d, "in.safetensors"))
        done = subprocess.run([fovea, "forward", "-m", d, "-i", d + "/in.safetensors", "-o", d + "/out.safetensors", "--attentions", "--hidden-states"]
                              + ["--grad"] * (loss is not None), capture_output=True, text=True)
        if done.returncode:
            return "refused", head, done.stderr.strip().replace(d, "")
        wrong = difference(theirs, load_file(d + "/out.safetensors"))
    return ("wrong", head, f"{wrong}; {options}") if wrong else ("equal", head, "")


if __name__ == "__main__":
    fovea, names, n = sys.argv[1], sys.argv[2].split(","), int(sys.argv[3])
    first = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    bad = 0
    for name in names:
        found = Counter()
        for i in range(first, first + n):
            result, head, text = one(fovea, name, i)
            found[result] += 1
            bad += result == "wrong"
            if text:
                print(f"{name} {i} {head}: {result}: {text}")
        print(name, dict(found), flush=True)
    sys.exit(bad > 0)
