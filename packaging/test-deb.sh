#!/bin/sh
# Installs PACKAGE in a clean Debian root and runs what it brings there: as root, as a member of the group and as nobody of it; then removes it.
# Exit code 77: cannot be done here.
#
# usage: test-deb.sh PACKAGE
set -eu

package=$1
skip() {
    echo "SKIPPED test-deb: $1" >&2
    exit 77
}
[ "$(id -u)" = 0 ] || skip "only root can make a Debian root"
[ -c /dev/userfaultfd ] || skip "there is no /dev/userfaultfd here"
minor=$(stat -c %T /dev/userfaultfd)
suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
[ "$(. /etc/os-release && echo "$ID")" = debian ] || skip "the package was built for another system than Debian"

# Mounts and processes of its own, which go with it; the root in memory, where dpkg waits for no disk.
if [ "${2:-}" != inside ]; then
    command -v mmdebstrap >/dev/null 2>&1 || command -v debootstrap >/dev/null 2>&1 || skip "neither mmdebstrap nor debootstrap is installed"
    WORK=$(mktemp -d)
    trap 'rmdir "$WORK"' EXIT
    trap 'exit 1' INT TERM HUP
    export WORK
    unshare --mount --pid --fork "$0" "$package" inside
    exit $?
fi
mount --make-rprivate /
mount -t tmpfs -o mode=755 none "$WORK"
if command -v mmdebstrap >/dev/null 2>&1; then
    TMPDIR=$WORK mmdebstrap --quiet --variant=minbase --mode=root "$suite" "$WORK/root" || skip "mmdebstrap could not make a root of $suite"
else
    debootstrap --variant=minbase "$suite" "$WORK/root" >/dev/null || skip "debootstrap could not make a root of $suite"
fi
cp "$package" "$WORK/root/pagetide.deb"
root=$WORK/root
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=755,nosuid none "$root/dev"
mknod -m 666 "$root/dev/null" c 1 3
mknod -m 666 "$root/dev/zero" c 1 5
mknod -m 666 "$root/dev/urandom" c 1 9
mknod -m 600 "$root/dev/userfaultfd" c 10 "$((0x$minor))"
mkdir -m 1777 "$root/dev/shm"

passed=0
check() {
    what=$1
    shift
    "$@" || { echo "test-deb: FAILED: $what: $*" >&2; exit 1; }
    passed=$((passed + 1))
}
fails_with() {
    expected=$1
    shift
    code=0
    "$@" || code=$?
    [ "$code" = "$expected" ]
}
inside() { env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 chroot "$root" "$@"; }
member() { inside setpriv --reuid 65534 --regid 65534 --groups "$group" "$@"; }
nobody() { inside setpriv --reuid 65534 --regid 65534 --clear-groups "$@"; }

check "it is installed" inside dpkg --install /pagetide.deb >/dev/null
check "nothing it needs is missing" inside dpkg --audit
check "its files are as packed" inside dpkg --verify pagetide
group=$(inside getent group pagetide | cut -d: -f3)
check "there is a group" [ -n "$group" ]
check "it says its version" inside pagetide --version
for file in bin/pagetide lib/pagetide/libpagetide_preload.so share/man/man1/pagetide.1.gz share/man/man1/pagetide-run.1.gz \
    share/bash-completion/completions/pagetide share/zsh/vendor-completions/_pagetide share/fish/vendor_completions.d/pagetide.fish \
    lib/udev/rules.d/60-pagetide.rules share/doc/pagetide/copyright share/doc/pagetide/README.md share/doc/pagetide/docs/statistics.md; do
    check "$file is there" [ -s "$root/usr/$file" ]
done
check "no page of a command that is not there" [ ! -e "$root/usr/share/man/man1/pagetide-bench.1.gz" ]
check "bash takes the completions" inside bash -n /usr/share/bash-completion/completions/pagetide
check "doctor finds that run works" inside sh -c 'pagetide doctor >/doctor.txt; code=$?; [ $code -le 1 ] || { cat /doctor.txt; exit $code; }'
check "a program runs" inside pagetide run -- true
check "a program is paged" inside sh -c '[ "$(pagetide run --resident 4M --stats /stats.json -- sh -c "seq 400000 | sort -n | tail -1")" = 400000 ]'
check "pages went to the store and came back" grep -q '"fetches":[1-9]' "$root/stats.json"
check "a program is the process that the command was" inside sh -c '[ "$(sh -c "echo \$\$; exec pagetide run --exec -- sh -c \"echo \\\$\\\$\"" | uniq | wc -l)" = 1 ]'

# What the rule does where udev runs.
chown "0:$group" "$root/dev/userfaultfd"
chmod 660 "$root/dev/userfaultfd"
check "a member of the group may page" member pagetide run -- true
check "others may not" fails_with 3 nobody sh -c 'exec pagetide run -- true 2>/tmp/refused'
check "they are told to join" grep -q 'usermod -aG pagetide' "$root/tmp/refused"

check "it is removed" inside dpkg --remove pagetide >/dev/null
check "the device is root's again" [ "$(stat -c '%g %a' "$root/dev/userfaultfd")" = "0 600" ]
check "no file is left" [ -z "$(find "$root/usr" -path '*pagetide*')" ]
check "it is purged" inside dpkg --purge pagetide >/dev/null
echo "test-deb: $passed passed, 0 failed"
