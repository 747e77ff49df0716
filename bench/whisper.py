"""whisper.py - Whisper's tiny shape beside PyTorch and CTranslate2: the encoder over a window of 30 seconds, then 64 tokens, greedily.

    python3 bench/whisper.py make DIR TOKENIZER.json[.gz]   random weights, once, and CTranslate2's directories of them (transformers, ctranslate2)
    python3 bench/whisper.py run DIR [--rounds 5]           fovea, PyTorch and CTranslate2 in turn on --threads cores, a table
    python3 bench/whisper.py gpu [--batches 1 32]          fovea and PyTorch compiled on a GPU, bf16
    python3 bench/whisper.py peer torch|ct2 ...             one of them alone, waiting for lines on standard input: seconds of a run each

Every token is computed, the end is never chosen, and no time goes into making features.  PyTorch is a plain module (fused
attention, one product for q, k and v, keys and values kept in place, cross keys and values computed once), which is faster than
transformers' generate; on a GPU its step is compiled with CUDA graphs.  FOVEA names the program, build/fovea unless said otherwise."""
import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import time

D, HEADS, LAYERS, FF, MELS, FRAMES, VOCAB, TOKENS, START, EOS = 384, 6, 4, 1536, 80, 3000, 51865, 64, 50258, 50257
CONFIG = os.path.join(os.path.dirname(os.path.abspath(__file__)), "configs", "whisper-tiny.json")


# ---- PyTorch ----

