#!/bin/bash
# check_cuda_memory.sh [BUILD [JOBS]] - the tests of the GPU under compute-sanitizer, memcheck and racecheck: a line for each.
#
# Tests that start the program are left out: what it runs on the device is what the others run.  Few at once: processes that
# share a GPU wait for one another.  Races are looked for in our own kernels, not in those of cuBLASLt and cuDNN, whose
# accesses to our memory memcheck does follow.
set -u
build=${1:-build} jobs=${2:-4} logs=$(mktemp -d)
libraries=$(printf -- '--kernel-name-exclude kns=%s ' xmma cutlass nvjet cublas cudnn sgemm gemv splitK dot_kernel)
export build logs libraries FOVEA_TEST_DEVICE=cuda
trap 'rm -r "$logs"' EXIT
command -v compute-sanitizer > /dev/null || { echo "compute-sanitizer was not found"; exit 1; }
"$build/fovea" info --device cuda > /dev/null || exit 1

check() { # TOOL TEST
  log=$logs/$2.$1 apart=
  [ "$1" = racecheck ] && apart=$libraries
  # shellcheck disable=SC2086 # the options are words
  compute-sanitizer --tool "$1" $apart --error-exitcode 9 --print-limit 20 "$build/tests/$2" > "$log" 2>&1 &&
    echo "$1 $2: clean" && return
  echo "$1 $2: failed"
  grep -v -E '^\[ +(OK|RUN) ' "$log" | head -60
  return 1
}
export -f check

names=$(ctest --test-dir "$build" -N -L cuda | sed -n 's/.*: \(test_[a-z0-9_]*\)@cuda$/\1/p' | grep -v -E 'train_curve|device_faults')
for name in $names; do printf 'memcheck %s\nracecheck %s\n' "$name" "$name"; done | xargs -P "$jobs" -L 1 bash -c 'check "$@"' _
