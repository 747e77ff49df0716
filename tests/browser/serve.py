#!/usr/bin/env python3
"""serve.py [FOVEA] - the live page of `fovea serve` in headless Chromium: tokens appear, a token that is pointed at shows the
weights that the API gives, an alternative is followed, and a phone's width is enough.  77 without Chromium."""
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import urllib.request

from browser import Browser, Missing

HERE = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAM = sys.argv[1] if len(sys.argv) > 1 else str(HERE / "build/fovea")
MODEL = HERE / "tests/golden/stories260K"


def start(*options):
    process = subprocess.Popen([PROGRAM, "serve", "-m", str(MODEL), "--port", "0", "--quiet", *options], stderr=subprocess.PIPE, text=True)
    for said in process.stderr:
        found = re.search(r"listening at (http://[^\"]*)", said)
        if found:
            return process, found.group(1)
    raise SystemExit("the server has not started")


def ask(address, body):
    with urllib.request.urlopen(address + "/v1/completions", json.dumps(body).encode()) as r:
        return json.load(r)["choices"][0]


def wait(b, condition):
    for _ in range(200):
        if b.evaluate(condition):
            return True
        time.sleep(0.05)
    return False


def check(b, address):
    def expect(what, value):
        print("ok  " if value else "FAIL", what)
        return bool(value)

    want = ask(address, {"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, "attention": {}})
    ok = True
    b.open(address + "/#prompt=Once%20upon%20a%20time&tokens=12&temperature=0&go=1")
    ok &= expect("it writes what the API gives", wait(b, "document.getElementById('status').textContent === '12 tokens written'"))
    text = b.evaluate("[...document.querySelectorAll('.token.made')].map(e => e.textContent).join('')")
    ok &= expect("token for token", text == want["text"])

    row = want["attention"]["rows"][3]  # the one that chose the fourth token
    b.evaluate("document.querySelectorAll('.token.made')[3].scrollIntoView({block: 'center'})")
    b.move(*b.evaluate("(r => [r.x + r.width / 2, r.y + r.height / 2])"
                       "([...document.querySelectorAll('.token.made')[3].getClientRects()].pop())"))
    for name, value in (("layer", 2), ("head", 5)):
        b.evaluate(f"(s => {{ s.value = '{value}'; s.onchange(); }})(document.getElementById('{name}'))")
    shown = b.evaluate("[...document.querySelectorAll('.token.looked')].map(e => +e.title.slice(7))")
    digits = [float(f"{w:.4g}") for w in row["weights"][2][5]]
    ok &= expect("a token shows the weights of the API, to the printed digits", shown == digits)
    state = b.evaluate("Object.fromEntries(new URLSearchParams(location.hash.slice(1)))")
    ok &= expect("the address holds the view", (state["layer"], state["head"]) == ("2", "5"))
    ok &= expect("alternatives are offered", b.evaluate("document.querySelectorAll('#about button').length") == 8)
    b.evaluate("document.querySelectorAll('#about button')[1].click()")
    ok &= expect("another token is followed", wait(b, "document.querySelectorAll('.token.made').length === 15"))
    ok &= expect("nothing scrolls sideways", b.evaluate("document.documentElement.scrollWidth <= innerWidth"))
    ok &= expect("no problem in the console", not b.problems)
    for problem in b.problems:
        print("    ", problem)
    return ok


def check_key():
    """A server that wants an API key: the page asks for it, and keeps it."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as keys:
        keys.write("a-key-for-the-test\n")
        keys.flush()
        process, address = start("--api-keys", keys.name)
        try:
            with Browser(800, 800) as b:
                b.open(address + "/#view=explore&input=Once%20upon%20a%20time&go=1")
                ok = wait(b, "!document.getElementById('key').hidden")
                b.evaluate("document.getElementById('key-value').value = 'a-key-for-the-test'; document.querySelector('#key button').click()")
                ok &= wait(b, "!!document.querySelector('iframe') && !!document.querySelector('iframe').contentWindow.performance.getEntriesByName('drawn').length")
                ok &= b.evaluate("document.getElementById('key').hidden")
        finally:
            process.terminate()
            process.wait()
    print("ok  " if ok else "FAIL", "a key is asked for, and kept")
    return ok


def main():
    process, address = start()
    try:
        ok = check_key()
        for width in (1200, 360):
            with Browser(width, 800) as b:
                ok &= check(b, address)
    except Missing as e:
        print(e)
        return 77
    finally:
        process.terminate()
        process.wait()
    return 0 if ok else 1


sys.exit(main())
