#!/bin/sh
# at_level.sh PROGRAM LEVEL TEST - runs TEST with the kernels of LEVEL; 77 (skipped) where this machine has none.
FOVEA_CPU=$2
export FOVEA_CPU
"$1" info > /dev/null 2>&1 || exit 77
exec "$3"
