#!/bin/sh
# Makes an archive of what is in BUILD, in DIRECTORY, and prints its name. It is unpacked under any prefix:
#   sudo tar -C /usr/local --strip-components=1 -xzf pagetide-VERSION-x86_64-linux.tar.gz
#
# usage: dist.sh BUILD DIRECTORY
set -eu

build=$1 directory=$2
here=$(cd "$(dirname "$0")/.." && pwd)
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' "$here/Cargo.toml")
name=pagetide-$version-$(uname -m)-linux
epoch=$(git -C "$here" log -1 --format=%ct 2>/dev/null || date +%s)
mkdir -p "$directory"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM HUP
"$here/packaging/stage.sh" "$work/$name" "$build"
install -d "$work/$name/share/pagetide"
install -m 644 "$here/packaging/60-pagetide.rules" "$work/$name/share/pagetide/60-pagetide.rules"
for license in LICENSE-MIT LICENSE-APACHE; do
    install -m 644 "$here/$license" "$work/$name/share/doc/pagetide/$license"
done
archive=$directory/$name.tar.gz
tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$epoch" -cf - "$name" | gzip -9n >"$archive"
(cd "$directory" && sha256sum "$name.tar.gz" >"$name.tar.gz.sha256")
echo "$archive"
