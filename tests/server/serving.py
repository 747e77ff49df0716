"""serving.py - a server of the tests' own models, one for each kind of request, for the scripts beside it."""
import json
import pathlib
import re
import shutil
import subprocess

TREE = pathlib.Path(__file__).resolve().parent.parent.parent
GOLDEN = TREE / "tests/golden"


def models(scratch):
    """NAME=DIR of a model for each kind of request; the one for chats gets its template in `scratch`."""
    chat = pathlib.Path(scratch) / "chat"
    shutil.copytree(GOLDEN / "stories260K", chat)
    shutil.copy(GOLDEN / "chatml.jinja", chat / "chat_template.jinja")
    tasks = {"labels": "classify-bert", "tags": "tag-bert", "answers": "answer-bert", "masks": "fill-bert", "vectors": "embed-mean"}
    image = pathlib.Path(scratch) / "image"
    shutil.copytree(GOLDEN / "models/vit-classify", image)
    how = {"image_processor_type": "ViTImageProcessor", "do_resize": True, "size": {"height": 12, "width": 12},
           "do_normalize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (image / "preprocessor_config.json").write_text(json.dumps(how), encoding="ascii")
    sound = pathlib.Path(scratch) / "sound"
    shutil.copytree(GOLDEN / "models/moonshine-text", sound)
    hears = {"feature_extractor_type": "Wav2Vec2FeatureExtractor", "do_normalize": False}
    (sound / "preprocessor_config.json").write_text(json.dumps(hears), encoding="ascii")
    letters = {chr(ord("a") + i) if i < 26 else str(i - 26): i for i in range(30)}
    tokenizer = {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None,
                 "decoder": {"type": "ByteFallback"}, "model": {"type": "BPE", "merges": [], "vocab": letters}}
    (sound / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="ascii")
    served = {"chat": chat, "image": image, "sound": sound, **{name: GOLDEN / "tasks" / at for name, at in tasks.items()}, "translation": GOLDEN / "translate"}
    return [f"{name}={at}" for name, at in served.items()]


class Server:
    """`fovea serve` at a free port while the block runs; its log goes to `log`."""

    def __init__(self, program, scratch, *options):
        self.scratch = pathlib.Path(scratch)
        self.command = [str(program), "serve", "--port", "0", *options]
        for model in models(scratch):
            self.command += ["-m", model]
        self.log = self.scratch / "log"

    def __enter__(self):
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(self.command, stderr=log)
        while self.process.poll() is None:
            found = re.search(r"listening at (http://[^\"]*)", self.log.read_text(errors="replace"))
            if found:
                self.address = found.group(1)
                return self
        raise SystemExit(f"the server has not started: {self.log.read_text(errors='replace')}")

    def __exit__(self, *_):
        self.process.terminate()
        self.code = self.process.wait()
