#!/bin/sh
# Builds the wheel, with the command and the agent inside, into TARGET/wheels, for `make python`.
# usage: build.sh TARGET-DIRECTORY [release|dev] [PYTHON]
# What is missing is SKIPPED, loudly, with exit code 77.
set -eu
cd "$(dirname "$0")"
target=$1
profile=${2:-release}
python=${3:-python3}
case $profile in release) built=release ;; *) built=debug ;; esac

skip() {
    echo "SKIPPED: python: $1" >&2
    exit 77
}

"$python" -c 'import sys, venv; assert sys.version_info >= (3, 11)' 2>/dev/null ||
    skip "$python is not a Python from 3.11 on with the module venv"
tools=$target/python-tools
if ! [ -x "$tools/bin/maturin" ]; then
    "$python" -m venv "$tools" && "$tools/bin/pip" install -q 'maturin>=1.7,<2' ||
        skip "maturin cannot be installed (no network? set PIP_FIND_LINKS to a directory with its wheel)"
fi
(cd .. && CARGO_TARGET_DIR=$target "${CARGO:-cargo}" build --profile "$profile" \
    -p pagetide-cli -p pagetide-preload)
mkdir -p pagetide/_bin
for file in pagetide libpagetide_preload.so; do
    install -m 755 "$target/$built/$file" "pagetide/_bin/$file"
    strip --strip-debug "pagetide/_bin/$file" 2>/dev/null || true
done
rm -rf "$target/wheels"
# One wheel serves every CPython from 3.11 on; a free-threaded one needs its own.
features=
"$python" -c 'import sysconfig, sys; sys.exit(not sysconfig.get_config_var("Py_GIL_DISABLED"))' &&
    features=--no-default-features
CARGO_TARGET_DIR=$target/python "$tools/bin/maturin" build --profile "$profile" $features \
    --interpreter "$python" --out "$target/wheels" --compatibility linux
