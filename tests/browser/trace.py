#!/usr/bin/env python3
"""trace.py FOVEA [ROUNDS [PAGE-512.html PAGE-2000.html]] - how fast the pages of attention are, in headless Chromium, over the loopback:

- 512 tokens, 12 x 12 heads: milliseconds from the request to the first paint of the head view (bar 500) and to its map, of the view
  Explore of `fovea serve` (and of the page around it), of the same when its pass is kept, and of the file that `fovea see` writes;
- 2,000 tokens, 12 x 12 heads: frames a second while the pointer moves over the map, while the map is scrolled and while the lines of
  all heads are scrolled, by the frames that Chromium's own trace says were drawn (bar 30), and milliseconds of processor time that the
  page's thread takes for a frame, which other work on the machine does not change.

Medians over the rounds.  Ends with 1 where a bar is missed, with 77 without Chromium.  make test-page-speed makes the pages."""
import functools
import http.server
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request

from browser import Browser, Missing
import wide

WORDS = "the cat sat on a mat and saw the dog that ran far away from home so it was sad "
FRAME = "document.querySelector('iframe')"


class Traced(Browser):
    """A browser that keeps what its trace tells."""

    def message(self):
        m = super().message()
        if m.get("method") == "Tracing.dataCollected":
            self.events += m["params"]["value"]
        self.traced |= m.get("method") == "Tracing.tracingComplete"
        return m

    def frames(self, act):
        """Frames a second that were drawn while act() ran, and milliseconds of the page's thread for each."""
        self.events, self.traced = [], False
        self.send("Tracing.start", transferMode="ReportEvents", traceConfig={
            "includedCategories": ["devtools.timeline", "disabled-by-default-devtools.timeline", "disabled-by-default-devtools.timeline.frame", "__metadata"]})
        began = time.monotonic()
        act()
        seconds = time.monotonic() - began
        self.send("Tracing.end")
        while not self.traced:
            self.message()
        main = {(e["pid"], e["tid"]) for e in self.events if e["name"] == "thread_name" and e["args"]["name"] == "CrRendererMain"}
        work = sum(e.get("tdur", 0) for e in self.events if e["name"] == "RunTask" and (e["pid"], e["tid"]) in main) / 1e3
        n = sum(e["name"] == "DrawFrame" for e in self.events)
        return n / seconds, work / max(1, n)

    events, traced = (), False


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


