"""Opens in transformers every kind of directory that fovea writes: model/, best/ and checkpoints of trainings with each kind of
tokenizer and objective, copies by `quantize`, the demo's model.  AutoConfig, AutoTokenizer and AutoModel must open each, and the
ids of AutoTokenizer be those of `fovea tokenize`.

Run:  python3 tools/golden/open_written.py build/fovea     (seen with transformers 5.22.2, torch 2.15.0)"""
import glob
import os
import subprocess
import sys
import tempfile

import transformers

transformers.logging.set_verbosity_error()
TEXT = "the cat sat, on the mat: 123 cafe\u0301s aren't  BAD\n"
SIZES = "hidden_size = 16\nnum_hidden_layers = 1\nnum_attention_heads = 2\nintermediate_size = 24\nmax_position_embeddings = 64\n"
PAIRS = ("d_model = 16\nencoder_layers = 1\ndecoder_layers = 1\nencoder_attention_heads = 2\ndecoder_attention_heads = 2\n"
         "encoder_ffn_dim = 24\ndecoder_ffn_dim = 24\nmax_position_embeddings = 64\n")
T5 = "d_model = 16\nnum_layers = 1\nnum_decoder_layers = 1\nnum_heads = 2\nd_kv = 8\nd_ff = 24\n"
TRAIN = "[train]\nupdates = 2\nbatch_tokens = 64\nwarmup = 1\nsave_every = 2\neval_every = 2\n"
LINES = "[data]\nobjective = {}\ntrain = lines.txt\nvalid = lines.txt\ncontext = 16\n"
WORDS = "[tokenizer]\nkind = {}\nvocab = {}\nmin_count = 1\n"
RECIPES = {
    "llama": "[model]\nmodel_type = llama\n" + SIZES + LINES.format("causal") + WORDS.format("byte_bpe", 280) + TRAIN,
    "qwen2": "[model]\nmodel_type = qwen2\n" + SIZES + LINES.format("causal") + WORDS.format("byte_bpe", 280) + TRAIN,
    "mistral": "[model]\nmodel_type = mistral\n" + SIZES + LINES.format("causal") + WORDS.format("bpe", 60) + TRAIN,
    "qwen3": "[model]\nmodel_type = qwen3\n" + SIZES + LINES.format("causal") + WORDS.format("bpe", 60) + TRAIN,
    "gpt2": "[model]\nmodel_type = gpt2\nn_embd = 16\nn_layer = 1\nn_head = 2\nn_positions = 64\n" + LINES.format("causal") + WORDS.format("byte_bpe", 280) + TRAIN,
    "bert": "[model]\nmodel_type = bert\n" + SIZES + LINES.format("masked") + WORDS.format("wordpiece", 60) + TRAIN,
    "classify": "[model]\nmodel_type = bert\n" + SIZES + "[data]\nobjective = classify\ntrain = labels.tsv\nvalid = labels.tsv\n" + WORDS.format("wordpiece", 60) + TRAIN,
    "marian": "[model]\nmodel_type = marian\n" + PAIRS + "[data]\ntrain = pairs.tsv\nvalid = pairs.tsv\n" + WORDS.format("unigram", 60) + TRAIN,
    "bart": "[model]\nmodel_type = bart\n" + PAIRS + "[data]\ntrain = pairs.tsv\nvalid = pairs.tsv\n" + WORDS.format("bpe", 60) + TRAIN,
    "t5": "[model]\nmodel_type = t5\n" + T5 + "[data]\ntrain = pairs.tsv\nvalid = pairs.tsv\n" + WORDS.format("unigram", 60) + TRAIN,
}
DATA = {"lines.txt": "the cat sat on the mat\nit was a good day\nthe dog ran in the park\nso bad a film\n" * 3,
        "labels.tsv": "the cat sat\tgood\nso bad a film\tbad\nit was a day\tgood\nthe good dog\tgood\na bad day\tbad\n",
        "pairs.tsv": "the cat\tle chat\nthe dog\tle chien\na cat\tun chat\na dog\tun chien\nthe day\tle jour\n"}


def main():
    fovea, opened, wrong = os.path.abspath(sys.argv[1]), 0, 0
    with tempfile.TemporaryDirectory(prefix="fovea-") as folder:
        os.chdir(folder)
        for name, text in list(DATA.items()) + [(k + ".ini", v) for k, v in RECIPES.items()]:
            open(name, "w").write(text)
        for name in RECIPES:
            done = subprocess.run([fovea, "train", name + ".ini", "-o", name, "-q", "--threads", "1"], capture_output=True, text=True)
            if done.returncode:
                print(f"{name}: not trained: {done.stderr.strip()}")
                wrong += 1
        for name in ("llama", "gpt2", "bert"):
            for weights in ("bf16", "f32"):
                subprocess.run([fovea, "quantize", "-m", name + "/model", "-o", f"{name}-{weights}", "--weights", weights], check=True, capture_output=True)
        subprocess.run([fovea, "demo", "-q", "--threads", "1", "--updates", "5", "-o", "demo"], check=True, capture_output=True)
        for path in sorted(glob.glob("*/model") + glob.glob("*/best") + glob.glob("*/checkpoints/step-*") + glob.glob("*-bf16") + glob.glob("*-f32")):
            try:
                config = transformers.AutoConfig.from_pretrained(path)
                tok = transformers.AutoTokenizer.from_pretrained(path)
                getattr(transformers, config.architectures[0]).from_pretrained(path)
                transformers.AutoModel.from_pretrained(path)
                ours = subprocess.run([fovea, "tokenize", "-m", path, "--text", TEXT], check=True, capture_output=True, text=True).stdout.split()
                assert [int(i) for i in ours] == tok(TEXT)["input_ids"], (ours, tok(TEXT)["input_ids"])
                opened += 1
            except Exception as e:
                wrong += 1
                print(f"{path}: {type(e).__name__}: {str(e)[:200]}")
    print(f"{opened} directories opened, {wrong} wrong")
    sys.exit(1 if wrong or opened < 20 else 0)


main()
