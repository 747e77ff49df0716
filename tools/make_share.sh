#!/bin/sh
# make_share.sh PROGRAM DIR - writes the manual pages and shell completions that the program prints into DIR.
set -eu
program=$1 dir=$2
mkdir -p "$dir/man1"
"$program" help --man > "$dir/man1/fovea.1"
# The page of the program itself names the pages of its commands.
sed -n 's/^\\fBfovea\\-\(.*\)\\fR(1)$/\1/p' "$dir/man1/fovea.1" | while read -r command; do
    "$program" help --man "$command" > "$dir/man1/fovea-$command.1"
done
"$program" help --completion=bash > "$dir/fovea.bash"
"$program" help --completion=zsh > "$dir/_fovea"
"$program" help --completion=fish > "$dir/fovea.fish"
touch "$dir/done"
