"""The published Universal Sentence Encoder Lite (model.safetensors.gz, vocab.tsv) as a model directory, laid out as sentence-transformers
lays out its own: tokens' mean, a dense layer with tanh, length 1.

Run: python3 tools/convert/use_lite.py FOLDER OUT
Needs nothing beside Python.  Matrices are float16 in the file and stay so."""
import gzip
import json
import os
import sys


def write(path, value):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf8") as f:
        json.dump(value, f, indent=2, ensure_ascii=False)


def save(path, header, data, names):
    """Of the tensors of one safetensors file those in {name: new name}, as another."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    body, entries = b"", {}
    for name, new in names.items():
        first, last = header[name]["data_offsets"]
        entries[new] = {**header[name], "data_offsets": [len(body), len(body) + last - first]}
        body += data[first:last]
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text + body)


def vocabulary(path):
    """Pieces and scores.  One without a score holds a colon, and the published reader has it as 0, the best there is.  The first six are
    no pieces of text, and of a piece that is there twice only the likelier one is ever found."""
    with open(path, encoding="utf8") as f:
        rows = [line.rstrip("\n").split("\t") for line in f]
    pieces, best = [], {}
    for i, (piece, score) in enumerate(rows):
        score = -1e4 if i < 6 else 0.0 if score == "None" else float(score)
        if piece in best:
            other = best[piece]
            if pieces[other][1] < score:
                pieces[other], best[piece] = [f"<unused {other}>", -1e4], i
            else:
                piece, score = f"<unused {i}>", -1e4
        else:
            best[piece] = i
        pieces.append([piece, score])
    return pieces


def main(folder, out):
    raw = gzip.open(os.path.join(folder, "model.safetensors.gz")).read()
    n = int.from_bytes(raw[:8], "little")
    header, data = json.loads(raw[8:8 + n]), raw[8 + n:]
    pieces = vocabulary(os.path.join(folder, "vocab.tsv"))
    vocab, width = header["embed.weight"]["shape"]
    save(out + "/model.safetensors", header, data, {k: k for k in header if k not in ("__metadata__", "inv_timescales")})
    save(out + "/2_Dense/model.safetensors", header, data, {"pool.weight": "linear.weight", "pool.bias": "linear.bias"})
    hidden = header["pool.bias"]["shape"][0]
    write(out + "/config.json", {
        "architectures": ["UseLiteModel"], "model_type": "use_lite", "vocab_size": vocab, "embedding_size": width, "hidden_size": hidden,
        "num_hidden_layers": sum(k.endswith(".ln1.bias") for k in header), "num_attention_heads": 4,
        "intermediate_size": header["layers.0.ffn.fc1.bias"]["shape"][0], "max_position_embeddings": 128, "layer_norm_eps": 1e-6,
        "pad_token_id": 1})
    space = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": False}
    special = [{"id": i, "content": pieces[i][0], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
               for i in (1, 2)]
    write(out + "/tokenizer.json", {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special, "normalizer": {"type": "NFKC"},
        "pre_tokenizer": space, "post_processor": None, "decoder": space,
        "model": {"type": "Unigram", "unk_id": 0, "vocab": pieces, "byte_fallback": False}})
    write(out + "/tokenizer_config.json", {"pad_token": "<s>", "model_max_length": 128})
    write(out + "/modules.json", [{"idx": i, "name": str(i), "path": path, "type": "sentence_transformers.models." + kind}
                                  for i, (path, kind) in enumerate([("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Dense", "Dense"),
                                                                    ("3_Normalize", "Normalize")])])
    write(out + "/1_Pooling/config.json", {"word_embedding_dimension": hidden, "pooling_mode_mean_tokens": True})
    write(out + "/2_Dense/config.json", {"in_features": hidden, "out_features": hidden, "bias": True,
                                         "activation_function": "torch.nn.modules.activation.Tanh"})
    os.makedirs(out + "/3_Normalize", exist_ok=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
