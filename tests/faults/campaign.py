#!/usr/bin/env python3
"""Kills and failures of the whole program, one after another: make test-crash, make test-faults.

    campaign.py BUILD crash KILLS     trainings of four recipes, each killed at random system calls again and again, then
                                      finished; the result must have the bits of a run that was never stopped
    campaign.py BUILD faults STRIDE   every STRIDE-th allocation and system call of each command fails in turn: the command
                                      works, or says a sentence and exits with 1 or 2; it never crashes and never hangs

Which calls count, and how one fails, is in calls.c, which is preloaded.  Cases are numbered, and the random ones come from
their number, so that a case can be run again.  A fourth argument, 0 unless given, chooses other kills, or the failures from that
one on: parts of a campaign run side by side."""
import filecmp
import os
import random
import shutil
import subprocess
import sys
import tempfile

SIZES = "hidden_size = 16\nnum_hidden_layers = 1\nnum_attention_heads = 2\nintermediate_size = 24\nmax_position_embeddings = 64\n"
TRAIN = "[train]\nupdates = 30\nbatch_tokens = 48\nwarmup = 3\nsave_every = 4\neval_every = 10\nlog_every = 1\n"
PAIRS = ("d_model = 16\nencoder_layers = 1\ndecoder_layers = 1\nencoder_attention_heads = 2\ndecoder_attention_heads = 2\n"
         "encoder_ffn_dim = 24\ndecoder_ffn_dim = 24\nmax_position_embeddings = 64\n")
RECIPES = {
    "causal": "[model]\nmodel_type = llama\n" + SIZES + "[data]\nobjective = causal\ntrain = lines.txt\nvalid = lines.txt\ncontext = 16\n"
              "[tokenizer]\nkind = byte_bpe\nvocab = 270\nmin_count = 1\n" + TRAIN + "result = average\naverage = 3\nkeep = 2\n",
    "classify": "[model]\nmodel_type = bert\n" + SIZES + "[data]\nobjective = classify\ntrain = labels.tsv\nvalid = labels.tsv\n"
                "[tokenizer]\nkind = wordpiece\nvocab = 60\nmin_count = 1\n" + TRAIN + "result = best\n",
    "translate": "[model]\nmodel_type = marian\n" + PAIRS + "[data]\ntrain = pairs.tsv\nvalid = pairs.tsv\n[tokenizer]\nvocab = 60\nmin_count = 1\n"
                 + TRAIN + "ema = 0.9\nresult = ema\n",
    "narrow": "[model]\nmodel_type = gpt2\nn_embd = 16\nn_layer = 1\nn_head = 2\nn_positions = 64\n[data]\nobjective = causal\ntrain = lines.txt\n"
              "context = 16\n[tokenizer]\nkind = byte_bpe\nvocab = 270\nmin_count = 1\n" + TRAIN + "dtype = bf16\naccumulate = 2\n",
}
DATA = {
    "lines.txt": "the cat sat on the mat\nit was a good day\nthe dog ran in the park\nso bad a film\n" * 4,
    "labels.tsv": "the cat sat\tgood\nso bad a film\tbad\nit was a day\tgood\nthe good dog\tgood\na bad day\tbad\n" * 3,
    "pairs.tsv": "the cat\tle chat\nthe dog\tle chien\na cat\tun chat\na dog\tun chien\nthe day\tle jour\n" * 3,
}


class Program:
    def __init__(self, build, folder):
        self.program, self.faults, self.folder = os.path.abspath(build + "/fovea"), os.path.abspath(build + "/tests/fault_calls.so"), folder

    def run(self, arguments, **faults):
        """Exit status (negative: a signal) and what it wrote to standard error."""
        env = dict(os.environ, OMP_WAIT_POLICY="passive")
        if faults:
            env.update(LD_PRELOAD=self.faults, **{"FAULT_" + k.upper(): str(v) for k, v in faults.items()})
        try:
            done = subprocess.run([self.program] + arguments, cwd=self.folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                  stderr=subprocess.PIPE, timeout=60)
        except subprocess.TimeoutExpired:
            return "hangs", ""
        return done.returncode, done.stderr.decode(errors="replace")

    def count(self, arguments):
        """System calls and allocations of the command when nothing fails."""
        code, text = self.run(arguments, count="counts")
        with open(self.folder + "/counts") as f:
            calls, allocations = f.read().split()
        return code, int(calls), int(allocations)


def make_data(folder):
    for name, text in list(DATA.items()) + [(k + ".ini", v) for k, v in RECIPES.items()]:
        with open(folder + "/" + name, "w") as f:
            f.write(text)


