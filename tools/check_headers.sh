#!/bin/sh
# check_headers.sh - public headers can be read: at most 300 lines, a guard that is the file's path, and a comment in every
# paragraph that declares a function.  Users see at most 220 functions; what only authors of ops, layers, families, objectives
# and backends need is in include/fovea/author, and no header for users includes one of those.
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
functions=$(cat include/fovea/*.h | grep -c '^FV_API ')
[ "$functions" -le 220 ] || { echo "  include/fovea/*.h: $functions functions for users, at most 220; see author/"; failed=1; }
upward=$(grep -n '#include "fovea/author/' include/fovea/*.h)
[ -z "$upward" ] || { echo "  a header for users includes one for authors:" "$upward"; failed=1; }
exit $failed
