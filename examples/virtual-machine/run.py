#!/usr/bin/env python3
"""A whole virtual machine whose memory is on a server: boots it, shrinks it live to 180 pages, grows it back.

usage: run.py --pagetide PATH --kernel VMLINUZ [--memory MIB] [--resident SIZE] [--store URI]

Without --store a redis-server is started on a private socket. The guest fills and verifies 55 % of its memory and answers lines on
its serial console. Exits with 0 only if it answered after every change, and every byte verified.
"""
import argparse, os, pathlib, re, select, shutil, signal, subprocess, sys, tempfile, time

HERE = pathlib.Path(__file__).parent


def initramfs(directory: pathlib.Path) -> pathlib.Path:
    """busybox, a shell script as init, and a console: nothing else."""
    root = directory / "root"
    (root / "bin").mkdir(parents=True)
    shutil.copy(shutil.which("busybox"), root / "bin/busybox")
    shutil.copy(HERE / "init", root / "init")
    os.chmod(root / "init", 0o755)
    (root / "dev").mkdir()
    os.mknod(root / "dev/console", 0o600 | 0o020000, os.makedev(5, 1))
    archive = directory / "initramfs"
    names = "\n".join(str(p.relative_to(root)) for p in sorted(root.rglob("*"))).encode()
    cpio = [shutil.which("cpio")] if shutil.which("cpio") else [shutil.which("busybox"), "cpio"]
    with open(archive, "wb") as out:
        subprocess.run(cpio + ["-o", "-H", "newc"], cwd=root, input=names, stdout=out, stderr=subprocess.DEVNULL, check=True)
    return archive


class Guest:
    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.said = b""

    def wait_for(self, words: str, seconds: float) -> str:
        end = time.monotonic() + seconds
        while words.encode() not in self.said:
            if b"CORRUPT" in self.said:
                raise SystemExit("the guest found corrupt memory")
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise SystemExit(f"no `{words}` within {seconds} s; the last it said:\n" + self.said[-2000:].decode(errors="replace"))
            block = os.read(self.process.stdout.fileno(), 65536)
            if not block:
                raise SystemExit(f"the guest ended ({self.process.wait()}):\n" + self.said[-2000:].decode(errors="replace"))
            self.said += block
        before, _, self.said = self.said.partition(words.encode())
        return before.decode(errors="replace")

    def tell(self, line: str, answer: str, seconds: float):
        begun = time.monotonic()
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()
        self.wait_for(answer, seconds)
        return time.monotonic() - begun


def machine(root: int) -> int:
    """The process below `root` that is the virtual machine."""
    for status in pathlib.Path("/proc").glob("[0-9]*/status"):
        try:
            text = status.read_text()
        except OSError:
            continue
        if f"PPid:\t{root}\n" in text and "Name:\tqemu" in text:
            return int(status.parent.name)
    raise SystemExit("the virtual machine is not running")


def governed_resident(pid: int) -> int:
    """Resident bytes of the governed mappings: those the kernel marks as registered with a userfaultfd (`um`). The agent's own tables, a
    large mapping too, are not among them."""
    total = 0
    for block in re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", pathlib.Path(f"/proc/{pid}/smaps").read_text()):
        size, rss = (int(re.search(rf"^{name}:\s+(\d+)", block, re.M)[1]) << 10 for name in ("Size", "Rss"))
        if size > 128 << 20 and re.search(r"^VmFlags:.* um\b", block, re.M):
            total += rss
    return total


def size_bytes(text: str) -> int:
    return int(text[:-1]) << 20 if text.endswith("M") else int(text)


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--pagetide", default="pagetide")
    options.add_argument("--kernel", required=True)
    options.add_argument("--memory", type=int, default=512, metavar="MIB")
    options.add_argument("--resident", default="51M")
    options.add_argument("--store")
    options = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory, server = pathlib.Path(name), None
        store = options.store
        try:
            if store is None:
                socket = directory / "socket"
                server = subprocess.Popen(
                    ["redis-server", "--port", "0", "--save", "", "--unixsocket", socket, "--dir", directory], stdout=subprocess.DEVNULL
                )
                while not socket.exists():
                    time.sleep(0.01)
                store = f"valkey+unix://{socket}"
            show(options, store, initramfs(directory))
        finally:
            if server:
                server.kill()
                server.wait()


def show(options, store, archive):
    guest = Guest(
        [options.pagetide, "run", "--resident", options.resident, "--store", store, "--only-mappings-over", "128M", "--quiet", "--"]
        + ["qemu-system-x86_64", "-accel", "tcg", "-m", str(options.memory), "-nographic", "-no-reboot", "-net", "none"]
        + ["-kernel", options.kernel, "-initrd", str(archive), "-append", "console=ttyS0 quiet panic=-1"]
    )
    try:
        begun = time.monotonic()
        guest.wait_for("GUEST filled", 900)
        print(f"booted, memory filled after {time.monotonic() - begun:.0f} s", flush=True)
        guest.wait_for("GUEST verified", 900)
        pid = machine(guest.process.pid)
        for size in [options.resident, "4M", str(180 * 4096), options.resident]:
            subprocess.run([options.pagetide, "limit", "--timeout", "120", str(pid), size], check=True, stdout=subprocess.DEVNULL)
            resident = governed_resident(pid)
            # For 2 ms a budget of at most 1 MiB may be exceeded by 64 pages.
            if not 0 < resident <= size_bytes(size) + 64 * 4096:
                raise SystemExit(f"at {size}: {resident >> 10} KiB are resident")
            took = guest.tell(f"hello {size}", f"GUEST hears hello {size}", 600)
            print(f"at {size}: {resident >> 10} KiB of the machine's memory resident, answers after {took:.1f} s", flush=True)
        guest.tell("verify", "GUEST verified", 900)
        print("every byte verified", flush=True)
        guest.tell("stop", "GUEST stops", 60)
        if guest.process.wait(60) != 0:
            raise SystemExit(f"the virtual machine ended with {guest.process.returncode}")
    finally:
        if guest.process.poll() is None:
            guest.process.send_signal(signal.SIGTERM)
            guest.process.wait(60)


main()
