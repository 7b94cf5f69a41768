#!/bin/sh
# Makes a Debian package of what is in BUILD, in DIRECTORY, and prints its name. The same input gives the same bytes.
#
# usage: deb.sh BUILD DIRECTORY
set -eu

build=$1 directory=$2
here=$(cd "$(dirname "$0")/.." && pwd)
for tool in dpkg-deb dpkg-shlibdeps strip; do
    command -v $tool >/dev/null 2>&1 || { echo "$tool is missing: apt-get install dpkg-dev binutils" >&2; exit 77; }
done
version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' "$here/Cargo.toml")
architecture=$(dpkg --print-architecture)
SOURCE_DATE_EPOCH=$(git -C "$here" log -1 --format=%ct 2>/dev/null || date +%s)
export SOURCE_DATE_EPOCH
mkdir -p "$directory"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' INT TERM HUP
root=$work/root
mkdir -p "$root/DEBIAN" "$work/debian"
chmod 755 "$root"
"$here/packaging/stage.sh" "$root/usr" "$build"
install -D -m 644 "$here/packaging/60-pagetide.rules" "$root/usr/lib/udev/rules.d/60-pagetide.rules"
install -m 644 "$here/packaging/debian/copyright" "$root/usr/share/doc/pagetide/copyright"
mv "$root/usr/share/doc/pagetide/CHANGELOG.md" "$root/usr/share/doc/pagetide/changelog"
find "$root/usr/share/man" "$root/usr/share/doc/pagetide/changelog" -type f -exec gzip -9n {} +

# The libraries that are needed, by what the files ask for.
printf 'Source: pagetide\n\nPackage: pagetide\nArchitecture: any\n' >"$work/debian/control"
libraries=$(cd "$work" && dpkg-shlibdeps -O -eroot/usr/bin/pagetide -eroot/usr/lib/pagetide/libpagetide_preload.so 2>/dev/null |
    sed -n 's/^shlibs:Depends=//p')
[ -n "$libraries" ] || { echo "dpkg-shlibdeps names no library: is dpkg's database whole?" >&2; exit 1; }
cat >"$root/DEBIAN/control" <<END
Package: pagetide
Version: $version
Architecture: $architecture
Maintainer: The Pagetide developers <pagetide@localhost>
Installed-Size: $(du -k -s --apparent-size "$root/usr" | cut -f1)
Depends: $libraries, passwd
Section: admin
Priority: optional
Description: run unmodified programs in a fixed amount of memory
 Pagetide keeps at most so many bytes of a program's memory resident, and the
 rest in a store: packed in memory, in a file, or on a server. Programs are run
 as they are, as an ordinary user.
 .
 Members of the group "pagetide" may open /dev/userfaultfd, which it works by.
END
(cd "$root" && find usr -type f -exec md5sum {} + | LC_ALL=C sort -k2) >"$root/DEBIAN/md5sums"
for script in postinst postrm; do
    install -m 755 "$here/packaging/debian/$script" "$root/DEBIAN/$script"
done
find "$root" -newermt "@$SOURCE_DATE_EPOCH" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
package=$directory/pagetide_${version}_$architecture.deb
dpkg-deb --root-owner-group -Zxz --build "$root" "$package" >/dev/null
echo "$package"
