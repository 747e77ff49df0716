#!/bin/sh
# check_exports.sh BUILD - the shared library exports what include/fovea declares, all of it and nothing else, under names that
# begin with fv_ (fv__ is internal), and has its SONAME; the program's own objects use public names only.
set -u
build=${1:-build}
failed=0

lib=$build/libfovea.so
names=$(nm -D --defined-only "$lib" | awk '{print $NF}') || exit 1
bad=$(echo "$names" | grep -vE '^fv_[a-z]')
[ -z "$bad" ] || { echo "exported, but not public:" "$bad"; failed=1; }
echo "$names" | grep -qx fv_attention || { echo "fv_attention is not exported"; failed=1; }

# What FV_API and FV_DATA mark: the name before the first parenthesis, bracket or semicolon.
declared=$(grep -hE '^FV_(API|DATA) ' -r "$(dirname "$0")"/../include/fovea | sed -E 's/[[(;].*//; s/.*[ *]//' | sort -u)
for name in $declared; do echo "$names" | grep -qx "$name" || { echo "declared, but not there: $name"; failed=1; }; done
for name in $names; do echo "$declared" | grep -qx "$name" || { echo "exported, but in no header: $name"; failed=1; }; done

readelf -d "$lib" | grep -q 'SONAME.*libfovea\.so\.[0-9]' || { echo "$lib has no SONAME"; failed=1; }

# an object of a source that has moved or gone says nothing about today's tree
objects=$(find "$build" -path '*fovea_program.dir*' -name '*.o' | while read -r object; do
    source=$(dirname "$0")/../src/${object#*.dir/src/}
    [ -e "${source%.o}" ] && echo "$object"
done)
internal=$(echo "$objects" | xargs nm -u | awk '{print $NF}' | grep '^fv__' | sort -u)
[ -z "$internal" ] || { echo "the program uses internal names:" "$internal"; failed=1; }
missing=$(echo "$objects" | xargs nm -u | awk '{print $NF}' | grep '^fv_' | sort -u | while read -r name; do
    echo "$names" | grep -qx "$name" || echo "$name"
done)
[ -z "$missing" ] || { echo "the program uses names that are not exported:" "$missing"; failed=1; }
exit $failed
