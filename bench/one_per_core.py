#!/usr/bin/env python3
"""CPUs of different cores, to bind a benchmark to.

    bench/one_per_core.py [N]

Prints the CPUs of each core as 0+1 2+3 ..., or N CPUs as taskset -c takes them, no two of one core where there are so many cores.  Cores are what the
kernel reports; a virtual machine may report every hyperthread as a core of its own.
"""
import os
import sys


def siblings(cpu):
    """The CPUs of a CPU's core, as in "0,8" or "0-1"."""
    with open(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list", encoding="ascii") as f:
        for part in f.read().strip().split(","):
            first, _, last = part.partition("-")
            yield from range(int(first), int(last or first) + 1)


def find_cores():
    """Lists of the CPUs of each core that this process may use."""
    allowed = os.sched_getaffinity(0)
    return [list(core) for core in sorted({tuple(sorted(allowed.intersection(siblings(cpu)))) for cpu in allowed})]


def choose_cpus(cores, n):
    """n CPUs: first one of each core, then the second ones."""
    return sorted(([core[0] for core in cores] + [cpu for core in cores for cpu in core[1:]])[:n])


def bind(cores, threads):
    """For preexec_fn of subprocess: binds the program to CPUs for so many threads.  Without cores it is not bound."""
    return (lambda: os.sched_setaffinity(0, choose_cpus(cores, threads))) if cores else None


def core(text):
    """0+1 as [0, 1]: a value of --pin."""
    return [int(cpu) for cpu in text.split("+")]


def add_option(parser):
    parser.add_argument("--pin", nargs="*", type=core, metavar="CORE", help="bind both programs to the same CPUs, one a core as long as "
                        "there are cores: those given, as 0+1 2+3, or all that the kernel reports")


def as_text(cores):
    return " ".join("+".join(map(str, cpus)) for cpus in cores)


def cores_of_option(pin):
    """The cores of --pin, which are printed; None without it."""
    if pin is None:
        return None
    cores = pin or find_cores()
    print("cores:", as_text(cores), flush=True)
    return cores


if __name__ == "__main__":
    print(",".join(map(str, choose_cpus(find_cores(), int(sys.argv[1])))) if len(sys.argv) > 1 else as_text(find_cores()))
