#!/usr/bin/env python3
"""api.py FOVEA [CASES] [SEED] - schemathesis against /openapi.json: requests of every operation, right and wrong, as the document
describes them.  No answer may be a server error or one that the document does not name, a request that the document
forbids must be refused, and the server must end with status 0 (a sanitizer's finding would change it).

Needs schemathesis from PyPI: the program named by SCHEMATHESIS, or in the PATH; 77 without it."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

from serving import Server

# What a request may hold depends on more than a schema can say (the length of the context, what the model is for), so
# that a request which fits the document may still be refused: positive_data_acceptance is not among these.
CHECKS = ("not_a_server_error,status_code_conformance,content_type_conformance,unsupported_method,allow_header_conformance,"
          "negative_data_rejection")


def main():
    program = sys.argv[1] if len(sys.argv) > 1 else "build/fovea"
    cases = int(sys.argv[2]) if len(sys.argv) > 2 else 10000
    seed = sys.argv[3] if len(sys.argv) > 3 else "1"
    tool = shutil.which(os.environ.get("SCHEMATHESIS", "schemathesis"))
    if not tool:
        print("skipped: schemathesis is not installed")
        return 77
    with tempfile.TemporaryDirectory() as scratch:
        with Server(program, scratch, "--quiet", "--context", "256") as server:
            # cases of each operation: of 27 operations five take no body, and the coverage phase has some 1,800 cases of its own
            done = subprocess.run([tool, "run", server.address + "/openapi.json", "-n", str(max(cases // 26, 1)), "--phases",
                                   "coverage,fuzzing", "--checks", CHECKS, "--suppress-health-check", "all", "--seed", seed,
                                   "--continue-on-failure", "--request-timeout", "60", "--no-color"], cwd=scratch,
                                  capture_output=True, text=True)
        said = done.stdout
        log = server.log.read_text(errors="replace")
    made = re.search(r"(\d+) generated", said)
    n = int(made.group(1)) if made else 0
    if done.returncode or server.code:
        print(said, done.stderr, log, sep="\n")
    print(f"{n} cases, schemathesis ended with {done.returncode}, the server with {server.code}")
    if n < cases:
        print(f"only {n} of {cases} cases were made")
    return int(bool(done.returncode or server.code or n < cases))


if __name__ == "__main__":
    sys.exit(main())
