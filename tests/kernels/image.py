"""Builds what the guests boot from: one disk image for all kernels, and for each a small first file system with its modules."""
import gzip
import lzma
import os
import pathlib
import re
import shutil
import stat
import subprocess

from kernels import Kernel
from say import Unavailable

# What the tests start, and what the guest itself needs. Each comes with the package it is in, the package of its name, and what those depend on.
PROGRAMS = (
    "sh bash awk sed grep find sort ls ps mount umount swapon mkswap timeout unshare setpriv hostname ip "
    "python3 perl sqlite3 redis-server redis-cli memcached openssl g++ gcc"
).split()
# Where the system's own programs are: what version managers put first on a path does not work elsewhere.
SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
# Packages that others depend on but nothing here needs, and folders nobody reads in a guest.
LEAVE_OUT = {"debconf", "adduser", "systemd", "init-system-helpers", "lsb-base", "dpkg", "debianutils", "tar"}
UNREAD = re.compile(r"^/usr/share/(doc|man|locale|info|lintian|bash-completion|i18n|perl/[^/]*/unicore)(/|$)|^/(etc/init\.d|var)/")
# The disk, its file system, and what the tests may use.
MODULES = ["virtio_pci", "virtio_blk", "ext4", "loop", "tmpfs"]


class Tree:
    """A folder that becomes the guest's root: files are put where they are on this machine."""

    def __init__(self, root: pathlib.Path):
        self.root = root
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir(parents=True)
        for name in ("bin", "sbin", "lib", "lib64"):
            if os.path.islink(f"/{name}"):
                (root / name).symlink_to(os.readlink(f"/{name}"))
                (root / os.readlink(f"/{name}").lstrip("/")).mkdir(parents=True, exist_ok=True)
        for name in ("proc", "sys", "dev", "tmp", "run", "root", "etc", "var/tmp", "var/lib"):
            (root / name).mkdir(parents=True, exist_ok=True)

    def place(self, path: str | os.PathLike) -> pathlib.Path:
        """Where a path of the guest is in this folder, with its parents made."""
        path = pathlib.Path(path)
        parent = pathlib.Path(os.path.realpath(path.parent)) if path.parent.exists() else path.parent
        place = self.root / parent.relative_to("/") / path.name
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def add(self, path: str | os.PathLike) -> None:
        """Copies a file or a symbolic link, with what it points to."""
        path, place = pathlib.Path(path), self.place(path)
        if os.path.lexists(place):
            return
        mode = os.lstat(path).st_mode
        if stat.S_ISLNK(mode):
            place.symlink_to(os.readlink(path))
            target = path.parent / os.readlink(path)
            if target.exists() and not target.is_dir():
                self.add(os.path.normpath(target))
        elif stat.S_ISREG(mode):
            shutil.copy2(path, place)
        elif stat.S_ISDIR(mode):
            place.mkdir(exist_ok=True)

    def add_all(self, folder: pathlib.Path) -> None:
        """A folder and everything in it."""
        for inside in sorted(folder.rglob("*")):
            self.add(inside)

    def add_program(self, path: str | os.PathLike, strip: bool = False) -> None:
        """A program or library, without its debug information if `strip`, and the libraries it needs."""
        place = self.place(path)
        if strip:
            if subprocess.run(["strip", "--strip-debug", "-o", place, path]).returncode != 0:
                shutil.copy2(path, place)
        else:
            self.add(path)
        for library in libraries(path):
            self.add(library)

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        """A file of the guest's own."""
        place = self.place(path)
        place.unlink(missing_ok=True)
        place.write_text(text)
        place.chmod(mode)


def libraries(path: str | os.PathLike) -> list[str]:
    """The shared libraries a program is loaded with, and its dynamic linker."""
    said = subprocess.run(["ldd", path], capture_output=True, text=True).stdout
    return re.findall(r"(?:=> |^\s*)(/\S+)", said, re.M)


def packages_of(programs: dict[str, str]) -> set[str]:
    """The installed packages these programs are from or are named after (a Python without its library is one of its own), and what those depend on."""
    names = set(programs)
    for path in programs.values():
        for spelling in {path, os.path.realpath(path), re.sub("^/usr", "", os.path.realpath(path))}:
            found = subprocess.run(["dpkg", "-S", spelling], capture_output=True, text=True).stdout
            names |= {line.split(":")[0] for line in found.splitlines() if not line.startswith("diversion")}
    status = subprocess.run(
        ["dpkg-query", "-W", "-f", "${Package}\t${db:Status-Status}\t${Pre-Depends}, ${Depends}\n"], capture_output=True, text=True
    ).stdout
    depends = {}
    for line in status.splitlines():
        package, state, words = line.split("\t")
        if state == "installed":
            depends[package] = re.findall(r"(?:^|[,|]\s*)([a-z0-9][a-z0-9.+-]*)", words)
    wanted, seen = list(names), set()
    while wanted:
        package = wanted.pop()
        if package not in seen and package in depends and package not in LEAVE_OUT:
            seen.add(package)
            wanted += depends[package]
    return seen


