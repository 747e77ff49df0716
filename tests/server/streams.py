#!/usr/bin/env python3
"""streams.py - many open streams, clients that are killed, and SIGTERM under load.

    tests/server/streams.py [--fovea build/fovea] [--streams 2000] [--clients 50] [--seconds 10] [--kills 20] [--part 1 ..]

1. So many streams wait for a row of the batch, since clients of a greater priority always have all of them.  Printed: the
   server's memory of a stream, and whether each of them was answered, with the right text, once these clients were gone.
2. A process of 64 clients is killed (SIGKILL) in the middle of its streams, again and again.  Printed: how long the server
   took to free all of their rows, and how many steps its batch made meanwhile.
3. SIGTERM comes while 64 clients read streams.  Printed: how many answers came whole, the exit status, and the seconds.
4. Clients go in the first milliseconds of their stream, while it is being begun: for the thread sanitizer above all."""
import argparse
import http.client
import json
import multiprocessing
import pathlib
import random
import re
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

MODEL = pathlib.Path(__file__).resolve().parent.parent / "golden/stories260K"
BODY = {"prompt": "Once upon a time", "temperature": 0, "stream": True}


class Server:
    def __init__(self, fovea, scratch, *options):
        self.log = pathlib.Path(scratch) / "log"
        with open(self.log, "wb") as to:
            self.process = subprocess.Popen([fovea, "serve", "-m", str(MODEL), "--port", "0", "--quiet", *options], stderr=to)
        while not (found := re.search(r"listening at http://[^:]*:(\d+)", self.log.read_text())):
            time.sleep(0.05)
            assert self.process.poll() is None, self.log.read_text()
        self.port = int(found.group(1))
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port)

    def metrics(self):
        self.connection.request("GET", "/metrics")
        text = self.connection.getresponse().read().decode()
        return {name: float(x) for name, x in re.findall(r"^fovea_(\w+)\{model=\"[^\"]*\"\} ([\d.]+)$", text, re.M)}

    def resident(self):
        text = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", text).group(1))

    def end(self):
        """The exit status; where it is not 0, what the server has said, a sanitizer's finding for instance."""
        self.process.terminate()
        return self.wait()

    def wait(self):
        code = self.process.wait()
        if code:
            print(self.log.read_text(errors="replace")[-8000:], flush=True)
        return code


def request(**more):
    body = json.dumps({**BODY, **more}).encode()
    return b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def open_stream(port, **more):
    s = socket.create_connection(("127.0.0.1", port))
    s.sendall(request(**more))
    return s


def text_of(answer):
    """The text of a stream, or None where it is not whole."""
    if b"data: [DONE]" not in answer:
        return None
    pieces = re.findall(rb"data: (\{.*\})", answer)
    return "".join(c["text"] for p in pieces for c in json.loads(p)["choices"])


def read_to_end(s):
    answer = b""
    while piece := s.recv(65536):
        answer += piece
    return answer


def read_all(sockets):
    """What each has sent when it is closed."""
    found, answers = selectors.DefaultSelector(), {s: b"" for s in sockets}
    for s in sockets:
        found.register(s, selectors.EVENT_READ)
    while found.get_map():
        for key, _ in found.select():
            piece = key.fileobj.recv(65536)
            answers[key.fileobj] += piece
            if not piece:
                found.unregister(key.fileobj)
                key.fileobj.close()
    return list(answers.values())


