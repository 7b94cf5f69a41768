#!/bin/sh
# Sees to it that this machine can build Pagetide: a C compiler and linker, and cargo of at least the version below.
set -eu
least=1.88
here=$(dirname "$0")

"$here/install-for-tests.sh" cc=build-essential

cargo=${CARGO:-cargo}
# Where rustup puts it, for shells that have not read the profile since.
PATH=$PATH:${HOME:-/root}/.cargo/bin
rustup='curl --proto =https --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal'
if ! command -v "$cargo" >/dev/null 2>&1; then
    echo "cargo is missing. This installs it for this user: $rustup" >&2
    echo "then open a new shell, or: . \"\$HOME/.cargo/env\"" >&2
    exit 1
fi
have=$("$cargo" --version | cut -d' ' -f2)
older=$(printf '%s\n%s\n' "$least" "$have" | sort -V | head -1)
if [ "$older" != "$least" ]; then
    echo "cargo is $have; Pagetide needs $least or later: rustup update stable (without rustup: $rustup)" >&2
    exit 1
fi
