#!/bin/sh
# make_api.sh [--check] - writes docs/api.md from the comments of the public headers; --check says whether it is stale.
#
# A comment that stands at the beginning of a line is prose, "---- x ----" in it a heading, and what follows up to the next
# comment or blank line is the declaration it belongs to.  Indented lines of a comment are an example.
cd "$(dirname "$0")/.." || exit 1

# The headers that an umbrella header includes, in its order, then itself.
listed() { sed -n 's/^#include "\(fovea\/.*\)"/include\/\1/p' "$1"; echo "$1"; }

summary() { # the first sentence of line 1, without the file's name
    awk 'NR == 1 { sub(/^\/\* [a-z_]+\.h - /, ""); sub(/ ?\*\/$/, ""); sub(/([.:;] |[.:;]$).*/, ""); print; exit }' "$1"
}

contents() { for file; do echo "- [\`${file#include/}\`](#$(anchor "$file")): $(summary "$file")"; done; }
anchor() { echo "${1#include/}" | tr -d './'; }

section() {
    echo
    echo "### ${1#include/}"
    awk '
        function text(line,   part, n, i, all) { # what Markdown would take for its own, but for what stands between backticks
            n = split(line, part, "`")
            for (i = 1; i <= n; i++) {
                if (i % 2) gsub(/[*<]/, "\\\\&", part[i])
                all = i == 1 ? part[i] : all "`" part[i]
            }
            return all
        }
        function fence(on) {
            if (on == fenced) return
            print on ? "\n```c" : "```"
            fenced = on
        }
        function say(line) { # one line of a comment
            if (line ~ /^   /) { fence(1); print substr(line, 4); return }
            if (fenced && line == "") { print ""; return }
            if (fenced) { fence(0); print "" }
            print text(line)
        }
        function flush(   i) {
            if (n_prose) print ""
            for (i = 1; i <= n_prose; i++) say(prose[i])
            fence(0)
            if (n_code) {
                fence(1)
                for (i = 1; i <= n_code; i++) print code[i]
                fence(0)
            }
            n_prose = n_code = 0
        }
        function heading(line) {
            flush()
            sub(/^---- */, "", line)
            sub(/ *----$/, "", line)
            print "\n#### " text(line)
        }
        function comment(line) {
            if (title != "") { title = title " " line; line = ""; if (title !~ /----$/) return }
            if (line ~ /^---- / && line !~ /----$/) { title = line; return }
            if (title != "") { heading(title); title = ""; return }
            if (line ~ /^---- /) { heading(line); return }
            prose[++n_prose] = line
        }
        # guards, includes, and the macros that mark what is exported
        /^#(if|el|endif|include|undef)/ || /^#define (FOVEA_[A-Z_]*H|FV_API|FV_DATA|FV_PRINTF)/ { next }
        /^\/\*/ || inside {
            if (!inside && n_code) flush()
            if (!inside && n_prose) comment("")
            end = /\*\/ *$/
            line = $0
            sub(/^\/\* ?/, "", line)
            if (inside) sub(/^ \* ?/, "", line)
            sub(/ *\*\/ *$/, "", line)
            if (NR == 1 && sub(/^[a-z_]+\.h - /, "", line)) line = toupper(substr(line, 1, 1)) substr(line, 2)
            comment(line)
            inside = !end
            next
        }
        /^$/ { if (n_code || n_prose) flush(); next }
        { code[++n_code] = $0 }
        END { flush() }' "$1"
}

page() {
    users=$(listed include/fovea/fovea.h)
    authors=$(listed include/fovea/author/author.h)
    cat << 'END'
# The C interface

Made by `tools/make_api.sh` from the comments of the headers; edit those.  [design.md](design.md) explains why things are
as they are, and [glossary.md](glossary.md) the terms.

For programs that run, train and look into models (`#include <fovea/fovea.h>`):

END
    # shellcheck disable=SC2086 # a list of files
    contents $users
    cat << 'END'

For those who add operations, layers, families, objectives, data and backends (`#include <fovea/author/author.h>`):

END
    # shellcheck disable=SC2086
    contents $authors
    echo
    echo '## For programs'
    for file in $users; do section "$file"; done
    echo
    echo '## For authors'
    for file in $authors; do section "$file"; done
}

if [ "${1:-}" = --check ]; then
    page | cmp -s - docs/api.md || { echo "  docs/api.md is not what the headers say: run tools/make_api.sh"; exit 1; }
else
    page > docs/api.md
fi
