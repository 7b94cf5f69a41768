#!/bin/sh
# The checks that need a tool which not everybody has: what cannot run here is SKIPPED, loudly, and is no failure.
# usage: check.sh shape|msrv|deny|miri TARGET-DIRECTORY, or check.sh fuzz TARGET-DIRECTORY SECONDS [NAME...]
set -eu
cd "$(dirname "$0")/../.."
target=$2

skip() {
    echo "SKIPPED: $1: $2" >&2
    exit 0
}

case $1 in
shape)
    # Circles are looked for by the script and not by `cargo modules dependencies --acyclic`: that works on modules and items, where a
    # parent's re-export of its child is a circle, stops at the first one, and has to build everything. Long functions are clippy's.
    python3 tests/shape/count.py --max-long-lines 0 --max-circles 0
    ;;
msrv)
    # The oldest Rust that builds this is promised in Cargo.toml. Only what users build is checked: tests may need more.
    version=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    command -v rustup >/dev/null 2>&1 || skip msrv "rustup is missing, so there is no Rust $version to check with"
    rustup run "$version" cargo --version >/dev/null 2>&1 ||
        rustup toolchain install "$version" --profile minimal --no-self-update >/dev/null 2>&1 ||
        skip msrv "rustup cannot install Rust $version (no network?)"
    CARGO_TARGET_DIR=$target/msrv rustup run "$version" cargo check --workspace --locked
    ;;
deny)
    cargo deny --version >/dev/null 2>&1 || skip deny "install cargo-deny first: cargo install cargo-deny --locked"
    cargo deny --log-level error check bans licenses sources
    cargo deny --log-level error --manifest-path python/Cargo.toml check bans licenses sources
    # The advisories are a repository that is fetched each time.
    cargo deny fetch db >/dev/null 2>&1 || skip "deny, advisories" "the database cannot be fetched (no network?)"
    cargo deny --log-level error check advisories
    ;;
miri)
    # The parts without system calls, with few random cases: Miri is a thousand times slower.
    cargo +nightly miri --version >/dev/null 2>&1 ||
        skip miri "no nightly Rust with Miri: rustup toolchain install nightly --component miri rust-src"
    export PROPTEST_CASES=2 MIRIFLAGS="${MIRIFLAGS:--Zmiri-disable-isolation}" CARGO_TARGET_DIR="$target/miri"
    cargo +nightly miri test -p pagetide-store --lib --no-default-features -- \
        chain:: file::extent:: lz4:: ram::class:: slots:: table:: uri::
    ;;
fuzz)
    # Each target in turn. What made one fail is kept in fuzz/artifacts; what was found to reach new code, in fuzz/corpus.
    cargo fuzz --version >/dev/null 2>&1 || skip fuzz "install cargo-fuzz first: cargo install cargo-fuzz --locked"
    cargo +nightly --version >/dev/null 2>&1 || skip fuzz "no nightly Rust: rustup toolchain install nightly"
    seconds=$3
    shift 3
    for name in ${*:-$(cargo fuzz list)}; do
        echo "fuzz: $name for $seconds s"
        # A file, an answer or a message is a few KiB, and a single allocation of more than 64 MiB for one is a fault.
        cargo +nightly fuzz run "$name" -- -max_total_time="$seconds" -max_len=16384 -timeout=10 -malloc_limit_mb=64
    done
    ;;
*)
    echo "usage: check.sh shape|msrv|deny|miri TARGET-DIRECTORY, or check.sh fuzz TARGET-DIRECTORY SECONDS [NAME...]" >&2
    exit 2
    ;;
esac
