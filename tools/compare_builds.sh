#!/bin/sh
# compare_builds.sh BEFORE AFTER - do two builds of the program give the same bits?
#
# Runs `fovea forward` of both on every case of tests/golden/models, with attention weights and hidden states, and with
# gradients where the case has labels, and compares the files byte by byte.  Prints what differs, then the counts.  What the
# first build refuses, and the second takes or refuses in other words, is new: most often a family.
cd "$(dirname "$0")/.." || exit 1
[ $# = 2 ] || { echo "usage: tools/compare_builds.sh BEFORE AFTER (two fovea programs)"; exit 2; }
programs="before=$1 after=$2"
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
same=0 different=0 refused=0 new=0

compare() { # CASE OPTION...
    name=$1
    shift
    for pair in $programs; do
        build=${pair%%=*} program=${pair#*=}
        "$program" forward -m "tests/golden/models/$name" -i "tests/golden/models/$name/in.safetensors" \
            -o "$dir/out.safetensors" "$@" > "$dir/log" 2>&1 || mv "$dir/log" "$dir/out.safetensors"
        mv "$dir/out.safetensors" "$dir/$build"
    done
    if ! cmp -s "$dir/before" "$dir/after"; then
        if grep -qa "^fovea forward: " "$dir/before"; then
            new=$((new + 1))
        else
            different=$((different + 1))
            echo "$name $*: different"
        fi
    elif grep -qa "^fovea forward: " "$dir/after"; then
        refused=$((refused + 1))
    else
        same=$((same + 1))
    fi
    rm -f "$dir/before" "$dir/after"
}

for case in tests/golden/models/*/; do
    case=$(basename "$case")
    for dtype in f32 bf16; do compare "$case" --attentions --hidden-states --dtype "$dtype"; done
    compare "$case" --grad
    compare "$case" --dtype q8
done
echo "$same files are the same, $different differ, $refused runs are refused by both with the same words," \
    "$new are new to the second build"
[ "$different" = 0 ]
