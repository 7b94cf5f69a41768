#!/bin/sh
# Unpacks Debian's cloud kernel from its package into a directory, without installing it, and prints the kernel's path.
# usage: fetch-kernel.sh DIRECTORY
set -eu
if [ $# -ne 1 ]; then
    echo "usage: $0 DIRECTORY" >&2
    exit 2
fi
mkdir -p "$1"
cd "$1"
if ! ls boot/vmlinuz-* >/dev/null 2>&1; then
    package=$(apt-cache depends linux-image-cloud-amd64 | awk '/Depends: linux-image/ { print $2; exit }')
    apt-get download "$package" >/dev/null 2>&1
    dpkg-deb -x "$package"_*.deb .
fi
ls "$PWD"/boot/vmlinuz-* | head -n 1
