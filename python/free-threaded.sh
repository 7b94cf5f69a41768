#!/bin/sh
# Builds a free-threaded CPython from Debian's source into TARGET/free-threaded, where it is not
# there yet, and says where its interpreter is. Takes some minutes.
# usage: free-threaded.sh TARGET-DIRECTORY
# What is missing is SKIPPED, loudly, with exit code 77.
set -eu
target=$1
place=$target/free-threaded
version=3.13
suite=trixie

skip() {
    echo "SKIPPED: python: no free-threaded interpreter: $1" >&2
    exit 77
}

if ! [ -x "$place/bin/python${version}t" ]; then
    for program in apt-get cc make xz; do
        command -v $program >/dev/null || skip "there is no $program"
    done
    for header in openssl/ssl.h ffi.h zlib.h; do
        echo "#include <$header>" | cc -E - >/dev/null 2>&1 ||
            skip "there is no $header (libssl-dev, libffi-dev, zlib1g-dev)"
    done
    state=$place/apt
    key=/usr/share/keyrings/debian-archive-keyring.gpg
    mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null |
        grep -oE 'https?://[^ ]+/debian/?( |$)' | head -n 1)
    mkdir -p "$state/lists/partial" "$state/cache/archives/partial" "$state/parts" "$place/source"
    : >"$state/status"
    echo "deb-src [signed-by=$key] ${mirror:-http://deb.debian.org/debian} $suite main" \
        >"$state/sources.list"
    apt() {
        apt-get -qq -y -o "Dir::State::status=$state/status" -o "Dir::State::lists=$state/lists" \
            -o "Dir::Cache=$state/cache" -o "Dir::Etc::sourcelist=$state/sources.list" \
            -o "Dir::Etc::sourceparts=$state/parts" -o "APT::Sandbox::User=root" "$@"
    }
    cd "$place/source"
    apt update >&2 || skip "Debian's list of sources cannot be had"
    apt --download-only --tar-only source python$version >&2 || skip "its source cannot be had"
    tar -xf python${version}_*.orig.tar.xz --strip-components=1
    { ./configure --disable-gil --prefix="$place" && make -j2 && make install; } >build.log 2>&1 || {
        tail -n 20 build.log >&2
        skip "it cannot be built: $place/source/build.log"
    }
fi
echo "$place/bin/python${version}t"
