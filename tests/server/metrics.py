#!/usr/bin/env python3
"""metrics.py [FOVEA] - /metrics read by Prometheus' own Python parser while requests run: every family has a type and a help
text, counters grow by what was asked, histograms are cumulative and agree with their counts.  77 without prometheus_client."""
import json
import sys
import tempfile
import urllib.request

from serving import Server

try:
    from prometheus_client.parser import text_string_to_metric_families
except ImportError:
    text_string_to_metric_families = None


def families(address):
    with urllib.request.urlopen(address + "/metrics") as r:
        assert r.headers["Content-Type"].startswith("text/plain; version=0.0.4"), r.headers["Content-Type"]
        return {f.name: f for f in text_string_to_metric_families(r.read().decode())}


def total(family, suffix="", **labels):
    return sum(s.value for s in family.samples
               if s.name == family.name + suffix and all(s.labels.get(k) == v for k, v in labels.items()))


def check_histogram(f):
    """Buckets never fall, and the last of them is the count."""
    series = {}
    for s in f.samples:
        rest = tuple(sorted((k, v) for k, v in s.labels.items() if k != "le"))
        series.setdefault(rest, {"at": [], "count": None, "sum": None})
        if s.name.endswith("_bucket"):
            series[rest]["at"].append((float(s.labels["le"]), s.value))
        else:
            series[rest][s.name.rsplit("_", 1)[1]] = s.value
    for rest, one in series.items():
        values = [v for _, v in sorted(one["at"])]
        assert values == sorted(values) and one["at"] == sorted(one["at"]), (f.name, rest)
        assert one["at"][-1] == (float("inf"), one["count"]), (f.name, rest)
        assert one["sum"] is not None and (one["sum"] > 0) == (one["count"] > 0), (f.name, rest)
    return len(series)


def main():
    if not text_string_to_metric_families:
        print("skipped: prometheus_client is not installed")
        return 77
    program = sys.argv[1] if len(sys.argv) > 1 else "build/fovea"
    asked, tokens = 5, 12
    with tempfile.TemporaryDirectory() as scratch, Server(program, scratch, "--quiet") as server:
        before = families(server.address)
        body = json.dumps({"model": "chat", "prompt": "Once upon a time", "max_tokens": tokens, "temperature": 0}).encode()
        for _ in range(asked):
            with urllib.request.urlopen(server.address + "/v1/completions", body) as r:
                assert json.load(r)["usage"]["completion_tokens"] == tokens
        after = families(server.address)
    for name, f in after.items():
        assert name.startswith("fovea_") and f.documentation and f.type in ("counter", "gauge", "histogram"), name
    grown = {name: total(after[name], "_total") - total(before[name], "_total") for name, f in after.items() if f.type == "counter"}
    assert grown["fovea_generated_tokens"] == asked * tokens, grown
    assert grown["fovea_http_requests"] == asked + 1, grown  # the first reading of the figures is one
    assert all(g >= 0 for g in grown.values()), grown
    series = sum(check_histogram(f) for f in after.values() if f.type == "histogram")
    first = next(f for name, f in after.items() if "first_token" in name)
    assert total(first, "_count", model="chat") == asked, first
    kinds = [f.type for f in after.values()]
    print(f"/metrics: {len(after)} families ({', '.join(f'{kinds.count(k)} {k}s' for k in sorted(set(kinds)))}), "
          f"{series} histograms in all, read by prometheus_client: fine")
    return server.code


if __name__ == "__main__":
    sys.exit(main())
