#!/bin/sh
# check_scripts.sh - shell scripts pass shellcheck.
cd "$(dirname "$0")/.." || exit 1
command -v shellcheck > /dev/null || { echo "  skipped: no shellcheck"; exit 0; }
# shellcheck disable=SC2046 # no file name here has blanks
shellcheck .ci/run $(git ls-files 'tools/*.sh' 'tests/*.sh')
