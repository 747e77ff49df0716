#!/bin/sh
# check_links.sh - links of the documents lead somewhere: files, headings, and the paths of this tree that they name.
cd "$(dirname "$0")/.." || exit 1
failed=0
anchors() { # FILE: its headings as links name them
    sed -n 's/^#\{1,6\} //p' "$1" | tr '[:upper:]' '[:lower:]' | sed 's/[^a-z0-9 _-]//g; s/ /-/g'
}
for file in $(git ls-files --cached --others --exclude-standard -- '*.md'); do
    [ -e "$file" ] || continue
    dir=$(dirname "$file")
    # shellcheck disable=SC2016 # backquotes are meant as such
    links=$(sed '/^```/,/^```/d' "$file" | grep -oE '\]\([^) ]+\)' | sed 's/^](//; s/)$//' | grep -vE '^(https?|mailto):')
    for link in $links; do
        path=${link%%#*}
        target=${path:+$dir/$path}
        target=${target:-$file}
        [ -e "$target" ] || { echo "  $file: $link is not there"; failed=1; continue; }
        case $link in
        *#*) anchors "$target" | grep -qx -- "${link#*#}" || { echo "  $file: $link: no such heading"; failed=1; } ;;
        esac
    done
    [ "$file" = CHANGELOG.md ] && continue # speaks of older trees
    # shellcheck disable=SC2016
    for path in $(grep -oE '`(src|include|tests|tools|recipes|examples|docs|cmake|bench)/[A-Za-z0-9_./-]+`' "$file" | tr -d '\`' | sort -u); do
        [ -e "$path" ] || { echo "  $file names $path, which is not there"; failed=1; }
    done
done
exit $failed
