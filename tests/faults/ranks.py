#!/usr/bin/env python3
"""ranks.py BUILD N [SEED [KINDS]] - trains with mpirun and, N times, kills, stops or cuts off a rank at a random time.

Every time all ranks must end within 30 seconds of it, and what they print must name the rank; then the run goes on, with another number
of ranks, from the checkpoint that is there.  In the end the model must have the bits of a run of one rank that was never disturbed.
KINDS: some of kill,stop,cut; cut takes the link of a host down, a network namespace (bench/netns.sh), for which it must be root.  mpirun
itself waits for the daemon of a host that is cut off, so it is ended when its ranks have.  `make test-ranks` runs it.
"""
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

DEADLINE = 30  # seconds from the signal
START = 180  # seconds, where a rank was killed that had not joined the others yet: then mpirun ends them
RECIPE = """[model]
model_type = gpt2
n_embd = 48
n_layer = 2
n_head = 2
n_positions = 32
[data]
objective = causal
train = lines.txt
hold_out = 0.1
context = 32
[tokenizer]
kind = byte_bpe
vocab = 280
[train]
updates = %d
batch_tokens = 512
warmup = 5
save_every = 5
eval_every = 20
shards = 4
ema = 0.9
result = ema
"""


NETNS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../bench/netns.sh")


def command(build, ranks, directory, updates):
    run = [build + "/fovea", "train", "r.ini", "-o", directory, "-t", "1", "-q", "--resume", "--set", "train.updates=%d" % updates]
    return run if ranks == 1 else ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(ranks)] + run


def ranks_of(mpirun):
    """Process ids of the ranks below this mpirun, by rank."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent = re.search(r"\nPPid:\s+(\d+)", open("/proc/%s/status" % pid).read())
            variables = open("/proc/%s/environ" % pid, "rb").read().split(b"\0")
        except OSError:
            continue
        if not parent or int(parent.group(1)) != mpirun:
            continue
        for v in variables:
            if v.startswith(b"OMPI_COMM_WORLD_RANK="):
                found[int(v.split(b"=")[1])] = int(pid)
    return found


def has_joined(pid):
    """The rank sends heartbeats."""
    try:
        return any(open("/proc/%d/task/%s/comm" % (pid, t)).read().strip() == "fovea-beats" for t in os.listdir("/proc/%d/task" % pid))
    except OSError:
        return False


def ranks_in(folder):
    """Process ids of the ranks that run in a folder, by rank: those of other hosts are not mpirun's children."""
    found = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink("/proc/%s/cwd" % pid) != folder or open("/proc/%s/comm" % pid).read().strip() != "fovea":
                continue
            variables = open("/proc/%s/environ" % pid, "rb").read().split(b"\0")
        except OSError:
            continue
        found.update({int(v.split(b"=")[1]): int(pid) for v in variables if v.startswith(b"OMPI_COMM_WORLD_RANK=")})
    return found


