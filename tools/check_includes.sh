#!/bin/sh
# check_includes.sh - who may include whom: arrows only go down.
#
# Every folder of src sees include/fovea, itself and the folders named beside it here.  Kernels, tools and outer layers
# see less: a folder whose line ends in "public" may include fovea's headers from include/fovea and its own only.
cd "$(dirname "$0")/.." || exit 1

rules='
base:
backend: base
core: base backend
ops: base core
nn: base core ops
store: base core
tok: base
data: base core store tok
objective: base core store tok data
model: base core ops nn store
models: base core ops nn store model
metric: base
train: base core store data
gen: base core store tok model
see: base core store
task: base core store tok
server: public
cli: public
'

sources() { find "$1" -name '*.[ch]' -o -name '*.cu' -o -name '*.cc' 2> /dev/null; }

check_file() { # FILE FOLDER ALLOWED
    sed -n 's/^#include "\(.*\)".*/\1/p' "$1" | while read -r header; do
        case $header in
        fovea/*) [ -e "include/$header" ] && continue ;;
        *_files.h) continue ;; # made by CMake: the kernel files of a folder
        */*) from=${header%%/*} ;;
        *) continue ;; # a neighbour
        esac
        for ok in $2 $3; do [ "$from" = "$ok" ] && continue 2; done
        echo "  $1 includes $header: $2 may include fovea/ and: $2 $3"
    done
}

wrong=$(
    echo "$rules" | while IFS=: read -r folder allowed; do
        [ -n "$folder" ] || continue
        [ "${allowed# }" = public ] && allowed=
        sources "src/$folder" | while read -r file; do check_file "$file" "$folder" "$allowed"; done
    done
    for folder in src/*/; do
        folder=${folder#src/}
        echo "$rules" | grep -q "^${folder%/}:" || echo "  src/$folder has no rule in tools/check_includes.sh"
    done
    sources examples | while read -r file; do check_file "$file" examples ""; done
    for file in include/fovea/*.h include/fovea/*/*.h; do
        sed -n 's/^#include "\(.*\)".*/\1/p' "$file" | grep -v '^fovea/' | sed "s|^|  $file includes |"
    done
    # A family never includes another: what they share is in src/model.
    [ -d src/models ] && grep -rE '#include "(models/|[a-z0-9_]*\.h")' src/models | sed 's/^/  /'
    true
)
[ -z "$wrong" ] || { echo "$wrong"; exit 1; }
