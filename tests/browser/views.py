#!/usr/bin/env python3
"""views.py [FOVEA] - every view of the page of `fovea serve` in headless Chromium: opened by its address, used, and compared
with the numbers of the API; saved pictures are pictures; a phone's width is enough; the console stays empty.  77 without
Chromium.  SHOTS=DIR keeps a screenshot of each."""
import base64
import json
import math
import os
import pathlib
import shutil
import sys
import tempfile
import time
import urllib.parse
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "server"))
from browser import Browser, Missing  # noqa: E402
from serving import Server  # noqa: E402

TREE = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAM = sys.argv[1] if len(sys.argv) > 1 else str(TREE / "build/fovea")
TEXT = "Lily saw a cat. Lily saw a dog"


def digits(x):
    """As Number.toPrecision(4) of the page."""
    return float(f"{x:.4g}")


class Views:
    def __init__(self, b, address):
        self.b, self.address, self.ok = b, address, True

    def expect(self, what, value):
        print("ok  " if value else "FAIL", what)
        self.ok &= bool(value)

    def ask(self, path, body=None):
        with urllib.request.urlopen(self.address + path, json.dumps(body).encode() if body else None) as r:
            return json.load(r)

    def open(self, view, **state):
        self.b.open("about:blank")
        self.b.open(f"{self.address}/#" + urllib.parse.urlencode({"view": view, **state, "go": 1}))
        for _ in range(400):
            said = self.b.evaluate("document.getElementById('status').textContent")
            if said:
                break
            time.sleep(0.05)
        self.expect(f"{view}: it opens by its address ({said})", said == "ready")
        if os.environ.get("SHOTS"):
            self.b.screenshot(os.path.join(os.environ["SHOTS"], f"{view}-{self.b.evaluate('innerWidth')}.png"))

    def appears(self, name):
        """Views are made once the server has said what it serves."""
        for _ in range(400):
            if self.b.evaluate(f"document.getElementById('{name}') !== null"):
                return
            time.sleep(0.05)

    def values(self, selector, attribute):
        return self.b.evaluate(f"[...document.querySelectorAll('{selector}')].map(e => +e.dataset.{attribute})")

    def saves(self, view):
        text = self.b.evaluate("svgText()")
        self.expect(f"{view}: saved as SVG", text.startswith("<svg") and "currentColor" not in text)
        self.expect(f"{view}: saved as PNG", self.b.evaluate("pngData()").startswith("data:image/png;base64,iVBOR"))
        self.expect(f"{view}: saved as numbers", self.b.evaluate(
            "JSON.stringify(typeof shown.numbers === 'function' ? shown.numbers() : shown.numbers).length") > 50)

    # ---- one check for each view ----

    def live(self):
        self.b.open("about:blank")
        state = {"view": "live", "model": "chat", "prompt": TEXT, "tokens": 6, "temperature": 0, "seed": 1, "chat": 0, "look": 14, "go": 1}
        self.b.open(f"{self.address}/#" + urllib.parse.urlencode(state))
        for _ in range(400):
            if "written" in self.b.evaluate("document.getElementById('status').textContent"):
                break
            time.sleep(0.05)
        time.sleep(0.2)
        self.expect("live: a token is looked at by the address", self.b.evaluate("here") == 14)
        self.saves("live")

    def heads(self):
        want = self.ask("/v1/heads", {"model": "chat", "input": TEXT})
        seen = self.ask("/v1/attention", {"model": "chat", "input": TEXT})["weights"]
        for measure in ("entropy", "previous", "first", "self", "induction"):
            self.open("heads", model="chat", input=TEXT, measure=measure)
            self.expect(f"heads: {measure} of every head is the API's", self.values(".head", "value") == sum(want[measure], []))
        n = len(seen[0][0])
        previous = sum(seen[1][6][i][i - 1] for i in range(1, n)) / (n - 1)
        entropy = -sum(w * math.log(w) for row in seen[1][6] for w in row if w > 0) / n
        self.expect("heads: and the mean of the weights", abs(want["previous"][1][6] - previous) < 1e-6
                    and abs(want["entropy"][1][6] - entropy) < 1e-6)
        self.saves("heads")

    def ablation(self):
        self.open("heads", model="chat", input=TEXT)
        self.b.evaluate("document.querySelector('[data-head=\"1.6\"]').onclick()")
        for _ in range(200):
            if self.b.evaluate("!!document.getElementById('ablated')"):
                break
            time.sleep(0.05)
        want = self.ask("/v1/ablate", {"model": "chat", "input": TEXT, "heads": [[1, 6]], "top": 8})
        shown = self.b.evaluate("[...document.querySelectorAll('#ablated b')].map(e => +e.textContent)")
        probabilities = [round(math.exp(t["logprob"]), 4) for side in ("before", "after") for t in want[side]["top"]]
        self.expect("heads: the next token with and without a head", shown == probabilities and shown[:8] != shown[8:])
        self.expect("heads: the address holds what is off", "off=1.6" in self.b.evaluate("location.hash"))

    def neurons(self):
        self.open("heads", model="chat", input=TEXT, neuron="1.3", row=5)
        want = self.ask("/v1/neurons", {"model": "chat", "input": TEXT, "layer": 1, "head": 3, "row": 5})
        shown = self.b.evaluate("[...document.querySelectorAll('#neuron text')].map(e => e.textContent)")
        self.expect("neurons: the weights are the API's, to the printed digits",
                    [float(x) for x in shown if x[:1].isdigit()][-len(want["weights"]):] == [digits(w) for w in want["weights"]])
        scores = [want["scale"] * sum(a * b for a, b in zip(want["query"], key)) for key in want["keys"][:6]]
        total = sum(map(math.exp, scores))
        self.expect("neurons: and come of query and keys", all(abs(math.exp(s) / total - w) < 1e-5
                                                               for s, w in zip(scores, want["weights"])))

    def explore(self):
        self.open("explore", model="chat", input=TEXT)
        frame = "document.querySelector('iframe').contentDocument"
        for _ in range(200):
            if self.b.evaluate(f"!!{frame} && {frame}.querySelectorAll('#grid button, #grid [role=button]').length > 0"):
                break
            time.sleep(0.05)
        self.expect("explore: a small map of each head", self.b.evaluate(f"{frame}.querySelectorAll('#grid canvas').length") >= 40)
        seen = self.ask("/v1/attention", {"model": "chat", "input": TEXT, "attention": {"layers": [4], "heads": "all"}})["weights"][0]
        for _ in range(6):
            self.b.evaluate(frame + ".getElementById('stage').dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowDown'}))")
        time.sleep(0.5)
        read = self.b.evaluate(f"[...{frame}.querySelectorAll('#readout li b')].map(e => parseFloat(e.textContent))")
        means = [sorted((sum(h[i][j] for h in seen) / len(seen) for j in range(len(seen[0]))), reverse=True) for i in range(len(seen[0]))]
        self.expect(f"explore: a token reads out the mean of its heads {read[:3]}",
                    read and any(all(abs(100 * w - x) <= 0.51 for w, x in zip(row, read)) for row in means))
        self.explored(frame, seen)

    def explored(self, frame, seen):
        """Maps come from the server as they are shown: the numbers that are saved are the API's, of all heads of a layer."""
        self.b.evaluate(f"{frame}.querySelector('input[value=lines]').click(); {frame}.querySelectorAll('#grid button.all')[4].click()")
        self.b.evaluate("(w => { w.HTMLAnchorElement.prototype.click = () => 0; w.URL.createObjectURL = b => { window.saved = b.text(); return ''; }; })"
                        f"({frame}.defaultView); {frame}.getElementById('numbers').click()")
        for _ in range(200):
            if self.b.evaluate("!!window.saved"):
                break
            time.sleep(0.05)
        maps = json.loads(self.b.evaluate("saved"))["maps"]
        self.expect("explore: the numbers that are saved are the API's, to six digits",
                    [m["weights"] for m in maps] == [[[float(f"{w:.6g}") for w in row] for row in head] for head in seen])
        thumbs = self.b.evaluate(f"[...{frame}.querySelectorAll('#grid canvas')].filter(c => c.getContext('2d').getImageData(0, 0, 1, 1).data[3]).length")
        self.expect("explore: every thumbnail has come", thumbs == self.b.evaluate(f"{frame}.querySelectorAll('#grid canvas').length"))

    def compare(self):
        other = TEXT.replace("cat", "dog")
        self.open("compare", model="chat", model2="chat", input=TEXT, input2=other, layer=2, head=4)
        maps = [self.ask("/v1/attention", {"model": "chat", "input": t, "attention": {"layers": [2], "heads": [4]}})["weights"][0][0]
                for t in (TEXT, other)]
        shown = self.b.evaluate("[...document.querySelectorAll('#compare-maps rect title')].map(e => +e.textContent)")
        self.expect("compare: both maps are the API's, to the printed digits",
                    shown[:2 * len(maps[0]) ** 2] == [digits(w) for m in maps for row in m for w in row])
        self.saves("compare")

    def through(self):
        self.open("through", model="chat", input=TEXT, row=5)
        for way in ("rollout", "flow"):
            want = self.ask("/v1/attention", {"model": "chat", "input": TEXT, "through": way})["weights"][0][0]
            self.expect(f"through: {way} of a row is the API's", self.values(f".through-{way}", "weight") == want[5])
        shown = self.b.evaluate("[...document.querySelectorAll('#through-maps > svg > rect title')].map(e => +e.textContent)")
        flow = [digits(w) for row in want for w in row]
        self.expect("through: and the maps, to the printed digits", shown[-len(flow):] == flow)
        self.expect("through: a flow is at least what the last layer's rollout leaves of it", all(0 <= w <= 1 for row in want for w in row))
        self.b.evaluate("document.querySelectorAll('#through-maps .head')[2].onclick()")
        self.expect("through: a click follows another token", self.values(".through-flow", "weight") == want[2]
                    and "row=2" in self.b.evaluate("location.hash"))
        self.saves("through")

    def audio(self):
        path = TREE / "tests/golden/audio/sweep.wav"
        data = base64.b64encode(path.read_bytes()).decode()
        self.b.open("about:blank")
        self.b.open(f"{self.address}/#view=audio&model=sound")
        self.appears("audio-sound")
        self.b.evaluate(f"""(() => {{
          const bytes = Uint8Array.from(atob('{data}'), c => c.charCodeAt(0));
          const list = new DataTransfer();
          list.items.add(new File([bytes], 'sweep.wav', {{type: 'audio/wav'}}));
          document.getElementById('audio-sound').files = list.files;
          document.getElementById('audio-go').click();
        }})()""")
        for _ in range(400):
            said = self.b.evaluate("document.getElementById('status').textContent")
            if said:
                break
            time.sleep(0.05)
        self.expect(f"audio: a file is heard ({said})", said == "ready")
        uri = self.b.evaluate("(async () => asUri(wavBytes(await samplesOf(document.getElementById('audio-sound').files[0]))))()")
        want = self.ask("/v1/attention", {"model": "sound", "input": uri, "attention": {"layers": -1}})
        self.b.evaluate("document.querySelectorAll('#audio-heard .head')[1].onclick()")
        heads = want["weights"][0]
        mean = [sum(h[1][k] for h in heads) / len(heads) for k in range(len(want["column_tokens"]))]
        shown = self.values("#audio-heard .heard", "weight")
        self.expect("audio: a token's weights over the sound are the API's", len(shown) == len(mean)
                    and all(abs(a - b) < 1e-6 for a, b in zip(shown, mean)))
        self.expect("audio: frames have times", want["column_tokens"][0] == "0.00 s" and want["kind"] == "cross")
        self.expect("audio: there is a spectrogram", self.b.evaluate("document.querySelector('#audio-heard image').getAttribute('href').startsWith('data:image/png')"))
        self.saves("audio")
        if os.environ.get("SHOTS"):
            self.b.screenshot(os.path.join(os.environ["SHOTS"], f"audio-{self.b.evaluate('innerWidth')}.png"))

    def classify(self):
        text = "a fine film"
        self.open("classify", model="labels", input=text)
        want = self.ask("/v1/classify", {"model": "labels", "input": [text, " fine film", "a  film", "a fine "], "top": 1000})["data"]
        scores = [{x["label"]: x["score"] for x in d["labels"]} for d in want]
        best = want[0]["labels"][0]["label"]
        self.expect("classify: scores are the API's", self.values("#classify-labels .label", "score")[0] == scores[0][best])
        self.expect("classify: a word is worth what the label loses without it",
                    self.values("#classify-labels .word", "gain") == [scores[0][best] - s[best] for s in scores[1:]])
        self.saves("classify")

    def answer(self):
        question, context = "Who wrote it?", "Ada wrote it in London, naïvely, and Grace read it."
        self.open("answer", model="answers", question=question, context=context)
        best = self.ask("/v1/answer", {"model": "answers", "question": question, "context": context, "top": 3})["answers"][0]
        self.expect("answer: the span is marked", self.b.evaluate("document.getElementById('span').textContent")
                    == context[best["from"]:best["to"]])
        self.saves("answer")

    def translate(self):
        self.open("translate", model="translation", input="a b c")
        want = self.ask("/v1/translate", {"model": "translation", "input": "a b c", "attention": True})["data"][0]
        self.expect("translate: the text", self.b.evaluate("document.getElementById('translated').textContent") == want["text"])
        self.expect("translate: links are the API's weights", self.values("#translate-alignment .link", "weight")
                    == [w for row in want["attention"] for w in row if w >= 0.02])
        self.saves("translate")

    def runs(self, folder):
        self.open("runs", run="one")
        lines = self.ask("/v1/runs/one")["lines"]
        self.expect("runs: the last loss is the log's", self.values("#runs-curves .curve", "last")[0] == lines[-1]["loss"])
        with open(folder / "one/train.jsonl", "a", encoding="ascii") as f:
            f.write('{"event":"train","step":9000,"loss":0.125}\n')
        for _ in range(120):
            if self.values("#runs-curves .curve", "last")[0] == 0.125:
                break
            time.sleep(0.05)
        self.expect("runs: a line that is written appears", self.values("#runs-curves .curve", "last")[0] == 0.125)
        self.checkpoints(folder)
        self.saves("runs")

    def checkpoints(self, folder):
        """What they write and attend to is the API's, and one that is written while the view is open appears."""
        text, head = "Once upon a time", {"layers": [1], "heads": [2]}
        self.open("runs", run="one", input=text, layer=1, head=2)
        write_checkpoint(folder, 300)
        for _ in range(400):
            if self.values("#runs-curves .checkpoint", "step") == [100, 200, 300]:
                break
            time.sleep(0.05)
        self.expect("runs: checkpoints follow one another", self.values("#runs-curves .checkpoint", "step") == [100, 200, 300])
        for i, step in enumerate((100, 200, 300)):
            model = f"runs/one/step-{step}"
            want = self.ask("/v1/attention", {"model": model, "input": text, "attention": head})["weights"][0][0]
            shown = self.b.evaluate(f"JSON.parse(document.querySelectorAll('#runs-curves .attended')[{i}].dataset.weights)")
            self.expect(f"runs: the weights of step {step} are the API's", shown == want)
            want = self.ask("/v1/completions", {"model": model, "prompt": text, "max_tokens": 24, "temperature": 0})["choices"][0]["text"]
            said = self.b.evaluate(f"document.querySelectorAll('#runs-curves .checkpoint')[{i}].dataset.text")
            self.expect(f"runs: what step {step} writes is the API's", said == want)


    def image(self):
        path = TREE / "tests/golden/images/alpha.png"
        uri = "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()
        want = self.ask("/v1/classify", {"model": "image", "input": uri})["data"][0]["labels"]
        self.b.open("about:blank")
        self.b.open(f"{self.address}/#view=image&model=image")
        self.appears("image-image")
        self.b.evaluate(f"""(() => {{
          const bytes = Uint8Array.from(atob('{uri}'.split(',')[1]), c => c.charCodeAt(0));
          const list = new DataTransfer();
          list.items.add(new File([bytes], 'alpha.png', {{type: 'image/png'}}));
          document.getElementById('image-image').files = list.files;
          document.getElementById('image-go').click();
        }})()""")
        for _ in range(400):
            if self.b.evaluate("document.getElementById('status').textContent") or self.b.evaluate("!!document.querySelector('#image-page iframe')"):
                break
            time.sleep(0.05)
        time.sleep(0.5)
        said = self.b.evaluate("[...document.querySelectorAll('#image-said li')].map(e => [e.querySelector('span').textContent, +e.querySelector('b').textContent])")
        self.expect("image: the labels of the API", said and said == [[w["label"], digits(w["score"])] for w in want][:10])
        self.expect("image: where it looked", self.b.evaluate("!!document.querySelector('#image-page iframe').contentDocument.querySelector('canvas')"))
        if os.environ.get("SHOTS"):
            self.b.screenshot(os.path.join(os.environ["SHOTS"], f"image-{self.b.evaluate('innerWidth')}.png"))