def same(folder, a, b):
    files = ["model/model.safetensors", "model/config.json", "model/tokenizer.json", "recipe.ini"]
    return all(filecmp.cmp(f"{folder}/{a}/{x}", f"{folder}/{b}/{x}", shallow=False) for x in files)


def crash(p, kills, part):
    make_data(p.folder)
    done = resumed = lost = 0
    for name in RECIPES:
        train = ["train", name + ".ini", "--resume", "-q", "--threads", "1", "-o"]
        code, calls, _ = p.count(train + ["whole-" + name])
        assert code == 0, name
        chance = random.Random(name + (str(part) if part else ""))
        for turn in range(10 ** 6):
            if done >= kills * (list(RECIPES).index(name) + 1) // len(RECIPES):
                break
            run = "killed-" + name
            shutil.rmtree(p.folder + "/" + run, ignore_errors=True)
            for _ in range(6):
                code, text = p.run(train + [run], call=chance.randint(1, calls), kill=1)
                done += code == -9
                if code not in (0, -9):
                    print(f"{name}, turn {turn}: exit {code}: {text}")
                    lost += 1
            code, text = p.run(train + [run])
            resumed += 1
            if code or not same(p.folder, run, "whole-" + name):
                print(f"{name}, turn {turn}: exit {code}, other bits: {text}")
                lost += 1
        print(f"{name}: {calls} calls in a run; {done} kills so far", flush=True)
    print(f"{done} kills over {len(RECIPES)} recipes, {resumed} runs finished afterwards: {lost} lost or different")
    return lost


def commands(p):
    make_data(p.folder)
    for name in RECIPES:
        assert p.run(["train", name + ".ini", "-o", name, "-q", "--threads", "1"])[0] == 0, name
    few = ["--set", "train.updates=2"]
    yield "info", ["info", "--threads", "1"]
    yield "tokenize", ["tokenize", "-m", "causal/model", "--json", "lines.txt"]
    yield "tokenizer train", ["tokenizer", "train", "--kind", "unigram", "--vocab", "60", "-o", "t.json", "lines.txt"]
    yield "generate", ["generate", "-m", "causal/model", "--threads", "1", "--max-new-tokens", "4", "--json", "the cat"]
    yield "score", ["score", "-m", "causal/model", "--threads", "1", "lines.txt"]
    yield "classify", ["classify", "-m", "classify/model", "--threads", "1", "--json", "lines.txt"]
    yield "embed", ["embed", "-m", "classify/model", "--threads", "1", "lines.txt"]
    yield "translate", ["translate", "-m", "translate/model", "--threads", "1", "lines.txt"]
    yield "eval", ["eval", "-m", "classify/model", "--threads", "1", "labels.tsv"]
    yield "quantize", ["quantize", "-m", "causal/model", "-o", "quantized", "--threads", "1"]
    yield "see", ["see", "-m", "causal/model", "--threads", "1", "--text", "the cat", "-o", "page.html"]
    yield "attend", ["attend", "--json"]
    yield "train", ["train", "classify.ini", "-o", "again", "-q", "--threads", "1"] + few


def faults(p, stride, part):
    cases = faults_found = 0
    for name, arguments in commands(p):
        def clean():
            for made in ("again", "quantized", "t.json", "page.html"):
                shutil.rmtree(f"{p.folder}/{made}", ignore_errors=True)
        clean()
        code, calls, allocations = p.count(arguments)
        assert code == 0, (name, code)
        bad = 0
        for kind, most in (("call", calls), ("alloc", allocations)):
            for at in range(1 + part, most + 1, stride):
                clean()
                code, text = p.run(arguments, **{kind: at})
                cases += 1
                sentence = text.strip() != "" and all(c.isprintable() or c in "\n\t" for c in text)
                if not (code == 0 or code in (1, 2) and (sentence or kind == "call")):
                    bad += 1
                    print(f"{name}: {kind} {at} of {most} fails: exit {code}: {text[-300:]}")
        faults_found += bad
        print(f"{name}: {calls} calls, {allocations} allocations, every {stride}. failing in turn: {bad} faults", flush=True)
    print(f"{cases} failures: {faults_found} faults")
    return faults_found


def main():
    build, what, number, part = sys.argv[1], sys.argv[2], int(sys.argv[3]), int((sys.argv + [0])[4])
    with tempfile.TemporaryDirectory(prefix="fovea-") as folder:
        p = Program(build, folder)
        sys.exit(1 if (crash if what == "crash" else faults)(p, number, part) else 0)


main()