def keep_asking(pipe, port, clients):
    """A process of its own, as clients are: threads beside those that open streams would take Python's lock from them."""
    served = []

    def work():
        while not pipe.poll():
            served.append(text_of(read_to_end(open_stream(port, max_tokens=64, priority=1))))

    threads = [threading.Thread(target=work) for _ in range(clients)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    pipe.send((len(served), len(set(served)) == 1 and None not in served))


def wait_streams(o):
    with tempfile.TemporaryDirectory() as scratch:
        server = Server(o.fovea, scratch, "--batch", "2", "--queue", "8192")
        here, there = multiprocessing.Pipe()
        want = text_of(read_to_end(open_stream(server.port, max_tokens=8)))
        clients = multiprocessing.Process(target=keep_asking, args=(there, server.port, o.clients), daemon=True)
        clients.start()
        time.sleep(3)
        before = server.resident()
        streams = [open_stream(server.port, max_tokens=8, priority=-1) for _ in range(o.streams)]
        time.sleep(o.seconds)
        beside, waiting = server.resident(), server.metrics()["requests_waiting"]
        here.send("stop")
        answers = [text_of(a) for a in read_all(streams)]
        served, same = here.recv()
        clients.join()
        code = server.end()
    right = sum(a == want for a in answers)
    print(f"{o.streams} streams beside {o.clients} clients: {waiting:.0f} waited with clients', {right} answered with the right text; "
          f"{(beside - before) / o.streams:.1f} KiB a stream ({before} KiB before, {beside} KiB with them); {served} answers "
          f"to the clients, {'all alike' if same else 'NOT all alike'}; exit {code}", flush=True)
    return right == o.streams and same and not code


def kill_clients(o):
    times, steps = [], []
    with tempfile.TemporaryDirectory() as scratch:
        server = Server(o.fovea, scratch, "--batch", "32")
        for _ in range(o.kills):
            clients = subprocess.Popen([o.fovea, "bench", "serve", "--port", str(server.port), "--clients", "64", "--requests", "640",
                                        "--len", "8", "--new", "400"], stdout=subprocess.DEVNULL)
            while server.metrics()["requests_running"] < 32:
                time.sleep(0.01)
            time.sleep(0.2)
            before = server.metrics()["decode_steps_total"]
            clients.send_signal(signal.SIGKILL)
            clients.wait()
            began = time.perf_counter()
            while (now := server.metrics())["requests_running"] or now["requests_waiting"]:
                time.sleep(0.001)
            times.append(1e3 * (time.perf_counter() - began))
            steps.append(now["decode_steps_total"] - before)
        code = server.end()
    print(f"{o.kills} kills of 64 clients, 32 of them in the batch: all rows free after {sorted(times)[len(times) // 2]:.1f} ms "
          f"(median; at most {max(times):.1f}), {sorted(steps)[len(steps) // 2]:.0f} steps (at most {max(steps):.0f}) from before the kill; exit {code}",
          flush=True)
    return not code


def drain(o):
    with tempfile.TemporaryDirectory() as scratch:
        server = Server(o.fovea, scratch, "--batch", "32")
        streams = [open_stream(server.port, max_tokens=400) for _ in range(64)]
        while server.metrics()["requests_running"] < 32:
            time.sleep(0.01)
        server.connection.close()
        began = time.monotonic()
        server.process.terminate()
        answers = read_all(streams)
        code = server.wait()
        took = time.monotonic() - began
    whole = [text_of(a) for a in answers]
    print(f"SIGTERM beside 64 streams: {sum(w is not None for w in whole)} came whole, {'all alike' if len(set(whole) - {None}) == 1 else 'NOT ALIKE'}; exit {code} "
          f"after {took:.1f} s (30 are allowed)", flush=True)
    return not code and None not in whole and len(set(whole)) == 1 and took < 30


def go_early(o):
    with tempfile.TemporaryDirectory() as scratch:
        server, until, gone = Server(o.fovea, scratch, "--batch", "8"), time.monotonic() + o.seconds, []

        def work(seed):
            dice = random.Random(seed)
            while time.monotonic() < until:
                s = open_stream(server.port, max_tokens=3)
                time.sleep(dice.random() * dice.choice([0.002, 0.01, 0.05]))
                s.close()
                gone.append(seed)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(12)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        while server.metrics()["requests_running"]:
            time.sleep(0.01)
        right = text_of(read_to_end(open_stream(server.port, max_tokens=3))) is not None
        code = server.end()
    print(f"{len(gone)} clients went early, a last one was {'answered' if right else 'NOT answered'}; exit {code}", flush=True)
    return right and not code


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--fovea", default="build/fovea")
    p.add_argument("--streams", type=int, default=2000)
    p.add_argument("--clients", type=int, default=50)
    p.add_argument("--seconds", type=float, default=10)
    p.add_argument("--kills", type=int, default=20)
    p.add_argument("--part", type=int, nargs="+", default=[1, 2, 3, 4])
    o = p.parse_args()
    good = [(wait_streams, kill_clients, drain, go_early)[i - 1](o) for i in o.part]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
