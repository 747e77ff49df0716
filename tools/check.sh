#!/bin/sh
# check.sh - the quick style checks; each says what is wrong and where.  clang-tidy takes minutes: make tidy.
cd "$(dirname "$0")/.." || exit 1
failed=0
for check in includes layers headers api words budgets links format scripts bugs; do
    echo "check: $check"
    "tools/check_$check.sh" || failed=1
done
exit $failed
