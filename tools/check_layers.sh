#!/bin/sh
# check_layers.sh [BUILD] - who calls whom, from the linker's symbols: a header that everybody may include hides an upward
# call.  Folders obey tools/layers.txt; inside cli, tok and store no files call each other in a circle; the program's objects
# call public functions only.  The lists that CMake makes of a folder (families, kernels, objectives, tasks) name what is above
# them: that is what a list is for.
cd "$(dirname "$0")/.." || exit 1
build=${1:-build}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

find "$build" -path '*.dir/src/*' -name '*.o' | grep -v fovea_cuda > "$work/objects"
if ! [ -s "$work/objects" ]; then
    echo "  skipped: $build has no object files; run 'make test' first"
    exit 0
fi
# An object of a source that has moved or gone says nothing about today's tree.
while read -r object; do
    source=src/${object#*.dir/src/}
    [ -e "${source%.o}" ] && echo "$object"
done < "$work/objects" > "$work/live"

# "D folder file symbol" for every definition, "U folder file symbol" for every reference.
xargs nm -A < "$work/live" 2> /dev/null | awk '
    { split($1, name, ":"); file = name[1]; symbol = $NF; kind = $(NF - 1) }
    symbol !~ /^(fv_|cli_|[a-z])/ { next }
    { sub(/.*\.dir\/src\//, "", file); folder = file; sub(/\/.*/, "", folder) }
    symbol ~ /^fv__(family|objective|task|ref|cpu)_/ { next }
    kind == "U" { print "U", folder, file, symbol }
    kind ~ /^[TDBRVW]$/ { print "D", folder, file, symbol }' | sort -u > "$work/symbols"

# "from-folder to-folder from-file to-file symbol" for every call that leaves its file.
awk '
    $1 == "D" { folder[$4] = $2; file[$4] = $3 }
    $1 == "U" { wants[++n] = $0 }
    END {
        for (i = 1; i <= n; i++) {
            split(wants[i], u, " ")
            if (u[4] in folder && file[u[4]] != u[3]) print u[2], folder[u[4]], u[3], file[u[4]], u[4]
        }
    }' "$work/symbols" | sort -u > "$work/calls"

awk -F'[:|]' '
    FNR == NR { if (!/^#/ && NF > 1) { known[$1] = 1; n = split($2, below, " "); for (i = 1; i <= n; i++) may[$1, below[i]] = 1 } next }
    {
        split($0, c, " ")
        if (c[1] == c[2] || c[1] == "cli" || c[1] == "server" || (c[1] == "bench" && c[2] != "cli" && c[2] != "server") || (c[1], c[2]) in may) next
        if (!((c[1], c[2]) in told) || told[c[1], c[2]]++ < 5)
            printf "  %s calls %s (%s): %s may not use %s\n", c[3], c[5], c[4], c[1], c[2]
        told[c[1], c[2]] += 0
    }' tools/layers.txt "$work/calls" > "$work/wrong"
[ -s "$work/wrong" ] && { cat "$work/wrong"; failed=1; }

for folder in cli tok store; do
    awk -v folder=$folder '$1 == folder && $2 == folder { print $3, $4 }' "$work/calls" | sort -u > "$work/pairs"
    tsort "$work/pairs" > /dev/null 2> "$work/loops" || {
        echo "  files of src/$folder call each other in a circle:" "$(sed -n 's/^tsort: //p' "$work/loops" | grep -v 'contains a loop' | sort -u | tr '\n' ' ')"
        failed=1
    }
done
exit $failed