def end_hosts(p, n):
    """Ends mpirun and its daemons on the n hosts, and takes the hosts away."""
    try:
        os.killpg(p.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    p.wait()
    for i in range(1, n + 1):
        name = "fv%d-%d" % (p.pid, i)
        pids = subprocess.run(["ip", "netns", "pids", name], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout.split()
        for pid in pids:
            os.kill(int(pid), signal.SIGKILL)
        subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)
    subprocess.run(["ip", "link", "del", "fvbr%d" % p.pid], stderr=subprocess.DEVNULL)


def wait_until_joined(p, folder, ranks):
    """Whether all ranks send heartbeats; mpirun may need long to start them on a busy machine."""
    until = time.time() + 60
    while p.poll() is None and time.time() < until:
        alive = ranks_in(folder)
        if len(alive) == ranks and all(map(has_joined, alive.values())):
            return True
        time.sleep(0.1)
    return False


def cut_off(build, folder, updates, rng):
    """As disturb, of hosts whose link goes down."""
    ranks = rng.choice([2, 3, 4])
    victim = rng.randrange(ranks)
    words = " ".join(command(build, 1, "run", updates))
    said = [os.path.join(folder, "said.%d" % r) for r in range(ranks)]
    for path in filter(os.path.exists, said):
        os.remove(path)
    run = ["sh", "-c", "exec %s > said.$OMPI_COMM_WORLD_RANK 2>&1" % words]
    p = subprocess.Popen([NETNS, str(ranks), "1gbit", "-x", "FOVEA_RANK_TIMEOUT", "-x", "OMP_WAIT_POLICY"] + run, cwd=folder,
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        begun = wait_until_joined(p, folder, ranks)
        time.sleep(rng.uniform(0, 6))
        if not begun or len(ranks_in(folder)) < ranks:  # it is over, or nearly
            try:
                return None, True if p.wait(60) == 0 else None
            except subprocess.TimeoutExpired:
                return None, None
        at = time.time()
        subprocess.run(["ip", "netns", "exec", "fv%d-%d" % (p.pid, victim + 1), "ip", "link", "set", "eth0", "down"], check=True)
        while ranks_in(folder) and time.time() - at < DEADLINE:
            time.sleep(0.2)
        left, took = sorted(ranks_in(folder)), time.time() - at
        texts = [open(path).read() for path in said]
        print("  rank %d of %d, cut off: ended after %.1f s" % (victim, ranks, took), flush=True)
        if left:
            return "rank %d of %d, cut off: ranks %s had not ended after %d seconds; they said\n%s" % (victim, ranks, left, DEADLINE, "".join(texts)), False
        for r, text in enumerate(texts):
            if r != victim and not re.search(r"\brank %d\b" % victim, text):
                return "rank %d of %d, cut off, is not named by rank %d:\n%s" % (victim, ranks, r, text), False
        return None, False
    finally:
        for pid in ranks_in(folder).values():
            os.kill(pid, signal.SIGKILL)
        end_hosts(p, ranks)


def disturb(build, folder, updates, rng, kinds):
    """One run with one fault; what went wrong, or None; and whether the run came to its end before it, None where it had not begun."""
    kind = rng.choice(kinds)
    if kind == "cut":
        return cut_off(build, folder, updates, rng)
    ranks = rng.choice([2, 3, 4])
    victim = rng.randrange(ranks)
    how = signal.SIGKILL if kind == "kill" else signal.SIGSTOP
    p = subprocess.Popen(command(build, ranks, "run", updates), cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                         start_new_session=True)
    time.sleep(rng.uniform(0.1, 0.6) if rng.random() < 0.3 else rng.uniform(0.3, 6))  # also before the ranks have met
    at = time.time()
    pid = ranks_of(p.pid).get(victim)
    joined = pid and has_joined(pid)
    if pid:
        try:
            os.kill(pid, how)
        except ProcessLookupError:
            pid = None
    if not pid and p.poll() is None:  # a busy machine has not started that rank yet, or the run is just over
        os.killpg(p.pid, signal.SIGKILL)  # mpirun that is asked to end while it starts may never do so
        p.communicate()
        return None, None
    limit = DEADLINE if joined or kind == "stop" else START
    try:
        out, _ = p.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        left = sorted(ranks_of(p.pid))
        os.killpg(p.pid, signal.SIGKILL)
        if left == [victim] and os.path.exists(folder + "/run/model/model.safetensors"):
            return None, True  # it was stopped on its way out: the others had nothing to wait for, and are gone; mpirun waits for it
        return "rank %d of %d, %s: not all had ended after %d seconds; ranks left: %s" % (victim, ranks, how.name, limit, left), False
    took = time.time() - at
    if p.returncode == 0:
        return None, True
    named = re.search(r"\brank %d\b" % victim, out)
    print("  rank %d of %d, %s: ended after %.1f s%s" % (victim, ranks, how.name, took, "" if joined else " (it had not joined yet)"), flush=True)
    return (None if named or not (joined or kind == "stop") else "rank %d of %d, %s is not named in:\n%s" % (victim, ranks, how.name, out)), False


def main():
    build, faults = os.path.abspath(sys.argv[1]), int(sys.argv[2])
    rng = random.Random(int(sys.argv[3]) if len(sys.argv) > 3 else 1)
    hosts = os.geteuid() == 0 and shutil.which("ip") and not subprocess.run(["ip", "netns", "list"], stdout=subprocess.DEVNULL).returncode
    kinds = sys.argv[4].split(",") if len(sys.argv) > 4 else ["kill", "stop"] + (["cut"] if hosts else [])
    if not shutil.which("mpirun"):
        print("skipped: there is no mpirun")
        return 0
    os.environ.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMP_WAIT_POLICY="passive")
    os.environ.setdefault("FOVEA_RANK_TIMEOUT", "6")
    folder = tempfile.mkdtemp(prefix="fovea-ranks-")
    updates = 200
    words = [a + b for a in ("ka", "lo", "mi", "tu") for b in ("n", "r", "s", "t", "l")]
    with open(folder + "/lines.txt", "w") as f:
        for _ in range(1000):
            f.write(" ".join(rng.choice(words) for _ in range(rng.randint(3, 25))) + "\n")
    with open(folder + "/r.ini", "w") as f:
        f.write(RECIPE % updates)
    try:
        subprocess.run(command(build, 1, "whole", updates), cwd=folder, check=True, stdout=subprocess.DEVNULL)
        done = 0
        while done < faults:
            failure, ended = disturb(build, folder, updates, rng, kinds)
            if failure:
                print(failure)
                return 1
            if ended is None:
                continue
            if ended:  # compared, then once more from the start
                subprocess.run(["cmp", "whole/model/model.safetensors", "run/model/model.safetensors"], cwd=folder, check=True)
                shutil.rmtree(folder + "/run")
            done += not ended
        subprocess.run(command(build, 2, "run", updates), cwd=folder, check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["cmp", "whole/model/model.safetensors", "run/model/model.safetensors"], cwd=folder, check=True)
        print("%d faults: every rank ended in time, each was named, and the model has the same bits" % faults)
        return 0
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
