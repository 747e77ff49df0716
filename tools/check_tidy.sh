#!/bin/sh
# check_tidy.sh [FILE...] - clang-tidy finds nothing.  Kernels, which are compiled many times, are looked at once.
cd "$(dirname "$0")/.." || exit 1
command -v clang-tidy > /dev/null || { echo "  skipped: no clang-tidy"; exit 0; }
build=${BUILD:-build}

look() {
    promises="-include tools/tidy.h"
    case $1 in
    src/backend/ref/*) extra="-DREF_DTYPE=f32 -DREF_F32=1" ;;
    src/backend/cpu/*) extra="-DCPU_LEVEL=generic -DCPU_GENERIC=1" ;;
    src/base/error.c | src/core/ctx.c | src/cli/program/report.c) extra='' promises= ;; # these make them
    src/cli/*) extra="-DTIDY_CLI=1" ;;
    src/see/*) extra="-DHAVE_CAIRO=1 $(pkg-config --cflags pangocairo cairo-svg cairo-pdf)" ;;
    *) extra= ;;
    esac
    # shellcheck disable=SC2086 # no extra option has blanks
    out=$(clang-tidy --quiet "$1" -- -std=gnu17 -D_GNU_SOURCE -fopenmp -Iinclude -Isrc "-I$build/gen" $promises $extra \
        -DHAVE_CPU_GENERIC=1 -Wno-unknown-pragmas -Wno-unused-value 2>&1) && return 0
    echo "$out" | grep -vE '^[0-9]+ warnings? |^Suppressed|^Use -header'
    return 1
}

if [ "${1:-}" = --one ]; then
    look "$2"
else
    if [ $# -gt 0 ]; then printf '%s\n' "$@"; else git ls-files --cached --others --exclude-standard 'src/*.c' 'examples/*.c'; fi |
        xargs -P "$(nproc)" -n 1 "$0" --one
fi
