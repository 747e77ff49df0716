#!/bin/sh
# check_format.sh [--fix] - the C and CUDA sources are laid out as clang-format 14 lays them out (other versions differ in detail).
cd "$(dirname "$0")/.." || exit 1
tool=$(command -v clang-format-14 || command -v clang-format)
case $("$tool" --version 2> /dev/null) in
*"version 14."*) ;;
*) echo "  skipped: clang-format 14 is not here"; exit 0 ;;
esac
files=$(git ls-files --cached --others --exclude-standard '*.[ch]' '*.cu')
if [ "${1:-}" = --fix ]; then
    echo "$files" | xargs "$tool" -i
else
    echo "$files" | xargs -P "$(nproc)" -n 32 "$tool" --dry-run -Werror || { echo "  run 'make format'"; exit 1; }
fi
