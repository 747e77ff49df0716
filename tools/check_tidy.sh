#!/bin/sh
# check_tidy.sh [FILE...] - clang-tidy finds nothing.  Kernels, which are compiled many times, are looked at once.
cd "$(dirname "$0")/.." || exit 1
command -v clang-tidy > /dev/null || { echo "  skipped: no clang-tidy"; exit 0; }
build=${BUILD:-build}

look() {
    checks=
    case $1 in
    src/backend/ref/*) extra="-DREF_DTYPE=f32 -DREF_F32=1" ;;
    src/backend/cpu/*) extra="-DCPU_LEVEL=generic -DCPU_GENERIC=1" ;;
    # fv_need and fv_same_dtype say no to NULL, which the analyzer cannot know: it sees one file at a time.
    src/ops/*) extra='' checks=--checks=-clang-analyzer-core.NullDereference,-clang-analyzer-core.CallAndMessage ;;
    *) extra= ;;
    esac
    # shellcheck disable=SC2086 # no extra option has blanks
    out=$(clang-tidy --quiet $checks "$1" -- -std=gnu17 -D_GNU_SOURCE -fopenmp -Iinclude -Isrc "-I$build/gen" $extra \
        -DHAVE_CPU_GENERIC=1 -Wno-unknown-pragmas 2>&1) && return 0
    echo "$out" | grep -vE '^[0-9]+ warnings? |^Suppressed|^Use -header'
    return 1
}

if [ "${1:-}" = --one ]; then
    look "$2"
else
    if [ $# -gt 0 ]; then printf '%s\n' "$@"; else git ls-files --cached --others --exclude-standard 'src/*.c' 'examples/*.c'; fi |
        xargs -P "$(nproc)" -n 1 "$0" --one
fi
