#!/usr/bin/env python3
"""Runs the commands that README.md and docs/*.md print: run_docs.py SOURCE BUILD.

Blocks of ```sh are run line by line in one shell, in a folder that looks like the repository, and of ```console the lines
behind "$ ".  A line that needs what is not here (data, models, a GPU, minutes) is listed with the reason; every other one must
succeed.  fovea-demo/model is a demo of few updates: what is printed is not compared."""
import os
import re
import subprocess
import sys
import tempfile

NOT_RUN = [  # the first that is found in a line says why it is not run
    (r"\bmake\b|cmake|\bcc\b|pkg-config|PKG_CONFIG|LD_LIBRARY|apt-get|dpkg|ccache|docker|\bnvcc\b|\bgit\b|hf download|python", "builds or installs"),
    (r"cuda|nsys|ncu|compute-sanitizer|CUDA", "needs a GPU"),
    (r"multi30k|video/|models/trec|\btok/|path/to|runs?/|train\.(en|de|tsv)|test\.(en|de|fr)|small\.tsv|theirs|article|\.ini\b|corpus|data\.|texts\.|questions", "needs data"),
    (r"bert-base|gpt2|Llama|Qwen|opus-mt|bart-|distil|roberta|t5-|MODEL|SmolLM|all-MiniLM|vit-base|clip-vit|yolos-|segformer-b|kwt1|moonshine|facebook|-m (base|big|model|my)\b|llama|whisper|adapter|lora",
     "needs a published model"),
    (r"bench/plan.py|plan_fit", "needs root, for networks of its own"),
    (r"fovea demo|fovea serve|localhost|bench ", "takes long, or never ends"),
]


def blocks(path):
    """(line number, kind, lines) of every block of a shell."""
    kind, lines, start = None, [], 0
    for number, line in enumerate(open(path), 1):
        if line.startswith("```"):
            if kind in ("sh", "bash", "console"):
                yield start, kind, lines
            kind, lines, start = (line[3:].strip() or "none") if kind is None else None, [], number
        elif kind:
            lines.append(line.rstrip("\n"))


def commands(kind, lines):
    """Whole commands: lines that end in a backslash, or leave a quote open, go on."""
    if kind == "console":
        lines = [line[2:] for line in lines if line.startswith("$ ")]
    whole = ""
    for line in lines:
        whole += line + "\n"
        document = re.search(r"<<-? *'?(\w+)'?", whole)  # up to the line with its word
        open_document = document and not re.search(rf"^\s*{document.group(1)}$", whole, re.M)
        if not line.endswith("\\") and whole.count("'") % 2 == 0 and not open_document:
            if whole.strip() and not whole.strip().startswith("#"):
                yield whole.strip()
            whole = ""


def prepare(folder, source, build):
    for name in ("README.md", "recipes", "tests", "examples"):
        os.symlink(f"{source}/{name}", f"{folder}/{name}")
    os.symlink(build, f"{folder}/build")
    subprocess.run(["cp", "-r", f"{source}/docs", folder], check=True)
    subprocess.run([f"{build}/fovea", "demo", "-q", "--threads", "1", "--updates", "20", "-o", "fovea-demo"], cwd=folder, check=True,
                   stdout=subprocess.DEVNULL)


def main():
    source, build = map(os.path.abspath, sys.argv[1:3])
    files = ["README.md"] + sorted("docs/" + f for f in os.listdir(source + "/docs") if f.endswith(".md") and f != "api.md")
    run = failed = 0
    with tempfile.TemporaryDirectory(prefix="fovea-") as folder:
        prepare(folder, source, build)
        env = dict(os.environ, PATH=build + ":" + os.environ["PATH"], OMP_NUM_THREADS="1",
                   OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMPI_MCA_rmaps_base_oversubscribe="1")
        for name in files:
            for start, kind, lines in blocks(f"{source}/{name}"):
                for command in commands(kind, lines):
                    why = next((w for pattern, w in NOT_RUN if re.search(pattern, command)), None)
                    if why:
                        print(f"{name}:{start}: not run ({why}): {command.splitlines()[0][:90]}")
                        continue
                    run += 1
                    done = subprocess.run(["bash", "-c", command], cwd=folder, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True)
                    if done.returncode:
                        failed += 1
                        print(f"{name}:{start}: exit {done.returncode}: {command}\n    {done.stderr.strip()}")
    print(f"{run} commands run, {failed} failed")
    sys.exit(1 if failed or run < 15 else 0)


main()
