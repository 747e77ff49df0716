#!/bin/sh
# at_device.sh PROGRAM DEVICE TEST - runs TEST on DEVICE; 77 (skipped) where this machine or build has none.
FOVEA_TEST_DEVICE=$2
export FOVEA_TEST_DEVICE
"$1" info --device "$2" > /dev/null 2>&1 || exit 77
exec "$3"
