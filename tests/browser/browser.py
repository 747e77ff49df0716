"""browser.py - a headless Chromium, driven by the DevTools protocol over a pipe; nothing but the standard library.

    with Browser(1400, 900) as b:
        b.open("file:///page.html"); b.evaluate("document.title"); b.click(700, 300); b.screenshot("x.png")
"""
import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "chromium-headless-shell")


class Missing(Exception):
    """There is no Chromium on this machine."""


class Browser:
    def __init__(self, width, height, dark=False):
        program = next((p for p in map(shutil.which, NAMES) if p), None)
        if not program:
            raise Missing("no Chromium found: apt install chromium")
        to_r, to_w = os.pipe()
        from_r, from_w = os.pipe()
        self.folder = tempfile.mkdtemp()

        def descriptors():  # the browser reads commands from 3 and answers on 4
            a, b = os.dup(to_r), os.dup(from_w)
            os.dup2(a, 3)
            os.dup2(b, 4)
            os.set_inheritable(3, True)
            os.set_inheritable(4, True)

        self.process = subprocess.Popen(
            [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--remote-debugging-pipe",
             f"--user-data-dir={self.folder}", f"--window-size={width},{height}", "about:blank"],
            preexec_fn=descriptors, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_r)
        os.close(from_w)
        self.to, self.read_from, self.buffer, self.number, self.session = to_w, from_r, b"", 0, None
        self.problems = []
        target = [t for t in self.send("Target.getTargets")["targetInfos"] if t["type"] == "page"][0]
        self.session = self.send("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.session = None
            self.send("Browser.close")
        except OSError:
            pass
        self.process.wait(20)
        shutil.rmtree(self.folder, ignore_errors=True)

    def message(self):
        while b"\0" not in self.buffer:
            part = os.read(self.read_from, 1 << 20)
            if not part:
                raise OSError("the browser is gone")
            self.buffer += part
        one, self.buffer = self.buffer.split(b"\0", 1)
        m = json.loads(one)
        if m.get("method") == "Runtime.exceptionThrown":
            self.problems.append(m["params"]["exceptionDetails"].get("exception", {}).get("description", "exception"))
        if m.get("method") == "Log.entryAdded" and m["params"]["entry"]["level"] == "error":
            self.problems.append(m["params"]["entry"]["text"])
        return m

    def send(self, method, **params):
        self.number += 1
        m = {"id": self.number, "method": method, "params": params}
        if self.session:
            m["sessionId"] = self.session
        os.write(self.to, json.dumps(m).encode() + b"\0")
        while True:
            answer = self.message()
            if answer.get("id") == self.number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer.get("result", {})

    def open(self, url):
        """Loads url; returns the seconds until it is loaded and drawn."""
        start = time.time()
        self.send("Page.navigate", url=url)
        while self.message().get("method") != "Page.loadEventFired":
            pass
        self.evaluate("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")
        return time.time() - start

    def evaluate(self, text):
        r = self.send("Runtime.evaluate", expression=text, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in r:
            raise RuntimeError(r["exceptionDetails"]["exception"].get("description"))
        return r["result"].get("value")

    def move(self, x, y):
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def click(self, x, y, modifiers=0):
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1, modifiers=modifiers)

    def key(self, key):
        for kind in ("keyDown", "keyUp"):
            self.send("Input.dispatchKeyEvent", type=kind, key=key)

    def screenshot(self, path):
        data = self.send("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as f:
            f.write(base64.b64decode(data))


def run(main):
    """Ends the program with what main returns, or with 77, which CTest counts as skipped, where there is no browser."""
    try:
        sys.exit(main())
    except Missing as e:
        print(e)
        sys.exit(77)