def add_system(tree: Tree) -> list[str]:
    """The programs of this machine that tests use; the names of those that are missing."""
    found = {name: shutil.which(name, path=SYSTEM_PATH) for name in PROGRAMS}
    packages = sorted(packages_of({name: path for name, path in found.items() if path}))
    listed = subprocess.run(["dpkg", "-L", *packages], capture_output=True, text=True).stdout.splitlines()
    for path in listed:
        is_folder = os.path.isdir(path) and not os.path.islink(path)
        if path.startswith("/") and not UNREAD.search(path) and os.path.lexists(path) and not is_folder:
            tree.add(path)
    for path in found.values():
        if path:
            tree.add_program(path)
    for name in ("libnss_files.so.2", "libgcc_s.so.1"):
        for path in pathlib.Path("/lib/x86_64-linux-gnu").glob(name):
            tree.add_program(path)
    if os.path.exists("/etc/alternatives"):
        for link in pathlib.Path("/etc/alternatives").iterdir():
            if tree.place(os.path.realpath(link)).exists():
                tree.place(link).unlink(missing_ok=True)
                tree.place(link).symlink_to(os.readlink(link))
    tree.write("/etc/passwd", "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n")
    tree.write("/etc/group", "root:x:0:\nnogroup:x:65534:\n")
    tree.write("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n")
    tree.write("/etc/hosts", "127.0.0.1 localhost\n::1 localhost\n")
    tree.place("/etc/ld.so.cache").unlink(missing_ok=True)
    shutil.copy2("/etc/ld.so.cache", tree.place("/etc/ld.so.cache"))
    return [name for name, path in found.items() if not path]


def disk(tree: Tree, image: pathlib.Path, spare_mib: int) -> None:
    """An ext4 file system that holds the tree and has room to spare; no privilege is needed."""
    mke2fs = shutil.which("mke2fs", path=SYSTEM_PATH)
    if not mke2fs:
        raise Unavailable("there is no mke2fs here (package e2fsprogs): no disk for the guests can be made")
    used = int(subprocess.run(["du", "-sm", tree.root], capture_output=True, text=True, check=True).stdout.split()[0])
    fresh = image.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    # No journal of a recent kind, and no feature that Linux 5.10 does not know.
    options = ["-q", "-F", "-t", "ext4", "-O", "^has_journal,^metadata_csum_seed,^orphan_file", "-m", "0", "-E", "root_owner=0:0"]
    made = subprocess.run([mke2fs, *options, "-d", tree.root, fresh, f"{used * 11 // 10 + spare_mib}M"], capture_output=True, text=True)
    if made.returncode != 0 and "Invalid filesystem option" in made.stderr:
        options[5] = "^has_journal"
        made = subprocess.run([mke2fs, *options, "-d", tree.root, fresh, f"{used * 11 // 10 + spare_mib}M"], capture_output=True, text=True)
    if made.returncode != 0:
        raise RuntimeError(f"mke2fs: {made.stderr}")
    fresh.rename(image)


def modules_for(kernel: Kernel) -> list[pathlib.Path]:
    """The files of the modules a guest needs and the kernel has not built in, in the order they are to be loaded."""
    builtin_list = kernel.modules / "modules.builtin"
    builtin = {module_name(line) for line in builtin_list.read_text().split()} if builtin_list.exists() else set()
    files = {module_name(path.name): path for path in kernel.modules.rglob("*.ko*")}
    order: list[pathlib.Path] = []

    def need(name: str) -> None:
        if name in builtin or name not in files or files[name] in order:
            return
        for other in dependencies(files[name]):
            need(other)
        order.append(files[name])

    for name in MODULES:
        need(name)
        # What ext4 asks for by the name of an algorithm.
        if name == "ext4":
            need("crc32c_generic")
    return order


def module_name(path: str) -> str:
    return re.sub(r"\.ko.*$", "", pathlib.PurePosixPath(path).name).replace("-", "_")


def module_bytes(path: pathlib.Path) -> bytes:
    """A module as the kernel takes it, unpacked."""
    data = path.read_bytes()
    if path.suffix == ".xz":
        return lzma.decompress(data)
    if path.suffix == ".gz":
        return gzip.decompress(data)
    if path.suffix == ".zst":
        return subprocess.run(["zstd", "-dc"], input=data, stdout=subprocess.PIPE, check=True).stdout
    return data


def dependencies(path: pathlib.Path) -> list[str]:
    """The modules a module says it needs."""
    match = re.search(rb"\0depends=([^\0]*)", module_bytes(path))
    return [name.replace("-", "_") for name in match[1].decode().split(",") if name] if match else []


def first_files(kernel: Kernel, folder: pathlib.Path, init: pathlib.Path, files: dict[str, str]) -> pathlib.Path:
    """The initial file system: busybox, the modules that reach the disk, an init that goes on from there, and `files` for it."""
    busybox = shutil.which("busybox", path=SYSTEM_PATH)
    if not busybox or libraries(busybox):
        raise Unavailable("there is no static busybox here (package busybox-static)")
    root = folder / "first"
    shutil.rmtree(root, ignore_errors=True)
    for name in ("bin", "dev", "proc", "sys", "root", "modules", "guest"):
        (root / name).mkdir(parents=True)
    for name, text in files.items():
        (root / "guest" / name).write_text(text)
    shutil.copy2(busybox, root / "bin/busybox")
    shutil.copy2(init, root / "init")
    (root / "init").chmod(0o755)
    order = modules_for(kernel)
    for path in order:
        (root / "modules" / f"{module_name(path.name)}.ko").write_bytes(module_bytes(path))
    (root / "order").write_text("".join(f"{module_name(path.name)}\n" for path in order))
    archive = folder / "first.cpio.gz"
    names = "".join(f"{path.relative_to(root)}\n" for path in sorted(root.rglob("*")))
    packed = subprocess.run([busybox, "cpio", "-o", "-H", "newc"], cwd=root, input=names.encode(), capture_output=True, check=True).stdout
    archive.write_bytes(gzip.compress(packed, 1))
    return archive
