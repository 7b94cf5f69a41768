"""Starts a kernel in QEMU and follows what it says."""
import dataclasses
import os
import pathlib
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable

from kernels import Kernel
from say import Unavailable, warn

# Software emulation by name: /dev/kvm may open and be useless. QEMU 7.2 corrupts the flags in cmpxchg16b, with which kernels
# from 6.12 on fail as soon as they are busy: the processor has none.
EMULATION = "-accel tcg,thread=single -cpu qemu64,-cx16 -smp 2 -nographic -no-reboot -net none -display none".split()
PANIC = re.compile(r"Kernel panic|BUG: |Oops: |general protection fault|soft lockup|rcu.*detected stall")
TEST = re.compile(r"^TEST (ok|FAIL|SKIP) (\S+) (.*)$")


@dataclasses.dataclass
class Result:
    """How one test ended."""

    name: str
    verdict: str  # ok, FAIL or SKIP
    seconds: float
    output: list[str] = dataclasses.field(default_factory=list)


class Machine:
    """One guest: a kernel and the tests it was given."""

    running: set[subprocess.Popen] = set()
    stopped = False

    @classmethod
    def stop_all(cls) -> None:
        """Ends every guest, and lets none begin."""
        cls.stopped = True
        for process in list(cls.running):
            process.kill()

    def __init__(self, kernel: Kernel, first: pathlib.Path, disk: pathlib.Path, logs: pathlib.Path, memory_mib: int):
        self.kernel, self.logs, self.cpu_seconds = kernel, logs, 0.0
        logs.mkdir(parents=True, exist_ok=True)
        self.console, self.answers = logs / "console.log", logs / "results.log"
        self.command = [
            emulator(), *EMULATION, "-m", str(memory_mib),
            "-kernel", str(kernel.image), "-initrd", str(first),
            "-append", "console=ttyS0 panic=-1 quiet loglevel=4 mitigations=off unknown_nmi_panic=1 no_timer_check",
            "-drive", f"file={disk},format=raw,if=virtio,snapshot=on,cache=unsafe",
            "-serial", f"file:{self.console}", "-serial", f"file:{self.answers}",
            "-chardev", "socket,id=monitor,path=monitor,server=on,wait=off", "-mon", "chardev=monitor",
        ]  # fmt: skip

    def run(self, expected: list[tuple[str, float]], each: Callable[[Result], None]) -> list[Result]:
        """Runs until the guest is done. `expected`: the names of the tests in their order, each with its limit in seconds."""
        if Machine.stopped:
            return []
        for path in (self.console, self.answers):
            path.write_text("")
        with open(self.logs / "qemu.log", "w") as errors:
            process = subprocess.Popen(self.command, cwd=self.logs, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors)
        Machine.running.add(process)
        try:
            return self._follow(process, expected, each)
        finally:
            Machine.running.discard(process)
            process.kill()
            process.wait()

    def _follow(self, process: subprocess.Popen, expected: list[tuple[str, float]], each: Callable[[Result], None]) -> list[Result]:
        results: list[Result] = []
        limits = dict(expected)
        allowed, silent_since, running, done = 180.0, time.monotonic(), None, False
        answers = Answers(self.answers)
        while True:
            self.cpu_seconds = cpu_seconds(process.pid) or self.cpu_seconds
            ended = process.poll() is not None
            lines = answers.more()
            for line in lines:
                if line.startswith("begin "):
                    running = line.removeprefix("begin ")
                    # The guest itself goes to half as much again, and describes what it ends.
                    allowed = 1.5 * limits.get(running, 0) + 180
                elif line.startswith("TEST ") and (match := TEST.match(line)):
                    results.append(Result(match[3], match[1], float(match[2])))
                elif line.startswith("| ") and results:
                    results[-1].output.append(line[2:])
                elif line == "end" and results:
                    each(results[-1])
                    running = None
                elif line.startswith("done"):
                    done = True
            if lines:
                silent_since = time.monotonic()
            trouble = None if done else self._trouble(ended and not lines, time.monotonic() - silent_since > allowed, running)
            if trouble:
                results.append(Result(running or "the guest", "FAIL", time.monotonic() - silent_since, trouble))
                each(results[-1])
                return results
            if ended and not lines:
                return results
            time.sleep(0.3)

    def _trouble(self, ended: bool, silent: bool, running: str | None) -> list[str] | None:
        """What went wrong with the guest as a whole, with the end of what its kernel said."""
        said = self.console.read_text(errors="replace")
        during = f" during {running}" if running else ""
        if silent and not ended:
            self._ask_kernel()
            said = self.console.read_text(errors="replace")
        if ended:
            what = f"the guest ended before its tests did{during}"
        elif silent:
            what = f"the guest has stopped answering{during}"
        elif PANIC.search(said) and "Kernel panic" in said:
            what = f"the kernel panicked{during}"
        else:
            return None
        return [what, *said.splitlines()[-60:], *(self.logs / "qemu.log").read_text().splitlines()[-5:]]

    def _ask_kernel(self) -> None:
        """Has a kernel that does not answer say what each processor does: an NMI makes it print that, if anything can."""
        try:
            with socket.socket(socket.AF_UNIX) as monitor:
                # By the directory's descriptor: the path may be longer than a socket's may be.
                folder = os.open(self.logs, os.O_PATH)
                monitor.connect(f"/proc/self/fd/{folder}/monitor")
                os.close(folder)
                monitor.sendall(b"info registers -a\nnmi\n")
                time.sleep(5)
                (self.logs / "registers.log").write_bytes(monitor.recv(1 << 20))
        except OSError as error:
            warn(f"{self.kernel.wanted}: the emulator does not answer either: {error}")

    def kernel_complaints(self) -> list[str]:
        """Lines of an oops or a warning on the kernel's console, whatever the tests say."""
        said = self.console.read_text(errors="replace").splitlines()
        return [line for line in said if PANIC.search(line)]


class Answers:
    """The lines a growing file gets."""

    def __init__(self, path: pathlib.Path):
        self.path, self.offset, self.rest = path, 0, ""

    def more(self) -> list[str]:
        with open(self.path, "rb") as file:
            file.seek(self.offset)
            fresh = file.read()
        self.offset += len(fresh)
        *lines, self.rest = (self.rest + fresh.decode(errors="replace")).split("\n")
        return [line.rstrip("\r") for line in lines]


def cpu_seconds(pid: int) -> float:
    """What a process took of this machine's processors: on a busy machine that says more than the time that went by."""
    try:
        fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def emulator() -> str:
    """QEMU's path."""
    path = shutil.which("qemu-system-x86_64")
    if not path or not os.access(path, os.X_OK):
        raise Unavailable("there is no qemu-system-x86_64 here (package qemu-system-x86)")
    return path
