#!/usr/bin/env python3
"""The speed on a GPU, beside PyTorch on the same one: the tables of docs/benchmarks.md.

    bench/cuda.py [--rows train/16 bert attention/64 start ...] [--rounds 3] [--seconds 1] [--without-peer] [--list]
                  [--patience 240] [--after FILE] [--most 600] [--model DIR]

Needs build/fovea with the backend (make cuda), and PyTorch with transformers for the peers.  --rows takes the beginnings of
names, in the order in which they are to run.  Peers are started first, all at once, as compiling takes them a minute; when
the last is ready (and FILE is there, where others use the GPU until then) nothing else runs on the GPU, and fovea and its peer
take turns.  A figure is the median over rounds of a program's own median; what fails or hangs is a dash, and what does not
begin in --most seconds is left out.  Rows that ask a peer the same have one answer: other ways of our own, such as fast, cost
it no time.  llm.c and llama.cpp are not among the peers here.

FLASH_ATTENTION_3 names FlashAttention-3's library (flash_attn_3/_C.so of xformers 0.0.34, say): then there are the rows flash3.
"""
import argparse
import itertools
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FOVEA = os.environ.get("FOVEA", os.path.join(ROOT, "build", "fovea"))
PEERS = os.path.join(ROOT, "bench", "cuda_peers.py")
CONFIGS = os.path.join(ROOT, "bench", "configs")


class Row:
    """One figure: what fovea is asked, what the peer is asked, and how much of it a second."""

    def __init__(self, name, ask, figure, unit, peer, line="", scale=1.0, env=None):
        self.name, self.ask, self.figure, self.unit, self.peer, self.line = name, ask, figure, unit, peer, line
        self.scale, self.env = scale, env or {}


def config(name):
    return ["--config", os.path.join(CONFIGS, f"{name}.json")]


LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)


# A way to ask, the environment of fovea, its options, what the peer is told besides, and for which directions; {other} is the
# other of the two widths
ATTENTION = (("attention", {}, [], "", (0, 1)),
             ("repeat", {}, [], " repeat=1", (1,)), # the same, and the peer's gradients are the same each time, too
             ("fast", {"FOVEA_CUDA_ATTENTION": "cudnn-atomic"}, [], "", (1,)),
             ("flash3", {}, [], " flash3=1", (0, 1)), # gradients of its own that do not repeat
             ("hopper", {"FOVEA_CUDA_ATTENTION": "hopper"}, [], "", (0, 1)),
             ("dropout", {}, ["--dropout", 0.1], " dropout=0.1", (0, 1)),
             ("bias", {}, ["--bias"], " bias=1", (0, 1)),
             ("bias-gradient", {}, ["--bias", "--bias-gradient"], " bias=2", (1,)), # of the bias, too
             ("mask", {}, ["--mask"], " mask=1", (0, 1)),
             ("values", {}, ["--value-width", "{other}"], " values={other}", (0, 1)),
             ("distances", {}, ["--distances"], None, (0, 1)), # which no peer has
             ("distances-gradient", {}, ["--distances", "--bias-gradient"], None, (1,)),
             ("key-mask", {}, ["--key-mask"], None, (0, 1)),
             ("window", {}, ["--window", 512], None, (0, 1)),
             ("weights", {}, ["--weights", "bf16"], None, (0,)), # exact ones of one head besides, which no peer gives
             ("weights-f32", {}, ["--weights", "f32"], None, (0,)))


