"""timing.py - how long something takes, again and again: what the benchmarks against peers share."""
import time


def times(run, seconds):
    """Seconds of each of three runs or more, until so many have passed, behind one that is not counted."""
    run()
    taken, start = [], time.perf_counter()
    while len(taken) < 3 or time.perf_counter() - start < seconds:
        t = time.perf_counter()
        run()
        taken.append(time.perf_counter() - t)
    return taken
