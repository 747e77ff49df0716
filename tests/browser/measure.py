#!/usr/bin/env python3
"""measure.py PAGE.html [LIMIT_MS] - how long a page of attention takes from a click or a move of the pointer to the frame
that shows it, in headless Chromium.  Ends with 1 if the median of any action is above the limit (100 ms), 77 without
Chromium.  The greatest time is printed beside it; on a machine that does other work it is the other work's."""
import os
import pathlib
import statistics
import sys

from browser import Browser, run

# From the event to the moment after the frame that it caused: a message that is posted in the frame arrives behind it.
HOOK = """(() => {
  window.times = [];
  const watch = name => addEventListener(name, e => {
    const start = e.timeStamp;
    requestAnimationFrame(() => { const c = new MessageChannel(); c.port1.onmessage = () => times.push([name, performance.now() - start]); c.port2.postMessage(0); });
  }, true);
  watch("click"); watch("pointermove");
})()"""
CENTRE = """(s => { const r = document.querySelectorAll(s)[%d].getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })(%r)"""


def settled(b):
    b.evaluate("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(r, 0))))")


def times(b):
    settled(b)
    return b.evaluate("times.splice(0)")


def clicks(b, selector, which):
    out = []
    for k in which:
        x, y = b.evaluate(CENTRE % (k, selector))
        b.move(x, y)
        times(b)
        b.click(x, y)
        out += [t for name, t in times(b) if name == "click"]
    return out


def moves(b):
    x, y, w, h = b.evaluate("(() => { const r = document.querySelector('#stage').getBoundingClientRect(); return [r.x, r.y, r.width, r.height]; })()")
    out = []
    for k in range(40):
        b.move(x + 20 + (w - 40) * (k * 7 % 40) / 40, y + 20 + (h - 40) * (k * 11 % 40) / 40)
        out += [t for name, t in times(b) if name == "pointermove"]
    return out


def tell(name, list_, limit):
    median = statistics.median(list_)
    print(f"{name:40} {len(list_):3}  least {min(list_):5.1f}  median {median:5.1f}  greatest {max(list_):5.1f} ms{'  TOO SLOW' if median > limit else ''}")
    return median <= limit


def main():
    path, limit = pathlib.Path(sys.argv[1]).resolve(), float(sys.argv[2]) if len(sys.argv) > 2 else 100
    with Browser(1400, 900) as b:
        print(f"{path.name}: {path.stat().st_size / 1e6:.0f} MB, opened in {b.open(path.as_uri()):.1f} s; "
              f"{os.getloadavg()[0]:.1f} processes on {os.cpu_count()} cores")
        b.evaluate(HOOK)
        layers = b.evaluate("document.querySelectorAll('#grid button.all').length")
        cells = b.evaluate("document.querySelectorAll('#grid button:not(.all)').length")
        head, every = "#grid button:not(.all)", "#grid button.all"
        some = [k * 17 % cells for k in range(20)]
        ok = True
        for view in ("heat", "lines"):
            b.click(*b.evaluate(CENTRE % (0, f"input[value={view}]")))
            ok &= tell(f"{view}: click on a head not seen before", clicks(b, head, some), limit)
            ok &= tell(f"{view}: click on a head seen before", clicks(b, head, some), limit)
            ok &= tell(f"{view}: pointer over a head's map", moves(b), limit)
            ok &= tell(f"{view}: click on all heads of a layer", clicks(b, every, range(layers)), limit)
            ok &= tell(f"{view}: pointer over all heads", moves(b), limit)
            ok &= tell(f"{view}: click on a token", [t for k in range(6) for t in clicks(b, "#stage", [0])], limit)
            ok &= tell(f"{view}: zoom", clicks(b, ".tools button", [1, 1, 1, 0, 2]), limit)
        for p in b.problems:
            print("problem:", p)
        return 0 if ok and not b.problems else 1


if __name__ == "__main__":
    run(main)
