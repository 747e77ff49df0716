#!/bin/sh
# test_install.sh BUILD SOURCE - installs into a fresh prefix and uses what is there as a stranger would: with
# pkg-config, with find_package, from C++, with man and with the shells.
set -eu
build=$1 source=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
prefix=$dir/prefix
cmake --install "$build" --prefix "$prefix" > "$dir/log" || { cat "$dir/log"; exit 1; }

lib=$(dirname "$(find "$prefix" -name libfovea.so)")
export PKG_CONFIG_PATH="$lib/pkgconfig" LD_LIBRARY_PATH="$lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
unset PKG_CONFIG_SYSROOT_DIR # the prefix is no part of one; where there is one, CPATH and LIBRARY_PATH name what was unpacked
wanted="weights 0.2125 0.2357 0.2616 0.2902
output  1.4889 1.5889 1.6889"
expect() { # WHAT GOT
    [ "$2" = "$wanted" ] || { echo "$1 printed: $2"; exit 1; }
}

# shellcheck disable=SC2046 # the flags are words
cc -std=c17 "$source/examples/attention.c" $(pkg-config --cflags --libs fovea) -o "$dir/shared"
expect "the example" "$("$dir/shared")"
readelf -d "$dir/shared" | grep -q 'NEEDED.*libfovea\.so\.0' || { echo "the example does not ask for libfovea.so.0"; exit 1; }

# shellcheck disable=SC2046
cc -std=c17 "$source/examples/attention.c" $(pkg-config --cflags fovea) "$lib/libfovea.a" $(pkg-config --libs --static fovea | sed 's/-lfovea//') -o "$dir/static"
expect "the example, linked statically" "$("$dir/static")"

cmake -S "$source/examples" -B "$dir/examples" -DCMAKE_PREFIX_PATH="$prefix" > "$dir/log" || { cat "$dir/log"; exit 1; }
cmake --build "$dir/examples" > "$dir/log" || { cat "$dir/log"; exit 1; }
expect "the example, built with find_package" "$("$dir/examples/attention")"
[ "$("$dir/examples/reversal")" = "dx -1 2 -3" ] || { echo "the op of one's own printed: $("$dir/examples/reversal")"; exit 1; }
"$dir/examples/train" | awk '{ loss[NR] = $4 } END { exit !(NR == 10 && loss[10] < loss[1]) }' || { echo "ten updates do not learn"; exit 1; }
"$dir/examples/weights" "$source/tests/golden/stories260K" "Once upon a time" | grep -q 'attends most to' || { echo "no weights were printed"; exit 1; }

# Every public header stands alone, in C and in C++.
for header in "$prefix"/include/fovea/*.h "$prefix"/include/fovea/*/*.h; do
    echo "#include <${header#"$prefix"/include/}>" > "$dir/one.c"
    cc -std=c17 -Wall -Wextra -Werror -I"$prefix/include" -fsyntax-only "$dir/one.c"
    if command -v c++ > /dev/null; then c++ -std=c++17 -Wall -Werror -I"$prefix/include" -fsyntax-only -x c++ "$dir/one.c"; fi
done
if command -v c++ > /dev/null; then
    printf '#include <fovea/fovea.h>\n#include <cstdio>\nint main() { std::puts(fv_version()); }\n' > "$dir/main.cc"
    # shellcheck disable=SC2046
    c++ -std=c++17 "$dir/main.cc" $(pkg-config --cflags --libs fovea) -o "$dir/cxx"
    [ "$("$dir/cxx")" = "$(pkg-config --modversion fovea)" ]
fi

# Manual pages and completions are there and load.
"$prefix/bin/fovea" --version > /dev/null
[ -s "$prefix/share/man/man1/fovea-attend.1" ]
for file in "$prefix"/share/man/man1/*.1; do
    if command -v mandoc > /dev/null; then
        # The pages carry no date: they are made from the program, whose version they name.
        if mandoc -T lint -W warning "$file" | grep -v 'missing date'; then exit 1; fi
    fi
done
if command -v bash > /dev/null; then
    bash -c 'source "$1"
        try() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _fovea; echo "${COMPREPLY[*]}"; }
        [ "$(try fovea att)" = attend ] || { echo "att completes to: $(try fovea att)"; exit 1; }
        [ "$(try fovea attend --ca)" = --causal ] || { echo "--ca completes to: $(try fovea attend --ca)"; exit 1; }
        [ "$(try fovea bench gemm --dtype q)" = "q8 q4" ] || { echo "q completes to: $(try fovea bench gemm --dtype q)"; exit 1; }' \
        bash "$prefix/share/bash-completion/completions/fovea"
fi
if command -v zsh > /dev/null; then zsh -n "$prefix/share/zsh/site-functions/_fovea"; fi
if command -v fish > /dev/null; then fish -n "$prefix/share/fish/vendor_completions.d/fovea.fish"; fi
