#!/usr/bin/env python3
"""trace.py PAGE-512.html PAGE-2000.html [ROUNDS] - two bars of the page of attention, in headless Chromium, over the loopback:

- 512 tokens, 12 x 12 heads: seconds from the request to the first paint that shows something (bar 0.5), and until the head
  view is drawn;
- 2,000 tokens: frames a second while the pointer moves over the map and while the page scrolls, by the frames that
  Chromium's own trace says were drawn (bar 30).

Medians over the rounds.  Ends with 1 where a bar is missed, with 77 without Chromium.  make test-page-speed makes the pages."""
import functools
import http.server
import json
import os
import statistics
import sys
import threading
import time

from browser import Browser, Missing


class Traced(Browser):
    """A browser that keeps what its trace tells."""

    def message(self):
        m = super().message()
        if m.get("method") == "Tracing.dataCollected":
            self.events += m["params"]["value"]
        self.traced |= m.get("method") == "Tracing.tracingComplete"
        return m

    def frames(self, act):
        """Frames a second that were drawn while act() ran."""
        self.events, self.traced = [], False
        self.send("Tracing.start", transferMode="ReportEvents", traceConfig={
            "includedCategories": ["devtools.timeline", "disabled-by-default-devtools.timeline.frame"]})
        began = time.monotonic()
        act()
        seconds = time.monotonic() - began
        self.send("Tracing.end")
        while not self.traced:
            self.message()
        return sum(e["name"] == "DrawFrame" for e in self.events) / seconds

    events, traced = (), False


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def first_paint(address):
    with Browser(1400, 900) as b:
        drawn = b.open(address)
        paint = b.evaluate("performance.getEntriesByType('paint').find(p => p.name === 'first-contentful-paint').startTime")
        return paint / 1e3, drawn


def fluid(address):
    with Traced(1400, 900) as b:
        b.open(address)

        def point():
            for i in range(120):
                b.move(300 + 5 * i, 250 + 2 * i)
                time.sleep(0.012)

        def scroll():
            b.send("Input.synthesizeScrollGesture", x=700, y=450, yDistance=-1200, speed=600, gestureSourceType="mouse")
            b.send("Input.synthesizeScrollGesture", x=700, y=450, yDistance=1200, speed=600, gestureSourceType="mouse")
        return b.frames(point), b.frames(scroll)


def main():
    small, large = sys.argv[1], sys.argv[2]
    rounds = int(sys.argv[3]) if len(sys.argv) > 3 else 3
    folder = os.path.dirname(os.path.abspath(small))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    at = f"http://127.0.0.1:{server.server_port}/"
    try:
        paints = [first_paint(at + os.path.basename(small)) for _ in range(rounds)]
        frames = [fluid(at + os.path.basename(large)) for _ in range(rounds)]
    except Missing as e:
        print(e)
        return 77
    paint, drawn = (statistics.median(x) for x in zip(*paints))
    point, scroll = (statistics.median(x) for x in zip(*frames))
    print(json.dumps({"first_paint_s": round(paint, 3), "head_view_drawn_s": round(drawn, 3), "frames_per_s_pointing": round(point, 1),
                      "frames_per_s_scrolling": round(scroll, 1), "rounds": rounds}))
    return int(paint > 0.5 or point < 30 or scroll < 30)


if __name__ == "__main__":
    sys.exit(main())
