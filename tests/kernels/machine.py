"""Starts a kernel in QEMU and follows what it says."""
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import time
from collections.abc import Callable

from kernels import Kernel
from say import Unavailable

# Software emulation by name: /dev/kvm may open and be useless. QEMU 7.2 corrupts the flags in cmpxchg16b, with which kernels
# from 6.12 on fail as soon as they are busy: the processor has none.
EMULATION = "-accel tcg,thread=single -cpu qemu64,-cx16 -smp 2 -nographic -no-reboot -net none -monitor none -display none".split()
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

    def __init__(self, kernel: Kernel, first: pathlib.Path, disk: pathlib.Path, logs: pathlib.Path, memory_mib: int):
        self.kernel, self.logs = kernel, logs
        logs.mkdir(parents=True, exist_ok=True)
        self.console, self.answers = logs / "console.log", logs / "results.log"
        self.command = [
            emulator(), *EMULATION, "-m", str(memory_mib),
            "-kernel", str(kernel.image), "-initrd", str(first),
            "-append", "console=ttyS0 panic=-1 quiet loglevel=4 mitigations=off",
            "-drive", f"file={disk},format=raw,if=virtio,snapshot=on,cache=unsafe",
            "-serial", f"file:{self.console}", "-serial", f"file:{self.answers}",
        ]  # fmt: skip

    def run(self, expected: list[tuple[str, float]], each: Callable[[Result], None]) -> list[Result]:
        """Runs until the guest is done. `expected`: the names of the tests in their order, each with its limit in seconds."""
        for path in (self.console, self.answers):
            path.write_text("")
        process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=open(self.logs / "qemu.log", "w"))
        try:
            return self._follow(process, expected, each)
        finally:
            process.kill()
            process.wait()

    def _follow(self, process: subprocess.Popen, expected: list[tuple[str, float]], each: Callable[[Result], None]) -> list[Result]:
        results: list[Result] = []
        limits = dict(expected)
        allowed, silent_since, running, done = 180.0, time.monotonic(), None, False
        answers = Answers(self.answers)
        while True:
            ended = process.poll() is not None
            lines = answers.more()
            for line in lines:
                if line.startswith("begin "):
                    running = line.removeprefix("begin ")
                    # The guest itself goes to twice the limit, and describes what it ends.
                    allowed = 2 * limits.get(running, 0) + 180
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
        if ended:
            what = f"the guest ended before its tests did{during}"
        elif silent:
            what = f"the guest has stopped answering{during}"
        elif PANIC.search(said) and "Kernel panic" in said:
            what = f"the kernel panicked{during}"
        else:
            return None
        return [what, *said.splitlines()[-60:], *(self.logs / "qemu.log").read_text().splitlines()[-5:]]

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


def emulator() -> str:
    """QEMU's path."""
    path = shutil.which("qemu-system-x86_64")
    if not path or not os.access(path, os.X_OK):
        raise Unavailable("there is no qemu-system-x86_64 here (package qemu-system-x86)")
    return path
