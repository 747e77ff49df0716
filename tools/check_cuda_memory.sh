#!/bin/bash
# check_cuda_memory.sh [-j JOBS] [-l LAUNCHES] [-t "TOOL ..."] [-s SECONDS] [-o FOLDER] [-b BUILD] [TEST ...] - the tests of the
# GPU under compute-sanitizer, memcheck and racecheck unless others are named: a line for each with its verdict.
#
# FOLDER (BUILD/cuda-memory) keeps what each said.  A check that was clean is not repeated until its test or the backend is
# built anew, so an interrupted run goes on where it was; -s ends it after so many seconds.  A test may have the way of attention
# behind an @, as test_attention_op@hopper.
#
# Launches are slow under these tools, so tests are brief (helper/device.h).  Under memcheck a launch takes 0.1 ms, but ten times
# that where it waits for the turn of another program on the GPU: one runs at a time.  Under racecheck it takes 11 ms of the
# host's: four run at once, it follows the first LAUNCHES (500; 0: all) of a program, and not those of kernels without
# shared memory.  Patching cuBLASLt's kernels takes long: memcheck follows them, and cuDNN's, in the tests of products and of
# attention, which give them our memory in every shape; elsewhere products are done by our plain kernel.  What provokes faults is
# left out.
set -u
jobs='' tools="memcheck racecheck" seconds=0 build=build folder='' launches=500
while getopts j:l:t:s:o:b: option; do
  case $option in
  j) jobs=$OPTARG ;; l) launches=$OPTARG ;; t) tools=$OPTARG ;; s) seconds=$OPTARG ;; o) folder=$OPTARG ;; b) build=$OPTARG ;;
  *) sed -n '2,3s/^# //p' "$0" && exit 2 ;;
  esac
done
shift $((OPTIND - 1))
folder=${folder:-$build/cuda-memory}
without() { printf -- '--kernel-name-exclude kns=%s ' "$@"; }
ours=$(without xmma cutlass nvjet cublas cudnn sgemm gemv splitK dot_kernel)
sharing="$ours $(without each_kernel embed_by_warp count_rows last_of_rows sum_of_run DeviceRadixSort) --launch-count $launches"
end=$(($(date +%s) + seconds))
export build folder seconds end ours sharing FOVEA_TEST_DEVICE=cuda FOVEA_TEST_BRIEF=1
command -v compute-sanitizer > /dev/null || { echo "compute-sanitizer was not found"; exit 1; }
"$build/fovea" info --device cuda > /dev/null || exit 1
mkdir -p "$folder" || exit 1

# The longest first, as far as it is known: nothing long is left for the end.
tests() {
  ctest --test-dir "$build" -N -L cuda | sed -n 's/.*: \(test_[a-z0-9_]*\)@cuda-\?\([a-z]*\)$/\1@\2/p' |
    sed '/device_faults/d; /@plain\|@part/d; s/@$//' |
    awk -v first='sampler families session train attention_op attention_sizes ops_matmul tasks' '
      BEGIN { n = split(first, a, " "); for (i = 1; i <= n; i++) place["test_" a[i]] = i }
      { name = $0; sub(/@.*/, "", name); print (name in place ? place[name] : n + 1), $0 }' | sort -s -n -k 1,1 | cut -d ' ' -f 2
}

check() { # TOOL TEST[@WAY]
  log=$folder/$2.$1 program=$build/tests/${2%@*} only=$ours begun=$(date +%s)
  if grep -q '^clean' "$log" 2> /dev/null && [ "$log" -nt "$program" ] && [ "$log" -nt "$build/libfovea_cuda.so" ]; then
    echo "$1 $2: clean before"
    return
  fi
  left=$([ "$seconds" = 0 ] && echo 0 || echo $((end - begun)))
  if [ "$left" -lt $((seconds > 0)) ]; then
    echo "$1 $2: not begun"
    return 1
  fi
  export FOVEA_CUDA_PRODUCTS=plain
  case $1/$2 in
  memcheck/*matmul* | memcheck/*attention*) only='' FOVEA_CUDA_PRODUCTS='' ;;
  racecheck/*) only=$sharing ;;
  esac
  case $2 in *@*) export FOVEA_CUDA_ATTENTION=${2#*@} ;; esac
  # shellcheck disable=SC2086 # the options are words
  timeout -k 2 "$left" compute-sanitizer --tool "$1" $only --error-exitcode 9 --print-limit 20 "$program" > "$log" 2>&1
  code=$? verdict=clean
  if [ $code = 124 ] || [ $code = 137 ]; then
    verdict="not finished, at $(grep -o '^\[ RUN *\] .*' "$log" | tail -1 | sed 's/.*\] //')"
  elif [ $code != 0 ] || ! grep -q -E '(ERROR SUMMARY: 0 errors|RACECHECK SUMMARY: 0 hazards)' "$log"; then
    verdict="failed, exit $code"
  fi
  echo "$verdict, $(($(date +%s) - begun)) s" >> "$log"
  echo "$1 $2: $(tail -1 "$log")"
  case $verdict in failed*) grep -v -E '^\[ +(OK|RUN) |^\[===' "$log" | head -40 ;; esac
  [ "$verdict" = clean ]
}
export -f check

[ $# = 0 ] && mapfile -t names < <(tests) || names=("$@")
failed=0
for tool in $tools; do
  at_once=$([ "$tool" = racecheck ] && echo 4 || echo 1)
  printf "$tool %s\n" "${names[@]}" | xargs -P "${jobs:-$at_once}" -L 1 bash -c 'check "$@"' _ || failed=1
done
[ $failed = 0 ]
