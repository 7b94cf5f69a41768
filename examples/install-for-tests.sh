#!/bin/sh
# Installs what `make test` and `make demo` need and this machine lacks, if it is Debian-like and we are root.
# No system service is started: a policy says so while packages are set up.
#
# usage: install-for-tests.sh PROGRAM=PACKAGE...     (or the path of a file, for PROGRAM)
set -eu

missing=
for pair in "$@"; do
    case $pair in
    /*) [ -e "${pair%%=*}" ] ;;
    *) command -v "${pair%%=*}" >/dev/null 2>&1 ;;
    esac || missing="$missing ${pair#*=}"
done
[ -n "$missing" ] || exit 0

line="apt-get install --yes --no-install-recommends$missing"
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "missing here:$missing; as root on Debian or Ubuntu: $line" >&2
    exit 1
fi
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
    trap 'rm -f "$policy"' EXIT
    trap 'exit 1' INT TERM HUP
fi
export DEBIAN_FRONTEND=noninteractive
echo "installing:$missing" >&2
# Lists may be old or absent; packages that are gone from the mirror are found again after an update.
$line >/dev/null 2>&1 || { apt-get update >/dev/null && $line >/dev/null; }