class Served:
    """`fovea serve` of a model with 12 x 12 heads."""

    def __init__(self, program, folder):
        wide.write(folder)
        self.process = subprocess.Popen([program, "serve", "-m", str(folder), "--port", "0", "--quiet"], stderr=subprocess.PIPE, text=True)
        for said in self.process.stderr:
            found = re.search(r"listening at (http://[^\"]*)", said)
            if found:
                self.address = found.group(1)
                return
        raise SystemExit("the server has not started")

    def view(self, tokens, number):
        """The address of a text of so many tokens or a few less; another text for another number, so that its pass is not kept."""
        text = f"{number} " + WORDS * (tokens // 10)
        while (n := self.count(text)) > tokens:
            text = text[:len(text) * tokens // n - 1]
        return f"{self.address}/#" + urllib.parse.urlencode({"view": "explore", "input": text, "go": 1})

    def count(self, text):
        with urllib.request.urlopen(self.address + "/tokenize", json.dumps({"text": text}).encode()) as r:
            return len(json.load(r)["tokens"])

    def close(self):
        self.process.terminate()
        self.process.wait()


def wait(b, condition, seconds=120):
    end = time.monotonic() + seconds
    while not b.evaluate(condition):
        if time.monotonic() > end:
            raise SystemExit(f"waited in vain for {condition}; {b.problems}")
        time.sleep(0.02)


PAINT = "%s.performance.getEntriesByType('paint').find(p => p.name === 'first-contentful-paint')"
DRAWN = "%s.performance.getEntriesByName('drawn')[0]"


def times(b, window):
    """Milliseconds from the start of the navigation to the first paint in a window, and to its map."""
    since = f"({window}.performance.timeOrigin - performance.timeOrigin)"
    wait(b, f"!!{DRAWN % window} && !!{PAINT % window}")
    return b.evaluate(f"[{since} + {PAINT % window}.startTime, {since} + {DRAWN % window}.startTime]")


def file_times(address):
    with Browser(1400, 900) as b:
        b.open(address)
        return times(b, "window")


def served_times(address):
    with Browser(1400, 900) as b:
        b.open(address)
        wait(b, f"!!{FRAME} && !!{FRAME}.contentWindow && !!{FRAME}.contentWindow.performance")
        paint, drawn = times(b, f"{FRAME}.contentWindow")
        return b.evaluate(f"{PAINT % 'window'}.startTime"), paint, drawn


def fluid(address, served):
    """[frames a second, milliseconds of a frame] of pointing, of scrolling the map and of scrolling lines."""
    with Traced(1400, 900) as b:
        b.open(address)
        if served:
            wait(b, f"!!{FRAME} && !!{FRAME}.contentDocument && !!{FRAME}.contentDocument.querySelector('#grid canvas')")
            b.evaluate(f"{FRAME}.scrollIntoView()")
        at, window = (f"{FRAME}.contentDocument", f"{FRAME}.contentWindow") if served else ("document", "window")
        times(b, window)

        def middle():
            top = f"{FRAME}.getBoundingClientRect()" if served else "{x: 0, y: 0}"
            return b.evaluate(f"(r => [r.x + {top}.x + r.width / 2, r.y + {top}.y + Math.min(r.height, 400) / 2])({at}.querySelector('#stage').getBoundingClientRect())")

        def point():
            x, y = middle()
            for i in range(120):
                b.move(x - 150 + 2.5 * i, y - 120 + 2 * i)
                time.sleep(0.012)

        def scroll():
            x, y = middle()
            for distance in (-900, 900):
                b.send("Input.synthesizeScrollGesture", x=x, y=y, yDistance=distance, speed=600, gestureSourceType="mouse")
        pointing = b.frames(point)
        b.evaluate(f"for (let i = 0; i < 5; i++) {at}.querySelector('#zoom-in').click()")
        time.sleep(1)
        scrolling = b.frames(scroll)
        b.evaluate(f"{at}.querySelector('input[value=lines]').click(); {at}.querySelectorAll('#grid button.all')[1].click()")
        time.sleep(1)
        lines = b.frames(scroll)
        if b.problems and served:
            raise SystemExit(b.problems)
        if os.environ.get("SHOTS"):
            b.screenshot(os.path.join(os.environ["SHOTS"], f"lines-{'served' if served else 'file'}.png"))
        return pointing + scrolling + lines


def tell(name, keys, rounds):
    found = {k: round(statistics.median(x), 1) for k, x in zip(keys, zip(*rounds))}
    print(json.dumps({"what": name, "rounds": len(rounds), **found}), flush=True)
    return found


SPEEDS = [f"{what}_{unit}" for what in ("pointing", "map", "lines") for unit in ("frames_s", "cpu_ms")]


def measure_served(server, rounds):
    paint = ["page_ms", "head_view_ms", "map_ms"]
    ok = tell("served, 512 tokens", paint, [served_times(server.view(512, i)) for i in range(rounds)])["head_view_ms"] <= 500
    tell("served, 512 tokens, pass kept", paint, [served_times(server.view(512, rounds - 1)) for _ in range(rounds)])
    found = tell("served, 2,000 tokens", SPEEDS, [fluid(server.view(2000, 0), True) for _ in range(rounds)])
    return ok and min(found[k] for k in SPEEDS[::2]) >= 30


def measure_files(small, large, rounds):
    folder = os.path.dirname(os.path.abspath(small))
    files = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    threading.Thread(target=files.serve_forever, daemon=True).start()
    at = f"http://127.0.0.1:{files.server_port}/"
    ok = tell("file, 512 tokens", ["head_view_ms", "map_ms"], [file_times(at + os.path.basename(small)) for _ in range(rounds)])["head_view_ms"] <= 500
    found = tell("file, 2,000 tokens", SPEEDS, [fluid(at + os.path.basename(large), False) for _ in range(rounds)])
    return ok and min(found[k] for k in SPEEDS[::2]) >= 30


def main():
    program, rounds = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3
    with tempfile.TemporaryDirectory() as scratch:
        server = Served(program, pathlib.Path(scratch) / "wide")
        try:
            ok = measure_served(server, rounds)
            if len(sys.argv) > 4:
                ok &= measure_files(sys.argv[3], sys.argv[4], rounds)
        except Missing as e:
            print(e)
            return 77
        finally:
            server.close()
    print(f"{os.getloadavg()[0]:.1f} processes on {os.cpu_count()} cores")
    return int(not ok)


if __name__ == "__main__":
    sys.exit(main())
