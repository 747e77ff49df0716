#!/bin/sh
# check.sh - all style checks; each says what is wrong and where.
cd "$(dirname "$0")/.." || exit 1
failed=0
for check in includes words format scripts tidy; do
    echo "check: $check"
    "tools/check_$check.sh" || failed=1
done
exit $failed
