#!/bin/sh
# check_words.sh - words that do not belong: unfinished work, paths of one machine, and in the library anything that
# prints or ends the process.
cd "$(dirname "$0")/.." || exit 1
failed=0
names=$(mktemp)
trap 'rm -f "$names"' EXIT

refuse() { # WHY PATTERN, file names on standard input; comments that only name a function are not meant
    found=$(xargs grep -nE "$2" /dev/null | grep -vE '^[^:]*:[0-9]+: *(/\*| \*).*(printf|assert)\(') || return 0
    echo "$found" | sed "s|^|  $1: |"
    failed=1
}

list() { git ls-files --cached --others --exclude-standard -- "$@" | while read -r file; do [ -e "$file" ] && echo "$file"; done; }
text() { list '*.c' '*.h' '*.cu' '*.cc' '*.md' '*.sh' '*.py' '*.cmake' '*.txt' '*.in' Makefile .ci | grep -vE '^(tools/check_words.sh|tests/golden/)'; }
code() { list '*.c' '*.h' '*.cc' '*.cu'; }
library() { list 'src/*.c' 'src/*.h' 'src/*.cu' | grep -vE '^src/(cli|server)/'; }

text > "$names" && refuse "unfinished" '\b(TODO|FIXME|XXX|HACK)\b|\bfor now\b|\bplaceholder\b' < "$names"
refuse "a path of one machine" '/(home|Users|root|work)/[a-z]|/tmp/(venv|build)' < "$names"
library > "$names" && refuse "the library must not print" '(^|[^a-z_])(printf|puts|putchar|perror|vprintf)\(|\b(stdout|stderr)\b' < "$names"
refuse "the library must not end the process" '(^|[^a-z_])(exit|_exit|abort|assert)\(' < "$names"
code > "$names" && refuse "a tab" "$(printf '\t')" < "$names"
LC_ALL=C.UTF-8 refuse "a line over 100 columns" '^.{101,}$' < "$names"
while read -r file; do
    head -n 1 "$file" | grep -qE '^/\* [a-z0-9_]+\.[a-z]+ - ' && continue
    echo "  $file: line 1 does not say what it is (/* name.c - ... */)"
    failed=1
done < "$names"
# Words that the glossary replaces; the corpus of the demonstration has rooms and places of its own.
list 'src/*.[ch]' 'src/*.cu' 'include/*.h' 'examples/*.[ch]' | grep -vE 'src/data/(grammar.c|lexicon.h)' > "$names"
while IFS="$(printf '\t')" read -r pattern say; do
    case $pattern in '#'* | '') continue ;; esac
    refuse "say $say" "$pattern" < "$names"
done < tools/words_refused.txt
exit $failed
