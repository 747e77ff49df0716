#!/usr/bin/env python3
"""overlap.py FOVEA [HOSTS [RATE [UPDATES]]] - how much of the communication of a training computing hides, on hosts that are network
namespaces (bench/netns.sh, needs root) with links of RATE, 10gbit where not said.

The model is GPT-2 of 124 million parameters: its 12 blocks of width 768, with a table of 400 tokens, which has a gradient of its own at the
end of backward.  Prints, over the updates behind the first, the seconds of buckets of gradients on their way and the share of them during
which the same rank computed (by the trace), and the share of all communication, parameters gathered after the optimiser included, that the
training itself reports as hidden.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile

import small_gpt2


def shared(events, spans):
    """Seconds of events, (from, to) each, that lie within spans."""
    return sum(max(0, min(b, d) - max(a, c)) for a, b in events for c, d in spans)


def by_rank(trace, name):
    found = {}
    for e in trace:
        if e.get("ph") == "X" and e["name"] == name and e["args"]["update"] > 1:
            found.setdefault(e["pid"], []).append((e["ts"] * 1e-6, (e["ts"] + e["dur"]) * 1e-6))
    return found


def main():
    fovea = os.path.abspath(sys.argv[1])
    hosts, rate = int(sys.argv[2]) if len(sys.argv) > 2 else 2, sys.argv[3] if len(sys.argv) > 3 else "10gbit"
    updates = int(sys.argv[4]) if len(sys.argv) > 4 else 5
    script = os.path.dirname(os.path.abspath(__file__)) + "/netns.sh"
    with tempfile.TemporaryDirectory() as folder:
        small_gpt2.write(folder, width=768, layers=12, heads=12, positions=128, context=64, updates=updates, batch=256 * hosts, shards=hosts)
        command = [script, str(hosts), rate, fovea, "train", "r.ini", "-o", "run", "-t", "1", "-q", "--trace", "trace.json"]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        trace = json.load(open(folder + "/trace.json"))
        lines = [json.loads(x) for x in open(folder + "/run/train.jsonl") if '"train"' in x]
    buckets, computing, waits = (by_rank(trace, x) for x in ("reduce bucket", "forward and backward", "wait for buckets"))
    for r in sorted(buckets):
        sent = sum(b - a for a, b in buckets[r])
        hidden = shared(buckets[r], computing[r]) - shared(buckets[r], waits.get(r, []))
        step = statistics.median(b - a for a, b in computing[r])
        print("rank %d: forward and backward %.2f s, gradients on their way %.2f s an update, of which %.0f %% beside computing" %
              (r, step, sent / (updates - 1), 100 * hidden / sent))
    print("all communication of rank 0, as reported: %.0f %% hidden" % (100 * lines[-1]["overlap"]))


if __name__ == "__main__":
    main()
