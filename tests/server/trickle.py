#!/usr/bin/env python3
"""trickle.py - what clients that send a byte now and then cost those that do not.

    tests/server/trickle.py [--fovea build/fovea] [--connections 1000] [--clients 50] [--rounds 5]

A server answers small requests of so many clients, each over one connection, twice a round: alone, and beside connections
that send a header a byte every --every seconds, from a process of their own: threads beside those of the clients would take
Python's lock from them.  Printed: the 99th percentile of both, the ratio of their medians over the rounds (bar 1.2), whether
the server has closed every trickling connection by its deadline, and the server's CPU time of a byte that trickles in.
"""
import argparse
import http.client
import json
import multiprocessing
import os
import pathlib
import re
import select
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
MODEL = HERE.parent / "golden/stories260K"


class Trickles:
    """One thread for all: it sends one byte to one of them after the other, evenly over `every` seconds."""

    def __init__(self, port, n, every):
        self.sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(n)]
        self.every = every
        for s in self.sockets:
            s.setblocking(False)

    def run(self, going):
        """Until going() is false; returns how many bytes were sent."""
        text, at = b"GET /livez HTTP/1.1\r\nHost: slow\r\nX-Slow: " + b"a" * 4096, 0
        tick = 0.01
        while going():
            share = max(1, int(len(self.sockets) * tick / self.every))
            for i in range(share):
                k = (at + i) % len(self.sockets)
                try:
                    self.sockets[k].send(text[(at + i) // len(self.sockets):][:1])
                except OSError:
                    pass
            at += share
            time.sleep(tick)
        return at

    def wait_closed(self, seconds):
        """How many of them the server has closed, at most so many seconds from now."""
        poll, left = select.poll(), {s.fileno(): s for s in self.sockets}
        until = time.monotonic() + seconds
        for fd in left:
            poll.register(fd, select.POLLIN | select.POLLHUP)
        while left and time.monotonic() < until:
            for fd, _ in poll.poll(100):
                try:
                    ended = not left[fd].recv(4096)
                except BlockingIOError:
                    continue
                except OSError:
                    ended = True
                if ended:
                    poll.unregister(fd)
                    left.pop(fd).close()
        return len(self.sockets) - len(left)


def trickle(pipe, port, n, every):
    """The other process: connects, sends until it is told to stop, and tells what became of the connections."""
    slow = Trickles(port, n, every)
    pipe.send("open")
    sent = slow.run(lambda: not pipe.poll())
    pipe.recv()
    pipe.send((sent, slow.wait_closed(15)))


def ask(port, times, seconds):
    """Completions of a few tokens over one connection, for so many seconds."""
    body = json.dumps({"prompt": "Once upon a time", "max_tokens": 4, "temperature": 0})
    c, until = http.client.HTTPConnection("127.0.0.1", port), time.monotonic() + seconds
    while time.monotonic() < until:
        began = time.perf_counter()
        c.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
        r = c.getresponse()
        r.read()
        assert r.status == 200, r.status
        times.append(time.perf_counter() - began)
        time.sleep(0.2)


def p99(port, clients, seconds):
    times = []
    threads = [threading.Thread(target=ask, args=(port, times, seconds)) for _ in range(clients)]
    for i, t in enumerate(threads):
        t.start()
        time.sleep(0.2 / clients)
    for t in threads:
        t.join()
    return statistics.quantiles(times, n=100)[98]


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def start_trickles(port, o):
    """The process, its pipe, once all connections are open."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.Process(target=trickle, args=(there, port, o.connections, o.every), daemon=True)
    process.start()
    here.recv()
    return process, here


def end_trickles(process, pipe):
    """Bytes that were sent, and connections that the server has closed."""
    pipe.send("stop")
    told = pipe.recv()
    process.join()
    return told


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--fovea", default="build/fovea")
    p.add_argument("--connections", type=int, default=1000)
    p.add_argument("--clients", type=int, default=50)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--seconds", type=float, default=4)
    p.add_argument("--every", type=float, default=1)
    o = p.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        log = pathlib.Path(scratch) / "log"
        with open(log, "wb") as to:
            server = subprocess.Popen([o.fovea, "serve", "-m", str(MODEL), "--port", "0", "--quiet"], stderr=to)
        while not (found := re.search(r"listening at http://[^:]*:(\d+)", log.read_text())):
            time.sleep(0.05)
            assert server.poll() is None, log.read_text()
        port, alone, beside, closed, all_ = int(found.group(1)), [], [], 0, 0
        p99(port, o.clients, 1)  # warm
        for _ in range(o.rounds):
            alone.append(p99(port, o.clients, o.seconds))
            process, pipe = start_trickles(port, o)
            beside.append(p99(port, o.clients, o.seconds))
            closed += end_trickles(process, pipe)[1]
            all_ += o.connections
        process, pipe = start_trickles(port, o)
        before = cpu_seconds(server.pid)
        time.sleep(2)
        cost = cpu_seconds(server.pid) - before
        sent, _ = end_trickles(process, pipe)
        server.terminate()
        code = server.wait()
    ratio = statistics.median(beside) / statistics.median(alone)
    print(json.dumps({"alone_p99_ms": [round(1e3 * x, 2) for x in alone], "beside_p99_ms": [round(1e3 * x, 2) for x in beside],
                      "ratio": round(ratio, 3), "closed": f"{closed} of {all_}", "cpu_us_a_byte": round(1e6 * cost / max(1, sent), 1), "exit": code}))
    return 0 if closed == all_ and not code else 1


if __name__ == "__main__":
    sys.exit(main())
