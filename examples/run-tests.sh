#!/bin/sh
# Runs every test and says at the end how many were skipped and why: a skipped test is not a passed one.
# usage: run-tests.sh CARGO TARGET-DIRECTORY
#
# With PAGETIDE_TESTS_FULL=1 (`make test-full`) real programs run at their full sizes, hazards on more memory, and what takes minutes too.
set -eu
cargo=$1 target=$2 skipped=$2/skipped-tests.txt
mkdir -p "$target"
rm -f "$skipped"
status=0
# All of it in one go, the agent too, so that nothing is built twice or while a test waits.
"$cargo" build --workspace --all-targets
# A test that hangs is a failure, to be seen before whoever waits for the result loses patience.
PAGETIDE=$(cd "$target" && pwd)/debug/pagetide timeout --kill-after=60 "${PAGETIDE_TESTS_SECONDS:-3600}" \
    "$cargo" test --workspace --no-fail-fast &
tests=$!
# It has a process group of its own, which the terminal's Ctrl-C does not reach.
trap 'kill "$tests" 2>/dev/null' INT TERM
wait "$tests" || status=$?
if [ "$status" = 124 ] || [ "$status" = 137 ]; then
    echo "the tests did not end within ${PAGETIDE_TESTS_SECONDS:-3600} s (PAGETIDE_TESTS_SECONDS): the last test named above, or one running beside it, hangs" >&2
fi
if [ -s "$skipped" ]; then
    count=$(awk '{ print $2 }' "$skipped" | sort -u | wc -l)
    echo
    echo "$count of the tests counted as passed were SKIPPED, in whole or in part:"
    sort -u "$skipped"
else
    echo
    echo "no test was skipped"
fi
exit $status
