#!/bin/sh
# Installs the wheel in TARGET/wheels into a clean environment and runs the tests there.
# usage: test.sh TARGET-DIRECTORY [PYTHON [ARGUMENTS OF PYTEST...]]
# What is missing is SKIPPED, loudly, with exit code 77.
set -eu
cd "$(dirname "$0")"
target=$1
python=${2:-python3}
shift $(($# > 1 ? 2 : 1))
environment=$target/python-environment

rm -rf "$environment"
"$python" -m venv "$environment" &&
    "$environment/bin/pip" install -q --prefer-binary "$target"/wheels/*.whl pytest || {
    echo "SKIPPED: python: numpy or pytest cannot be installed (no network? set PIP_FIND_LINKS)" >&2
    exit 77
}
for extra in pandas pyarrow mypy "pyright[nodejs]"; do
    "$environment/bin/pip" install -q --prefer-binary "$extra" 2>/dev/null ||
        echo "SKIPPED: python: tests with $extra: it cannot be installed" >&2
done
# Not from here: what is tested is what was installed.
cd "$target"
exec "$environment/bin/python" -m pytest -q -rs "$OLDPWD/tests" -p no:cacheprovider "$@"
