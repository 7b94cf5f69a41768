#!/bin/sh
# Runs every test and says at the end how many were skipped and why: a skipped test is not a passed one.
# usage: run-tests.sh CARGO TARGET-DIRECTORY
#
# Long ones run with PAGETIDE_TESTS_FULL=1 only (`make test-full`): each hazard under Pagetide, the bound of resident memory
# sampled from outside, and the real programs. They wait on a busy machine for a long time.
set -eu
cargo=$1 skipped=$2/skipped-tests.txt
mkdir -p "$2"
rm -f "$skipped"
status=0
if [ -n "${PAGETIDE_TESTS_FULL:-}" ]; then
    "$cargo" test --workspace --no-fail-fast || status=$?
else
    "$cargo" test --workspace --exclude pagetide-cli --no-fail-fast || status=$?
    "$cargo" test -p pagetide-cli --no-fail-fast --lib --test untouched --test store_faults --test remote --test lock --test snapshot --test trace || status=$?
    # One hazard of each kind; all of them are in `make test-full`.
    "$cargo" test -p pagetide-cli --no-fail-fast --test hazards -- --exact $(cat crates/cli/tests/hazards/short-list.txt) || status=$?
    echo
    echo "not run here: bounds, programs and most hazards (make test-full runs them)"
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
