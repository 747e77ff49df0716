"""timing.py - how long something takes, again and again: what the benchmarks against peers share."""
import time

WARM_UP = 0.05  # seconds: a core runs the tiles of AMX at a third of their speed for the first 30 ms


def times(run, seconds):
    """Seconds of each of three runs or more, until so many have passed, behind WARM_UP that are not counted."""
    start = time.perf_counter()
    run()
    while time.perf_counter() - start < WARM_UP:
        run()
    taken, start = [], time.perf_counter()
    while len(taken) < 3 or time.perf_counter() - start < seconds:
        t = time.perf_counter()
        run()
        taken.append(time.perf_counter() - t)
    return taken


def logged_rate(first, last):
    """Tokens (images, labels) a second between two reports of a run's log.  A GPU is ahead and its losses are read several at a
    time, so "time" is the same for all of them; tokens_per_s is of the run so far, in which each update has its share."""
    seconds = lambda report: report["step"] / report["tokens_per_s"]
    return (last["step"] - first["step"]) / (seconds(last) - seconds(first))
