#!/bin/sh
# check_includes.sh - who may include whom: arrows only go down.
#
# tools/layers.txt names for every folder of src/ the folders below it and its public headers.  A folder includes its own headers and
# those of the folders it names, internal and public alike; cli and server see the headers for users and nothing else, but for the
# demo, which makes what it trains on, and explain, a rarer call; bench, which measures kernels, and examples see all public headers.
cd "$(dirname "$0")/.." || exit 1

sources() { find "$1" -name '*.[ch]' -o -name '*.cu' -o -name '*.cc' 2> /dev/null; }

# "file header" for every quoted include, neighbours ("part.h") and generated lists left out.
includes() {
    sources "$1" | xargs grep -H '^#include "' /dev/null | sed -n 's/^\([^:]*\):#include "\([^"]*\)".*/\1 \2/p' |
        grep -E ' [^ ]*/' | grep -v '_files\.h$'
}

wrong=$(
    includes src | awk '
        FNR == NR {
            if (/^#/ || !/:/) next
            split($0, row, /[:|]/)
            folder = row[1]
            known[folder] = may[folder, folder] = 1
            n = split(row[2], below, " ")
            for (i = 1; i <= n; i++) may[folder, below[i]] = 1
            n = split(row[3], header, " ")
            for (i = 1; i <= n; i++) of["fovea/" header[i] ".h"] = folder
            next
        }
        {
            split($1, path, "/")
            folder = path[2]
            outer = folder == "cli" || folder == "server" || folder == "bench"
            if (!outer && !(folder in known)) { if (!told[folder]++) print "  src/" folder " has no row in tools/layers.txt"; next }
            if ($2 == "fovea/fovea.h" && outer) next
            if ($2 ~ /^fovea\//) {
                if (!($2 in of)) { print "  " $1 " includes " $2 ", which no folder of tools/layers.txt has"; next }
                if (outer ? $2 !~ /\/author\// || folder == "bench" || $1 ~ /cli\/(demo|eval|explain|plan)\.c$/ : ((folder, of[$2]) in may)) next
            } else {
                from = $2
                sub(/\/.*/, "", from)
                if (from == folder || (!outer && (folder, from) in may)) next
                if (folder == "cli" && (from == "server" || from == "bench")) next # the commands that run them
            }
            print "  " $1 " includes " $2 ": " folder " may not"
        }' tools/layers.txt -
    includes examples | grep -v ' fovea/' | sed 's/^/  /; s/ \([^ ]*\)$/ includes \1: examples see public headers only/'
    includes include/fovea | grep -v ' fovea/' | sed 's/^/  /; s/ \([^ ]*\)$/ includes \1: public headers include public headers only/'
    # A family never includes another: what they share is in model/ and nn/.
    includes src/models | grep ' models/' | sed 's/^/  /'
    true
)
[ -z "$wrong" ] || { echo "$wrong"; exit 1; }
