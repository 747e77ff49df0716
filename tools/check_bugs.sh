#!/bin/sh
# check_bugs.sh - cppcheck finds no error.  What it cannot follow (macros that loop, variables that are filled through a
# pointer) is left to the compiler's own warnings; make tidy looks closer and takes minutes.
cd "$(dirname "$0")/.." || exit 1
command -v cppcheck > /dev/null || { echo "  skipped: no cppcheck"; exit 0; }
quiet=
for kind in uninitvar legacyUninitvar unknownMacro unknownEvaluationOrder invalidFunctionArg; do quiet="$quiet --suppress=$kind"; done
# shellcheck disable=SC2086 # one option a word
cppcheck -q -j "$(nproc)" --std=c11 --max-configs=1 --error-exitcode=1 --enable=portability --suppress=invalidPointerCast $quiet \
    -Iinclude -Isrc -D_GNU_SOURCE -DCPU_LEVEL=generic -DCPU_GENERIC=1 -DREF_DTYPE=f32 -DREF_F32=1 src examples 2>&1
