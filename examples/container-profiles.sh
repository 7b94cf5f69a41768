#!/bin/sh
# Fetches the default seccomp profiles of Docker and podman, as Debian's packages have them, into DIRECTORY: docker.json and podman.json.
# The packages are not installed.
#
# usage: container-profiles.sh DIRECTORY
set -eu

directory=$1
[ -s "$directory/docker.json" ] && [ -s "$directory/podman.json" ] && exit 0
if ! command -v apt-get >/dev/null 2>&1 || ! command -v dpkg-deb >/dev/null 2>&1; then
    echo "the profiles of Docker and podman cannot be fetched here: this is not Debian or Ubuntu" >&2
    exit 1
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM HUP
# The user that apt downloads as may write there.
chmod 777 "$work"

fetch() {
    package=$1 file=$2 to=$3
    (cd "$work" && apt-get download "$package" >/dev/null 2>&1) && dpkg-deb -x "$work/$package"_*.deb "$work/files" && cp "$work/files/$file" "$directory/$to"
}

mkdir -p "$directory"
for try in 1 2; do
    fetch golang-github-docker-docker-dev usr/share/gocode/src/github.com/docker/docker/profiles/seccomp/default.json docker.json &&
        fetch golang-github-containers-common usr/share/containers/seccomp.json podman.json && exit 0
    # Lists may be old or absent.
    [ "$try" = 2 ] || apt-get update >/dev/null 2>&1 || true
done
echo "the profiles of Docker and podman cannot be fetched (Debian's golang-github-docker-docker-dev and golang-github-containers-common)" >&2
exit 1
