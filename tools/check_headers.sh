#!/bin/sh
# check_headers.sh - public headers can be read: at most 300 lines, a guard that is the file's path, and a comment in every
# paragraph that declares a function.
cd "$(dirname "$0")/.." || exit 1
failed=0
for file in include/fovea/*.h include/fovea/*/*.h; do
    name=${file#include/fovea/}
    [ "$(wc -l < "$file")" -le 300 ] || { echo "  $file: more than 300 lines"; failed=1; }
    guard=FOVEA_$(echo "$name" | tr '[:lower:]/.' '[:upper:]__')
    [ "$name" = fovea.h ] && guard=FOVEA_H
    grep -qx "#ifndef $guard" "$file" || { echo "  $file: no guard $guard"; failed=1; }
    bare=$(awk 'BEGIN { RS = ""; FS = "\n" } /(^|\n)FV_(API|DATA) / && !/\/\*/ { print $1 }' "$file")
    [ -z "$bare" ] || { echo "  $file: nothing says what this does: $bare"; failed=1; }
done
exit $failed
