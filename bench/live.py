"""How soon words are printed while they are spoken: python3 bench/live.py MODEL CLIP.wav .. [--fovea build/fovea] [--rounds 5].

Each clip is written to `fovea transcribe --stream -` in real time, in blocks of 20 ms.  A word is late by the time from its end,
as `--word-timestamps` gives it for the recording, to its last letter on standard output; what the last pass over a piece corrects
is not counted, but the text at the end must be that of the recording.  The real-time factor is CPU time by seconds of sound.

With --fake-clock a block is written when the program waits for it, and time is that of the sound, plus the CPU seconds that the
program took since the last block: what a core of its own would give, on a machine that has other work."""
import argparse
import array
import fcntl
import os
import re
import resource
import statistics
import subprocess
import termios
import threading
import time
import wave


def plain(text):
    return re.findall(r"[a-z0-9']+", text.lower())


def recording(o, clip):
    """Text of the clip, and its words with the seconds at which they end."""
    run = lambda *more: subprocess.run([o.fovea, "transcribe", "-m", o.model, "-t", "1", *more, clip], check=True,
                                       capture_output=True, text=True).stdout
    words = [line.split("\t") for line in run("--word-timestamps").splitlines()]
    return run().strip(), [(w, float(end)) for _, end, text in words for w in plain(text)]


def speak(pipe, raw, rate, began):
    block = rate // 50 * 2
    for i in range(0, len(raw), block):
        wait = began + (i + block) / 2 / rate - time.monotonic()  # a block exists when its last sample was spoken
        if wait > 0:
            time.sleep(wait)
        os.write(pipe.fileno(), raw[i : i + block])
    pipe.close()


def waits(pid, pipe):
    """Whether the program sleeps and has read all that was written."""
    with open(f"/proc/{pid}/stat") as f:
        state = f.read().rsplit(")", 1)[1].split()[0]
    left = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, left)
    return state == "S" and left[0] == 0


def cpu_seconds(pid):
    with open(f"/proc/{pid}/schedstat") as f:
        return int(f.read().split()[0]) / 1e9


def children():
    """CPU seconds of programs that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def in_step(p, raw, rate):
    """As live, by a clock that stands still while the program works."""
    block, out = rate // 50 * 2, []
    os.set_blocking(p.stdout.fileno(), False)
    for i in range(0, len(raw) + block, block):
        before = cpu_seconds(p.pid)
        if i < len(raw):
            os.write(p.stdin.fileno(), raw[i : i + block])
        else:
            p.stdin.close()
        while p.poll() is None and (i >= len(raw) or not waits(p.pid, p.stdin.fileno())):
            time.sleep(0.002)
        took = cpu_seconds(p.pid) - before if p.poll() is None else 0
        while part := p.stdout.read():
            out.append((min(i + block, len(raw)) / 2 / rate + took, part.decode()))
    return out


def live(o, clip):
    """Bytes with the seconds at which they came, and the CPU seconds of the program."""
    with wave.open(clip) as w:
        assert w.getnchannels() == 1 and w.getsampwidth() == 2, "a clip of one channel and 16 bits"
        rate, raw = w.getframerate(), w.readframes(w.getnframes())
    p = subprocess.Popen([o.fovea, "transcribe", "-m", o.model, "-t", "1", "--stream", "--rate", str(rate), "-"],
                         stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    if o.fake_clock:
        asleep = 0  # opening the model sleeps now and then, waiting for samples it does not stop to
        while asleep < 5:
            time.sleep(0.1)
            asleep = asleep + 1 if waits(p.pid, p.stdin.fileno()) else 0
        before, out, after = children(), in_step(p, raw, rate), children()
        return out, after - before, len(raw) / 2 / rate
    began, out = time.monotonic() + o.open, []
    threading.Thread(target=speak, args=(p.stdin, raw, rate, began), daemon=True).start()
    while part := os.read(p.stdout.fileno(), 4096):
        out.append((time.monotonic() - began, part.decode()))
    _, status, used = os.wait4(p.pid, 0)
    assert status == 0, status
    return out, used.ru_utime + used.ru_stime, len(raw) / 2 / rate


def measure(o, clip):
    text, words = recording(o, clip)
    parts, used, seconds = live(o, clip)
    lines = "".join(part for _, part in parts).splitlines()
    assert lines[-1] == text, (lines[-1], text)
    late, at, shown = [], 0, ""
    for when, part in parts:
        if "\n" in shown:
            break  # corrected: those words were printed before
        done = len(plain(shown))
        shown += part
        for word in plain(shown)[done:]:
            if at < len(words) and word == words[at][0]:
                late.append(when - words[at][1])
            at += 1
    return late, used / seconds, len(lines) > 1


if __name__ == "__main__":
    a = argparse.ArgumentParser()
    a.add_argument("model")
    a.add_argument("clips", nargs="+")
    a.add_argument("--fovea", default="build/fovea")
    a.add_argument("--rounds", type=int, default=1)
    a.add_argument("--open", type=float, default=0.5, help="seconds that the model is given to open before anybody speaks")
    a.add_argument("--fake-clock", action="store_true")
    o = a.parse_args()
    for clip in o.clips:
        rounds = [measure(o, clip) for _ in range(o.rounds)]
        middle = lambda values: statistics.median(list(values))
        print(f"{os.path.basename(clip)}: first word {middle(r[0][0] for r in rounds):.2f} s after it was said, "
              f"median {middle(middle(r[0]) for r in rounds):.2f}, latest {max(max(r[0]) for r in rounds):.2f}; "
              f"real-time factor {middle(r[1] for r in rounds):.3f}; {'corrected at the end' if rounds[0][2] else 'never corrected'}")
