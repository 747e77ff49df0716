#!/bin/sh
# setup.sh build|check... - makes sure that the Debian or Ubuntu packages are there: those to build and test, those for
# the style checks.  Quick when nothing is missing.  Without root or sudo it prints the one line to run.
set -eu

build="build-essential cmake ninja-build pkg-config libutf8proc-dev libpcre2-dev zlib1g-dev libinih-dev"
build="$build libcairo2-dev libpango1.0-dev libxxhash-dev libcmocka-dev libjansson-dev"
build="$build libpng-dev libjpeg-dev libsndfile1-dev libkissfft-dev libmicrohttpd-dev libopenmpi-dev openmpi-bin libstemmer-dev"
check="clang-format clang-tidy cppcheck shellcheck mandoc universal-ctags"

if ! command -v dpkg-query > /dev/null; then
    echo "setup: not a Debian system; needed are a C17 compiler with OpenMP, CMake, Ninja, pkg-config, utf8proc, PCRE2, zlib, inih, cairo, Pango, xxHash, cmocka and jansson for the tests, libpng, libjpeg, libsndfile, kissfft, libmicrohttpd" >&2
    exit 0
fi

missing=
for set in "$@"; do
    case $set in
    build) wanted=$build ;;
    check) wanted=$check ;;
    *) echo "setup: unknown set of packages '$set'" >&2; exit 2 ;;
    esac
    for package in $wanted; do
        dpkg-query -W -f '${Status}' "$package" 2> /dev/null | grep -q 'ok installed' || missing="$missing $package"
    done
done
[ -n "$missing" ] || exit 0

install="apt-get install -y --no-install-recommends$missing"
if [ "$(id -u)" = 0 ]; then
    as=
elif command -v sudo > /dev/null && { sudo -n true 2> /dev/null || [ -t 0 ]; }; then
    as=sudo
else
    echo "setup: packages are missing; run this as root, then try again:" >&2
    echo "  apt-get update && $install" >&2
    exit 1
fi
echo "setup: installing$missing"
# shellcheck disable=SC2086 # the words of $install are the arguments
$as env DEBIAN_FRONTEND=noninteractive $install > /dev/null 2>&1 < /dev/null ||
    { $as apt-get update -q < /dev/null && $as env DEBIAN_FRONTEND=noninteractive $install < /dev/null; }
