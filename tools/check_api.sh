#!/bin/sh
# check_api.sh - docs/api.md is what the public headers say today.
exec "$(dirname "$0")/make_api.sh" --check
