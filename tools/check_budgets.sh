#!/bin/sh
# check_budgets.sh [--report] - what a reader can hold: files of at most 500 lines, functions of at most 80, lines of at most 100
# columns, in C and CUDA alike; a command line that only parses and prints: src/cli of at most 5500 lines; and src/ explained: not
# fewer comments than there are (of 100 lines that are not blank 12 are the aim).
# --report prints the figures.
cd "$(dirname "$0")/.." || exit 1
max_file=500 max_function=80 max_columns=100 max_cli=5500 min_comments=12
failed=0
files=$(mktemp)
trap 'rm -f "$files" "$files.functions"' EXIT
git ls-files --cached --others --exclude-standard -- 'src/*.[ch]' 'src/*.cu' 'include/*.h' > "$files.all"
while read -r file; do [ -e "$file" ] && echo "$file"; done < "$files.all" > "$files"
rm -f "$files.all"

xargs wc -l < "$files" | awk -v max=$max_file '$2 != "total" && $1 > max { print "  " $2 ": " $1 " lines, at most " max; bad = 1 } END { exit bad }' || failed=1
xargs env LC_ALL=C.UTF-8 grep -nE "^.{$((max_columns + 1)),}\$" < "$files" | sed "s/^\([^:]*:[0-9]*\):.*/  \1: over $max_columns columns/" | grep . && failed=1

if ctags --version 2> /dev/null | grep -q Universal; then
    ctags -x --languages=C,C++ --langmap=C:.c.h,C++:.cu --kinds-C=f --kinds-C++=f --_xformat='%{line} %{end} %N %F' -L "$files" |
        awk '$2 { print $2 - $1 + 1, $3, $4 }' | sort -n > "$files.functions"
    awk -v max=$max_function '$1 > max { print "  " $3 ": " $2 " has " $1 " lines, at most " max; bad = 1 } END { exit bad }' "$files.functions" || failed=1
else
    echo "  functions are not measured: Universal Ctags is not here"
fi

cli=$(grep '^src/cli/' "$files" | xargs cat | wc -l)
[ "$cli" -le $max_cli ] || {
    echo "  src/cli: $cli lines, at most $max_cli; what neither parses nor prints belongs into the library"
    failed=1
}

# Lines that are nothing but a comment, or the inside of one, of all lines that are not blank, as cloc counts.
share=$(grep '^src/' "$files" | xargs awk '
    FNR == 1 { inside = 0 }
    /^[ \t]*$/ { next }
    { all++ }
    inside { comments++; if (/\*\//) inside = 0; next }
    /^[ \t]*\/\// { comments++; next }
    /^[ \t]*\/\*/ { comments++; if (!/\*\//) inside = 1 }
    END { printf "%.1f", 100 * comments / all }')
awk -v share="$share" -v min=$min_comments 'BEGIN { exit share < min }' || {
    echo "  comments are $share % of the lines of src/, at least $min_comments are wanted"
    failed=1
}
if [ "${1:-}" = --report ]; then
    echo "  comments: $share % of the lines of src/"
    grep ' src/' "$files.functions" | awk '{ n[NR] = $1 } END { printf "  functions of src/: %d, median %d, 95th percentile %d, longest %d\n", NR, n[int(NR / 2)], n[int(NR * .95)], n[NR] }'
    for folder in src/*/ src/backend/cuda/; do echo "  $folder $(grep "^$folder" "$files" | xargs cat | wc -l) lines"; done
fi
exit $failed