def attention_rows():
    """FlashAttention's protocol, 16,384 tokens of width 2048 in all."""
    for way, env, options, told, directions in ATTENTION:
        if way == "flash3" and "FLASH_ATTENTION_3" not in os.environ:
            continue
        for width, gradient, causal in itertools.product((64, 128), directions, (0, 1)):
            for length in LENGTHS:
                group = f"{way}/{width}/{'gradient' if gradient else 'forward'}/{'causal' if causal else 'full'}"
                ask = ["attention", "--batch", 16384 // length, "--heads", 2048 // width, "--len", length, "--width", width]
                ask += ["--dtype", "bf16"] + ["--causal"] * causal + ["--backward"] * gradient
                ask += [str(word).format(other=192 - width) for word in options]
                alone = told is None or (causal and way.startswith(("bias", "mask"))) # a peer takes one or the other
                line = f"width={width} length={length} causal={causal} gradient={gradient}{told}".format(other=192 - width)
                peer = [] if alone else ["attention"]
                yield Row(f"{group}/{length}", ask, "gflops", "TFLOP/s", peer, line, 1e-3, env)


def rows():
    """All of them, the most telling first."""
    bf16 = ["--dtype", "bf16"]
    for batch in (16, 64):
        ask = ["train", *config("gpt2-124m-plain"), "--len", 1024, "--batch", batch, *bf16]
        yield Row(f"train/{batch}", ask, "tokens_per_s", "tokens/s", ["train", f"batch={batch}"])
    for batch in (1, 64):
        ask = ["decode", *config("gpt2-124m"), "--len", 32, "--new", 128, "--batch", batch, *bf16]
        yield Row(f"decode/{batch}", ask, "tokens_per_s", "tokens/s", ["decode", f"batch={batch}"])
        ask = ["decode", *config("llama-110m"), "--len", 32, "--new", 128, "--batch", batch, *bf16]
        yield Row(f"decode/llama/{batch}", ask, "tokens_per_s", "tokens/s", ["decode", f"batch={batch}", "llama=1"])
    for name, batch in itertools.product(("qwen3-0.6b", "pythia-410m", "gemma-2b", "phi3-mini"), (1, 64)):
        ask = ["decode", *config(name), "--len", 32, "--new", 128, "--batch", batch, *bf16]
        yield Row(f"decode/{name}/{batch}", ask, "tokens_per_s", "tokens/s", [name, f"batch={batch}"])
    for batch in (32, 128, 256):
        ask = ["forward", *config("bert-base"), "--len", 128, "--batch", batch, *bf16]
        yield Row(f"bert/{batch}", ask, "sentences_per_s", "sentences/s", ["forward", f"batch={batch}"])
    for batch in (32, 256):
        ask = ["forward", *config("vit-base"), "--batch", batch, *bf16]
        yield Row(f"vit/{batch}", ask, "sentences_per_s", "images/s", ["vit", f"batch={batch}"])
    for batch in (128, 512):
        ask = ["train", *config("vit-small-32"), "--batch", batch, *bf16]
        yield Row(f"vit/train/{batch}", ask, "sentences_per_s", "images/s", ["train_vit", f"batch={batch}"])
    ask = ["train", *config("sasrec-beauty"), "--len", 50, "--batch", 256, *bf16]
    for graphs in (0, 1):
        name = "sasrec/train/graphs" if graphs else "sasrec/train/256"
        yield Row(name, ask, "tokens_per_s", "items/s", ["train_sasrec", "batch=256", f"graphs={graphs}"])
    ask = ["train", *config("marian-base"), "--len", 64, "--batch", 400, *bf16]
    yield Row("translate/alike", ask, "tokens_per_s", "target tokens/s", ["translate"])
    yield Row("translate/published", ask, "tokens_per_s", "target tokens/s", ["translate", "vocab=37000", "everywhere=1"])
    ask = ["gemm", "--m", 8192, "--n", 8192, "--k", 8192, *bf16]
    yield Row("gemm", ask, "gflops", "TFLOP/s", ["gemm"], scale=1e-3)
    yield from attention_rows()


class Peer:
    """A process that gets ready by itself and answers a line with a figure."""

    def __init__(self, command):
        env = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": "4"}
        self.process = subprocess.Popen([sys.executable, PEERS, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        text=True, bufsize=1, env=env)

    def answer(self, seconds):
        """The next line, or None where there is none by then."""
        if not select.select([self.process.stdout], [], [], max(seconds, 0))[0]:
            return None
        return self.process.stdout.readline().strip() or None

    def ask(self, seconds, line):
        """A figure, or None, and then it is not asked again: an answer that comes late would be taken for the next."""
        if self.process.poll() is not None:
            return None
        self.process.stdin.write(f"{seconds} {line}\n")
        answer = self.answer(60)
        if not answer:
            self.close()
        return float(answer) if answer else None

    def close(self):
        self.process.kill()
        self.process.wait()


def output_of(command, env=None):
    """What a program printed, or None: it failed, or took longer than anything here may."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=60)
    except subprocess.TimeoutExpired:
        print(f"{' '.join(command)}: no end after 60 s", file=sys.stderr)
        return None
    if done.returncode:
        print(done.stderr.strip(), file=sys.stderr)
        return None
    return done.stdout


def fovea(row, seconds):
    command = [FOVEA, "bench", *map(str, row.ask), "--device", "cuda", "--seconds", str(seconds), "--json"]
    said = output_of(command, os.environ | row.env)
    return json.loads(said.splitlines()[-1])[row.figure] * row.scale if said else None


def start_peers(chosen, limit):
    """One for each kind, all getting ready side by side; those that are not by then are left out."""
    until = time.monotonic() + limit
    peers = {tuple(row.peer): None for row in chosen if row.peer}
    for kind in peers:
        peers[kind] = Peer(kind)
    for kind, peer in peers.items():
        if peer.answer(until - time.monotonic()) != "ready":
            print(f"{' '.join(kind)}: not ready after {limit} s", file=sys.stderr)
            peer.close()
            peers[kind] = None
    print(f"{sum(p is not None for p in peers.values())} of {len(peers)} peers are ready", file=sys.stderr, flush=True)
    return peers


def middle(figures):
    known = [f for f in figures if f is not None]
    return statistics.median(known) if known else None


def text(figure):
    return "–" if figure is None else f"{figure:,.0f}"


def compare(row, peer, answered, args):
    """answered: what peers said before, by what they were asked."""
    question = (*row.peer, row.line)
    ours, theirs = [], []
    for _ in range(args.rounds):
        ours.append(fovea(row, args.seconds))
        if peer and question not in answered:
            theirs.append(peer.ask(args.seconds, row.line))
    a, b = middle(ours), answered.setdefault(question, middle(theirs))
    ratio = f"{a / b:.2f}" if a and b else "–"
    print(f"| {row.name} | {text(a)} | {text(b)} | {ratio} | {row.unit} |", flush=True)


def seconds_of(command):
    begin = time.monotonic()
    said = output_of(command)
    return (time.monotonic() - begin, said) if said else (None, None)


def first_token(args, folder):
    """Whole processes, from nothing to one token behind a prompt; the file cache is warm from writing the model."""
    if not os.path.exists(os.path.join(folder, "plain.pt")):
        subprocess.run([sys.executable, PEERS, "model", folder], check=True)
    ask = [FOVEA, "generate", "-m", folder, "--device", "cuda", "--dtype", "bf16", "--max-new-tokens", "1"]
    ours, theirs = [], []
    for _ in range(args.rounds):
        ours.append(seconds_of([*ask, "To be, or not to be, that is the"])[0])
        if not args.without_peer:
            said = seconds_of([sys.executable, PEERS, "start", os.path.join(folder, "plain.pt")])[1]
            theirs.append(float(said.splitlines()[-1]) if said else None)
    a, b = middle(ours), middle(theirs)
    show = lambda s: "–" if s is None else f"{s:.2f}"
    print(f"| start | {show(a)} | {show(b)} | {f'{b / a:.1f}' if a and b else '–'} | s to the first token |", flush=True)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--rows", nargs="+", default=[""])
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--seconds", type=float, default=1)
    p.add_argument("--patience", type=float, default=240, help="seconds for peers to get ready")
    p.add_argument("--after", help="file to wait for, besides")
    p.add_argument("--most", type=float, default=600, help="seconds after which no further row is begun")
    p.add_argument("--model", help="directory that row start takes its model from, and writes it to the first time")
    p.add_argument("--without-peer", action="store_true")
    p.add_argument("--list", action="store_true")
    args = p.parse_args()
    every = list(rows())
    chosen = [r for i, want in enumerate(args.rows) for r in every
              if r.name.startswith(want) and not any(r.name.startswith(w) for w in args.rows[:i])]
    if args.list:
        print("\n".join([r.name for r in every] + ["start"]))
        return 0
    peers = {} if args.without_peer else start_peers(chosen, args.patience)
    while args.after and not os.path.exists(args.after):
        time.sleep(0.1)
    end = time.monotonic() + args.most
    answered = {}
    print("| | fovea | PyTorch | ratio | |\n| --- | --- | --- | --- | --- |", flush=True)
    for i, row in enumerate(chosen):
        if time.monotonic() > end:
            break
        kind = tuple(row.peer)
        compare(row, peers.get(kind), answered, args)
        if peers.get(kind) and all(tuple(r.peer) != kind for r in chosen[i + 1:]):
            peers[kind].close() # its memory is the next one's
    if any("start".startswith(w) for w in args.rows) and time.monotonic() < end:
        with tempfile.TemporaryDirectory() as folder:
            first_token(args, args.model or folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
