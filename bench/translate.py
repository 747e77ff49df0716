"""translate.py - translation beside CTranslate2: the same random weights, the same sentences, the same number of tokens.

A Transformer-base (6+6 layers, width 512, feed-forward 2048, 8 heads, 32000 tokens) with random weights is saved as a
MarianMTModel directory with SentencePiece models, and converted by CTranslate2's own converter.  Every line is
translated into exactly --tokens tokens (the end is forbidden before), so both do the same work.

    python3 bench/translate.py make DIR CORPUS.en          the model, once (torch, transformers, sentencepiece, ctranslate2)
    python3 bench/translate.py run DIR LINES.en            fovea and CTranslate2 in turn, a table
    python3 bench/translate.py peer DIR LINES.en KIND N    CTranslate2 alone: KIND float32 or int8, N lines a batch

FOVEA names the program, build/fovea unless said otherwise.
"""
import argparse
import json
import os
import subprocess
import sys
import time

VOCAB, BEAMS, THREADS = 32000, 4, 2


def make(folder, corpus):
    import sentencepiece
    import torch
    from transformers import MarianConfig, MarianMTModel

    os.makedirs(folder, exist_ok=True)
    for side in ("source", "target"):
        sentencepiece.SentencePieceTrainer.train(
            input=corpus, model_prefix=f"{folder}/{side}", vocab_size=VOCAB - 2, hard_vocab_limit=False, num_threads=2,
            character_coverage=1.0, minloglevel=2)
        os.replace(f"{folder}/{side}.model", f"{folder}/{side}.spm")
        os.remove(f"{folder}/{side}.vocab")
    pieces = sentencepiece.SentencePieceProcessor(f"{folder}/source.spm")
    words = [p for p in (pieces.id_to_piece(i) for i in range(pieces.get_piece_size())) if p not in ("<unk>", "<s>", "</s>")]
    names = ["</s>", "<unk>"] + words[:VOCAB - 3]
    names += [f"<extra_{i}>" for i in range(VOCAB - 1 - len(names))] + ["<pad>"]
    with open(f"{folder}/vocab.json", "w", encoding="utf-8") as f:
        json.dump({name: i for i, name in enumerate(names)}, f, ensure_ascii=False, indent=1)
    with open(f"{folder}/tokenizer_config.json", "w", encoding="utf-8") as f:
        json.dump({"source_lang": "en", "target_lang": "de", "tokenizer_class": "MarianTokenizer"}, f)

    torch.manual_seed(1)
    config = MarianConfig(
        vocab_size=VOCAB, decoder_vocab_size=VOCAB, d_model=512, encoder_layers=6, decoder_layers=6, encoder_ffn_dim=2048,
        decoder_ffn_dim=2048, encoder_attention_heads=8, decoder_attention_heads=8, max_position_embeddings=512,
        activation_function="relu", scale_embedding=True, dropout=0.0, init_std=0.05, pad_token_id=VOCAB - 1, eos_token_id=0,
        decoder_start_token_id=VOCAB - 1, forced_eos_token_id=0)
    model = MarianMTModel(config).eval()
    model.generation_config.num_beams = BEAMS
    model.generation_config.bad_words_ids = [[VOCAB - 1]]
    model.save_pretrained(folder)

    import ctranslate2.converters
    for kind in ("float32", "int8"):
        ctranslate2.converters.TransformersConverter(folder).convert(
            f"{folder}/ct2-{kind}", quantization=None if kind == "float32" else kind, force=True)


def peer(folder, lines, kind, batch, tokens, threads=THREADS, beams=BEAMS):
    import ctranslate2
    import sentencepiece

    pieces = sentencepiece.SentencePieceProcessor(f"{folder}/source.spm")
    source = [pieces.encode(line, out_type=str) + ["</s>"] for line in open(lines, encoding="utf-8").read().splitlines()]
    model = ctranslate2.Translator(f"{folder}/ct2-{kind}", intra_threads=threads, inter_threads=1, compute_type=kind)
    how = dict(beam_size=beams, max_batch_size=batch, max_decoding_length=tokens, min_decoding_length=tokens)
    model.translate_batch(source[:batch], **how)
    start = time.perf_counter()
    made = sum(len(r.hypotheses[0]) for r in model.translate_batch(source, **how))
    print(json.dumps({"tokens": made, "seconds": time.perf_counter() - start}))


def fovea(folder, lines, dtype, batch, tokens, under, threads=THREADS, beams=BEAMS):
    program = os.environ.get("FOVEA", "build/fovea")
    done = subprocess.run(
        under + [program, "translate", "-m", folder, "--dtype", dtype, "--batch", str(batch), "--threads", str(threads), "--beam",
         str(beams), "--max-length", str(tokens + 1), "--min-length", str(tokens + 1), "--stats", lines],
        check=True, capture_output=True, text=True)
    return json.loads(done.stderr.splitlines()[-1])


def run(folder, lines, tokens, rounds, under):
    all_lines = open(lines, encoding="utf-8").read().splitlines()
    print("| weights | lines a batch | fovea tokens/s | CTranslate2 tokens/s | ratio |\n| --- | --- | --- | --- | --- |")
    for dtype, kind in (("f32", "float32"), ("q8", "int8"), ("int8", "int8")):
        for batch, count in ((1, 6), (32, 64)):
            part = f"{folder}/part.txt"
            with open(part, "w", encoding="utf-8") as f:
                f.write("\n".join(all_lines[:count]) + "\n")
            ours, theirs = [], []
            for _ in range(rounds):
                r = fovea(folder, part, dtype, batch, tokens, under)
                ours.append(r["tokens"] / r["seconds"])
                out = subprocess.run(under + [sys.executable, __file__, "peer", folder, part, kind, str(batch), "--tokens", str(tokens)],
                                     check=True, capture_output=True, text=True).stdout
                r = json.loads(out.splitlines()[-1])
                theirs.append(r["tokens"] / r["seconds"])
            a, b = sorted(ours)[rounds // 2], sorted(theirs)[rounds // 2]
            print(f"| {dtype} / {kind} | {batch} | {a:.0f} | {b:.0f} | {a / b:.2f} |", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("what", choices=("make", "run", "peer"))
    p.add_argument("folder")
    p.add_argument("lines")
    p.add_argument("kind", nargs="?")
    p.add_argument("batch", nargs="?", type=int)
    p.add_argument("--tokens", type=int, default=32)
    p.add_argument("--beams", type=int, default=BEAMS)
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--under", default="", help="a command that runs each measurement, as nice or taskset do")
    a = p.parse_args()
    if a.what == "make":
        make(a.folder, a.lines)
    elif a.what == "peer":
        peer(a.folder, a.lines, a.kind, a.batch, a.tokens, beams=a.beams)
    else:
        run(a.folder, a.lines, a.tokens, a.rounds, a.under.split())


if __name__ == "__main__":
    main()
