#!/usr/bin/env python3
"""soak.py FOVEA [MINUTES] [CLIENTS] [PAUSE] - a server under mixed load: of its requests 10 % are hostile, 5 % of the clients go in the
middle of their answer, and models are read again every minute.

Every other answer is compared with the one that the server gave before the load began: the same text for the same
request, whoever is beside it and however often the model was read again.  Fails at a wrong answer, at a request that was
dropped though its client stayed, at a status of 500 or more, and where resident memory at the end is more than 1 % above
what it was when the load had settled (a fifth of the time, at least a minute).  With SANITIZED=1 in the environment memory is
not judged, since sanitizers keep what was freed; what they find ends the server with another status, and is printed.
Each client waits PAUSE seconds (0) after a request, so that a soak can run beside other work."""
import http.client
import json
import os
import random
import signal
import socket
import sys
import tempfile
import threading
import time
from urllib.parse import urlsplit

from serving import Server

TEXT = "Once upon a time there was a little"
REQUESTS = [
    ("/v1/completions", {"model": "chat", "prompt": TEXT, "max_tokens": 24, "temperature": 0}),
    ("/v1/completions", {"model": "chat", "prompt": TEXT, "max_tokens": 16, "temperature": 0.9, "seed": 7, "n": 2}),
    ("/v1/completions", {"model": "chat", "prompt": "The cat", "max_tokens": 12, "temperature": 0, "logprobs": 3,
                         "attention": {"layers": [-1], "heads": [0]}}),
    ("/v1/chat/completions", {"model": "chat", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20, "seed": 1}),
    ("/v1/chat/completions", {"model": "chat", "messages": [{"role": "user", "content": "A number"}], "max_tokens": 30, "seed": 3,
                              "response_format": {"type": "json_object"}}),
    ("/v1/embeddings", {"model": "vectors", "input": ["a text", "another"]}),
    ("/v1/classify", {"model": "labels", "input": "a fine film"}),
    ("/v1/tag", {"model": "tags", "input": "Ada lives in London"}),
    ("/v1/answer", {"model": "answers", "question": "who", "context": "Ada wrote it"}),
    ("/v1/fill", {"model": "masks", "input": "the [MASK] is"}),
    ("/v1/translate", {"model": "translation", "input": "a b", "max_tokens": 12}),
    ("/v1/attention", {"model": "chat", "input": TEXT, "attention": {"layers": [1], "heads": "mean"}, "rows": [2, 5]}),
    ("/v1/attention", {"model": "chat", "input": "The cat sat on the mat", "attention": {"layers": [2]}, "pool": 4}),
    ("/v1/heads", {"model": "chat", "input": "The dog"}),
    ("/tokenize", {"model": "chat", "text": TEXT}),
]
HOSTILE = [
    b"GET / HTTP/1.1\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
    b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 90\r\n\r\n{\"prompt\":", b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 13\r\n\r\n{\"prompt\":[9]",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 16\r\n\r\n{\"messages\":[{}]", b"", b"\r\n\r\n\r\n",
]


def answer_of(where, path, body):
    """The answer without what differs from one request to the next: ids, times, tokens that a cache had."""
    c = http.client.HTTPConnection(where, timeout=120)
    try:
        c.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        r = c.getresponse()
        text = r.read()
    finally:
        c.close()
    j = json.loads(text)
    for key in ("id", "created"):
        j.pop(key, None)
    j.get("usage", {}).pop("prompt_tokens_details", None)
    return r.status, json.dumps(j, sort_keys=True)


class Soak:
    def __init__(self, server, clients, pause):
        self.server, self.clients, self.pause = server, clients, pause
        self.where = urlsplit(server.address).netloc
        self.lock = threading.Lock()
        self.count = {"answers": 0, "hostile": 0, "gone": 0, "wrong": 0, "dropped": 0, "errors": 0, "reloads": 0}
        self.ends = False
        self.want = [answer_of(self.where, *r) for r in REQUESTS]
        self.told = []

    def add(self, what, example=None):
        with self.lock:
            self.count[what] += 1
            if example and len(self.told) < 5:
                self.told.append(f"{what}: {example}")

    def attack(self, dice):
        host, port = self.where.split(":")
        try:
            with socket.create_connection((host, int(port)), timeout=20) as s:
                s.sendall(dice.choice(HOSTILE))
                if dice.random() < 0.5:
                    s.settimeout(0.2)
                    s.recv(100)
        except OSError:
            pass
        self.add("hostile")

    def leave(self, dice):
        """A stream whose client goes after a token or two."""
        body = json.dumps({"model": "chat", "prompt": TEXT, "max_tokens": 200, "stream": True}).encode()
        host, port = self.where.split(":")
        try:
            with socket.create_connection((host, int(port)), timeout=60) as s:
                s.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                for _ in range(dice.randrange(4)):
                    s.recv(300)
        except OSError:
            pass
        self.add("gone")

    def ask(self, dice):
        i = dice.randrange(len(REQUESTS))
        try:
            got = answer_of(self.where, *REQUESTS[i])
        except (OSError, http.client.HTTPException, ValueError) as e:
            self.add("dropped", f"{REQUESTS[i][0]}: {e!r}")
            return
        if got[0] >= 500:
            self.add("errors", f"{REQUESTS[i]}: {got}")
        elif got != self.want[i]:
            self.add("wrong", f"{REQUESTS[i]}: {got}, not {self.want[i]}")
        self.add("answers")

    def work(self, seed):
        dice = random.Random(seed)
        while not self.ends:
            x = dice.random()
            (self.attack if x < 0.10 else self.leave if x < 0.15 else self.ask)(dice)
            time.sleep(self.pause)

    def resident(self):
        with open(f"/proc/{self.server.process.pid}/status", encoding="ascii") as f:
            return next(int(line.split()[1]) for line in f if line.startswith("VmRSS"))

    def run(self, seconds):
        threads = [threading.Thread(target=self.work, args=(i,)) for i in range(self.clients)]
        for t in threads:
            t.start()
        start, sizes, reload_at = time.monotonic(), [], 60.0
        while (now := time.monotonic() - start) < seconds:
            time.sleep(2)
            sizes.append((now, self.resident()))
            if now >= reload_at:
                self.server.process.send_signal(signal.SIGHUP)
                self.count["reloads"] += 1
                reload_at += 60
        self.ends = True
        for t in threads:
            t.join()
        return sizes


def median(sizes, first, last):
    inside = sorted(size for at, size in sizes if first <= at < last)
    return inside[len(inside) // 2] if inside else 0


def main():
    program = sys.argv[1] if len(sys.argv) > 1 else "build/fovea"
    seconds = 60 * float(sys.argv[2] if len(sys.argv) > 2 else 60)
    clients = int(sys.argv[3]) if len(sys.argv) > 3 else 16
    pause = float(sys.argv[4]) if len(sys.argv) > 4 else 0
    with tempfile.TemporaryDirectory() as scratch:
        with Server(program, scratch, "--quiet", "--header-timeout", "3", "--kv-budget", "16", "--prefix-budget", "4") as server:
            soak = Soak(server, clients, pause)
            sizes = soak.run(seconds)
            after = [answer_of(soak.where, *r) for r in REQUESTS]
        drained, log = server.code, server.log.read_text(errors="replace")
    settled = max(60.0, seconds / 5)
    early, late = median(sizes, settled, 2 * settled), median(sizes, seconds - settled, seconds + 10)
    drift = 100 * (late / early - 1) if early and late else 0
    print(f"{seconds / 60:g} minutes, {clients} clients: {soak.count}")
    print(f"resident {early} KiB when it had settled, {late} KiB at the end: {drift:+.2f} %; exit {drained}")
    for line in soak.told:
        print(line[:1000])
    if drained:
        print(log[-8000:])
    grown = drift > 1 and not os.environ.get("SANITIZED")
    bad = soak.count["wrong"] + soak.count["dropped"] + soak.count["errors"] + (after != soak.want) + grown + (drained != 0)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
