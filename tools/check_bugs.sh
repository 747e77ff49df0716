#!/bin/sh
# check_bugs.sh - cppcheck finds no error.  What it cannot follow (macros that loop, variables that are filled through a
# pointer) is left to the compiler's own warnings; make tidy looks closer and takes minutes.
cd "$(dirname "$0")/.." || exit 1
command -v cppcheck > /dev/null || { echo "  skipped: no cppcheck"; exit 0; }
quiet=
for kind in uninitvar legacyUninitvar unknownMacro unknownEvaluationOrder invalidFunctionArg; do quiet="$quiet --suppress=$kind"; done
# Processes side by side, as cppcheck's own -j keeps one core busy.
# shellcheck disable=SC2086 # one option a word
find src examples -name '*.c' -print0 | xargs -0 -P "$(nproc)" -n 32 cppcheck -q --std=c11 --max-configs=1 --error-exitcode=1 --enable=portability \
    --suppress=invalidPointerCast $quiet \
    -Iinclude -Isrc -D_GNU_SOURCE -DCPU_LEVEL=generic -DCPU_GENERIC=1 -DREF_DTYPE=f32 -DREF_F32=1 2>&1
