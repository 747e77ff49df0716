#!/usr/bin/env python3
"""Memory and speed of `fovea serve` where all clients share a system prompt.

    bench/serve_prefix.py MODEL [--fovea PATH ...] [--copied] [--clients 8] [--shared 512] [--rounds 5]

With --copied each program also serves without --kv-budget, where each row has a copy of the prefix.

Each request is the same `shared` tokens, 16 of its own, and 64 to write; prefixes are kept.  Programs (several builds of
fovea) take turns, each round starts a server afresh, and figures are medians over the rounds: tokens a second, the CPU time
of a token, and the most that the process's memory grew over what it was before the first request.  Memory is counted as the
system does for several users of one page (Pss): a page that two rows show counts once.
"""
import argparse
import http.client
import json
import os
import random
import signal
import statistics
import subprocess
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def parse():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("model")
    p.add_argument("--fovea", nargs="+", default=[os.path.join(ROOT, "build", "fovea")])
    p.add_argument("--copied", action="store_true")
    p.add_argument("--clients", type=int, default=8)
    p.add_argument("--shared", type=int, default=512)
    p.add_argument("--own", type=int, default=16)
    p.add_argument("--new", type=int, default=64)
    p.add_argument("--turns", type=int, default=2, help="requests of a client")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--port", type=int, default=8197)
    p.add_argument("--dtype", default="q8")
    return p.parse_args()


def memory(pid):
    """(proportional set, resident) in KiB."""
    found = {}
    with open(f"/proc/{pid}/smaps_rollup") as f:
        for line in f:
            name, _, rest = line.partition(":")
            if name in ("Pss", "Rss"):
                found[name] = int(rest.split()[0])
    return found["Pss"], found["Rss"]


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ask(port, ids, new):
    body = json.dumps({"prompt": ids, "max_tokens": new, "min_tokens": new, "temperature": 0})
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    c.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    r = c.getresponse()
    answer = json.loads(r.read())
    c.close()
    if r.status != 200:
        raise SystemExit(f"status {r.status}: {answer}")
    return answer["choices"][0]["text"]


def wait_ready(port):
    for _ in range(600):
        try:
            c = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            c.request("GET", "/readyz")
            if c.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise SystemExit("the server did not become ready")


def client(o, system, seed, texts):
    rng = random.Random(seed)
    for turn in range(o.turns):
        own = [rng.randrange(3, 400) for _ in range(o.own)]
        texts[seed, turn] = ask(o.port, system + own, o.new)


def measure(o, program, copied):
    command = [program, "serve", "-m", o.model, "--port", str(o.port), "--dtype", o.dtype, "--quiet",
               "--batch", str(o.clients), "--prefix-budget", "512"] + ([] if copied else ["--kv-budget", "4096"])
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_ready(o.port)
        rng = random.Random(7)
        system = [rng.randrange(3, 400) for _ in range(o.shared)]
        ask(o.port, system[:8], 1)
        before, _ = memory(server.pid)
        ask(o.port, system + [5] * o.own, 1)  # the prefix is kept from here on
        texts, most, resident = {}, 0, 0
        threads = [threading.Thread(target=client, args=(o, system, i, texts)) for i in range(o.clients)]
        began, cpu = time.monotonic(), cpu_seconds(server.pid)
        for t in threads:
            t.start()
        while any(t.is_alive() for t in threads):
            pss, rss = memory(server.pid)
            most, resident = max(most, pss - before), max(resident, rss)
            time.sleep(0.25)
        seconds, cpu = time.monotonic() - began, cpu_seconds(server.pid) - cpu
        tokens = o.clients * o.turns * o.new
        return {"tokens_per_s": tokens / seconds, "cpu_ms": 1e3 * cpu / tokens, "MiB": most / 1024}, texts
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()


def main():
    o = parse()
    ways = [(p, copied) for p in o.fovea for copied in ((False, True) if o.copied else (False,))]
    rows = {way: [] for way in ways}
    answers = None
    for _ in range(o.rounds):
        for way in ways:
            row, texts = measure(o, *way)
            rows[way].append(row)
            if answers is not None and texts != answers:
                raise SystemExit(f"{way[0]}: other texts than the server before it")
            answers = texts
    for program, copied in ways:
        all_ = rows[program, copied]
        middle = {k: statistics.median(r[k] for r in all_) for k in all_[0]}
        print(f"{program}, a prefix {'copied into each row' if copied else 'stored once'}: {middle['tokens_per_s']:.1f} tokens/s, "
              f"{middle['cpu_ms']:.2f} ms of CPU a token, {middle['MiB']:.1f} MiB more than before; all texts equal")


if __name__ == "__main__":
    main()