def write_run(folder):
    (folder / "one").mkdir(parents=True)
    with open(folder / "one/train.jsonl", "w", encoding="ascii") as f:
        for step in range(0, 400, 10):
            f.write(json.dumps({"event": "train", "step": step, "loss": 5 / (1 + step / 30), "lr": 1e-3, "norm": 1.5}) + "\n")


    for step in (100, 200):
        write_checkpoint(folder, step)


def write_checkpoint(folder, step):
    """A model's directory, which is whole once it has its name, as `fovea train` writes it."""
    part, whole = (folder / f"one/checkpoints/step-{step}{end}" for end in (".tmp", ""))
    shutil.copytree(TREE / "tests/golden/stories260K", part)
    (part / "MANIFEST.json").write_text("{}", encoding="ascii")
    part.rename(whole)


def main():
    ok = True
    try:
        for width in (1200, 360):
            with tempfile.TemporaryDirectory() as scratch:
                folder = pathlib.Path(scratch) / "runs"
                write_run(folder)
                with Server(PROGRAM, scratch, "--quiet", "--runs", str(folder)) as server, Browser(width, 900) as b:
                    v = Views(b, server.address)
                    for check in (v.live, v.heads, v.ablation, v.neurons, v.explore, v.through, v.compare, v.classify,
                                  v.answer, v.translate, v.image, v.audio):
                        check()
                        v.expect("nothing scrolls sideways", b.evaluate("document.documentElement.scrollWidth <= innerWidth"))
                    v.runs(folder)
                    v.expect("no problem in the console", not b.problems)
                    for problem in b.problems:
                        print("    ", problem)
                    ok &= v.ok
    except Missing as e:
        print(e)
        return 77
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