def torch_model():
    import torch
    import torch.nn as nn
    import torch.nn.functional as F

    def heads(x):
        return x.view(x.shape[0], x.shape[1], HEADS, -1).transpose(1, 2)

    class Layer(nn.Module):
        def __init__(self, cross):
            super().__init__()
            self.norm = nn.ModuleList(nn.LayerNorm(D) for _ in range(2 + cross))
            self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
            self.up, self.down = nn.Linear(D, FF), nn.Linear(FF, D)
            if cross:
                self.q, self.kv, self.cross_out = nn.Linear(D, D), nn.Linear(D, 2 * D), nn.Linear(D, D)

        def rest(self, x):
            return x + self.down(F.gelu(self.up(self.norm[-1](x))))

        def encode(self, x):
            q, k, v = map(heads, self.qkv(self.norm[0](x)).chunk(3, -1))
            y = F.scaled_dot_product_attention(q, k, v)
            return self.rest(x + self.out(y.transpose(1, 2).reshape(x.shape)))

        def decode(self, x, cache, at, seen, memory):
            q, k, v = map(heads, self.qkv(self.norm[0](x)).chunk(3, -1))
            k, v = (c.index_copy_(2, at, new) for c, new in zip(cache, (k, v)))
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
            x = x + self.out(y.transpose(1, 2).reshape(x.shape))
            y = F.scaled_dot_product_attention(heads(self.q(self.norm[1](x))), *memory)
            return self.rest(x + self.cross_out(y.transpose(1, 2).reshape(x.shape)))

    class Whisper(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.ModuleList([nn.Conv1d(MELS, D, 3, padding=1), nn.Conv1d(D, D, 3, stride=2, padding=1)])
            self.places, self.words = nn.Embedding(FRAMES // 2, D), nn.Embedding(VOCAB, D)
            self.positions = nn.Embedding(448, D)
            self.encoder = nn.ModuleList(Layer(False) for _ in range(LAYERS))
            self.decoder = nn.ModuleList(Layer(True) for _ in range(LAYERS))
            self.norm = nn.ModuleList(nn.LayerNorm(D) for _ in range(2))

        def encode(self, x):
            for conv in self.conv:
                x = F.gelu(conv(x))
            x = x.transpose(1, 2) + self.places.weight
            for layer in self.encoder:
                x = layer.encode(x)
            x = self.norm[0](x)
            return [tuple(heads(t).contiguous() for t in layer.kv(x).chunk(2, -1)) for layer in self.decoder]

        def step(self, ids, at, caches, seen, memory):
            x = self.words(ids) + self.positions(at)
            for layer, cache, m in zip(self.decoder, caches, memory):
                x = layer.decode(x, cache, at, seen[at], m)
            return F.linear(self.norm[1](x), self.words.weight).argmax(-1)

    return Whisper().eval()


def torch_peer(device, dtype, batch, threads):
    import torch
    torch.set_grad_enabled(False)
    if threads:
        torch.set_num_threads(threads)
    torch.manual_seed(1)
    kind = getattr(torch, dtype)
    model = torch_model().to(device, kind)
    x = torch.rand(batch, MELS, FRAMES, device=device, dtype=kind) * 2 - 1
    caches = [tuple(torch.zeros(batch, HEADS, TOKENS + 1, D // HEADS, device=device, dtype=kind) for _ in range(2)) for _ in range(LAYERS)]
    seen = torch.ones(TOKENS + 1, TOKENS + 1, device=device, dtype=torch.bool).tril()
    encode, step = model.encode, model.step
    if device == "cuda":
        encode, step = (torch.compile(f, mode="reduce-overhead", fullgraph=True) for f in (encode, step))

    def run():
        memory = [tuple(t.clone() for t in m) for m in encode(x)] if device == "cuda" else encode(x)
        ids, text = torch.full((batch, 1), START, device=device), []
        for i in range(TOKENS):
            ids = step(ids, torch.tensor([i], device=device), caches, seen, memory)
            if device == "cuda":
                ids = ids.clone()
            text.append(ids)
        return torch.cat(text, 1).cpu()

    return run


def ct2_peer(folder, kind, threads):
    import ctranslate2
    import numpy
    model = ctranslate2.models.Whisper(f"{folder}/ct2-{kind}", device="cpu", compute_type=kind, intra_threads=threads, inter_threads=1)
    x = ctranslate2.StorageView.from_array((numpy.random.default_rng(1).random((1, MELS, FRAMES)) * 2 - 1).astype(numpy.float32))
    # of max_length half is for the text; the prompt is one token; times are tokens like all others
    how = dict(beam_size=1, max_length=2 * TOKENS, suppress_tokens=[EOS], suppress_blank=False, num_hypotheses=1, max_initial_timestamp_index=10000)

    def run():
        made = model.generate(x, [[START]], **how)[0].sequences_ids[0]
        assert len(made) == TOKENS, f"{len(made)} tokens"

    return run


def peer(words):
    if words[0] == "torch":
        run = torch_peer(words[1], words[2], int(words[3]), int(words[4]))
    else:
        run = ct2_peer(words[1], words[2], int(words[3]))
    for _ in range(3):
        run()
    print("ready", flush=True)
    for line in sys.stdin:
        taken, start = [], time.perf_counter()
        while len(taken) < 3 or time.perf_counter() - start < float(line):
            t = time.perf_counter()
            run()
            taken.append(time.perf_counter() - t)
        print(statistics.median(taken), flush=True)


class Peer:
    def __init__(self, *words):
        self.p = subprocess.Popen([sys.executable, __file__, "peer", *map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.ready = False

    def wait(self):
        """Peers are started together, since PyTorch takes its time to compile, and waited for one after the other."""
        self.ready = self.ready or self.p.stdout.readline() == "ready\n"
        assert self.ready, "the peer does not start"

    def __call__(self, seconds):
        self.p.stdin.write(f"{seconds}\n")
        self.p.stdin.flush()
        return float(self.p.stdout.readline())

    def close(self):
        self.p.stdin.close()
        self.p.wait()


def fovea(dtype, seconds, batch=1, threads=0, device="cpu", model=None):
    what = ["--model", model] if model else ["--config", CONFIG]
    command = [os.environ.get("FOVEA", "build/fovea"), "bench", "decode", *what, "--len", str(FRAMES), "--new", str(TOKENS - 1), "--batch", str(batch),
               "--dtype", dtype, "--device", device, "--seconds", str(seconds), "--json"]
    out = subprocess.run(command + (["--threads", str(threads)] if threads else []), check=True, capture_output=True, text=True).stdout
    row = json.loads(out.splitlines()[-1])
    return row["prompt_s"] + (TOKENS - 1) * row["median_s"]


# ---- what is run ----

def make(folder, tokenizer):
    import torch
    from transformers import WhisperConfig, WhisperForConditionalGeneration
    os.makedirs(folder, exist_ok=True)
    torch.manual_seed(1)
    model = WhisperForConditionalGeneration(WhisperConfig(**json.load(open(CONFIG)), begin_suppress_tokens=None)).eval()
    model.save_pretrained(folder)
    data = (gzip.open if tokenizer.endswith(".gz") else open)(tokenizer, "rb").read()
    open(f"{folder}/tokenizer.json", "wb").write(data)
    json.dump({"tokenizer_class": "WhisperTokenizerFast", "model_max_length": 448}, open(f"{folder}/tokenizer_config.json", "w"))
    import ctranslate2.converters
    for kind in ("float32", "int8"):
        ctranslate2.converters.TransformersConverter(folder).convert(
            f"{folder}/ct2-{kind}", quantization=None if kind == "float32" else kind, force=True)


def table(rows, rounds):
    for name, taken in rows.items():
        print(f"{name:34} {1000 * statistics.median(taken):9.1f} ms   ({', '.join(f'{1000 * t:.0f}' for t in taken)})")
    print(f"medians of {rounds} rounds in turn, encoder and {TOKENS} tokens")


def run(folder, rounds, seconds, threads):
    peers = {"PyTorch f32": Peer("torch", "cpu", "float32", 1, threads), "CTranslate2 f32": Peer("ct2", folder, "float32", threads),
             "CTranslate2 int8": Peer("ct2", folder, "int8", threads)}
    rows = {name: [] for name in ("fovea f32", "fovea q8", *peers)}
    for p in peers.values():
        p.wait()
    for _ in range(rounds):
        for kind in ("f32", "q8"):
            rows[f"fovea {kind}"].append(fovea(kind, seconds, threads=threads, model=folder))
        for name, p in peers.items():
            rows[name].append(p(seconds))
    table(rows, rounds)
    median = {name: statistics.median(taken) for name, taken in rows.items()}
    best = min(median["PyTorch f32"], median["CTranslate2 f32"])
    print(f"f32: fovea is {best / median['fovea f32']:.2f} x the better; q8 {median['CTranslate2 int8'] / median['fovea q8']:.2f} x int8")
    for p in peers.values():
        p.close()


def gpu(rounds, seconds, batches):
    peers = {batch: Peer("torch", "cuda", "bfloat16", batch, 0) for batch in batches}
    for p in peers.values():
        p.wait()
    for batch, p in peers.items():
        rows = {f"fovea bf16, batch {batch}": [], f"PyTorch compiled bf16, batch {batch}": []}
        for _ in range(rounds):
            for name, f in zip(rows, (lambda: fovea("bf16", seconds, batch, device="cuda"), lambda: p(seconds))):
                rows[name].append(f())
        table(rows, rounds)
        ours, theirs = (statistics.median(t) for t in rows.values())
        print(f"batch {batch}: {theirs / ours:.2f} x")
        p.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("make", "run", "gpu", "peer"))
    parser.add_argument("rest", nargs="*")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    a = parser.parse_args()
    if a.what == "make":
        make(*a.rest)
    elif a.what == "run":
        run(a.rest[0], a.rounds, a.seconds, a.threads)
    elif a.what == "gpu":
        gpu(a.rounds, a.seconds, a.batches)
    else:
        peer(a.rest)


if __name__ == "__main__":
    main()
