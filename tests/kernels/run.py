#!/usr/bin/env python3
"""Runs Pagetide's tests on other kernels than this machine's, in QEMU.

Debian's cloud kernels are looked up, downloaded and unpacked (not installed); one disk image with the test executables that cargo built
serves them all. What runs is in tests.list. A line a test, a table at the end; 1 if anything failed, 0 otherwise. What cannot be had here
is SKIPPED, loudly.
"""
import argparse
import concurrent.futures
import os
import pathlib
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import image
import plan
from kernels import Debian, Kernel
from machine import Machine, emulator
from report import Account, Report
from say import Unavailable, say, warn

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
KERNELS = "5.10 6.1 6.12 6.18 7.3"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kernels", nargs="*", default=KERNELS.split(), metavar="X.Y", help=f"kernels to run on (default: {KERNELS})")
    parser.add_argument("--suite", choices=("quick", "full"), default="full", help="how much of tests.list to run")
    parser.add_argument("--only", action="append", default=[], metavar="PATTERN", help="only tests whose name has this in it, whatever the suite")
    parser.add_argument("--without", action="append", default=[], metavar="PATTERN", help="not those whose name has this in it")
    parser.add_argument("--repeat", type=int, default=1, metavar="N", help="each test so many times")
    parser.add_argument("--machines", type=int, default=len(os.sched_getaffinity(0)), help="guests at a time (default: one a processor)")
    parser.add_argument("--parts", type=int, default=1, help="guests a kernel, each with a part of the tests (default: 1)")
    parser.add_argument("--memory", type=int, default=2048, metavar="MIB", help="memory of a guest")
    parser.add_argument("--limit", type=int, default=900, metavar="SECONDS", help="limit of a test that tests.list gives none")
    parser.add_argument("--scale", type=float, default=2, help="what the tests' own time limits are multiplied by")
    parser.add_argument("--mirror", help="Debian's mirror (default: the one apt is set up with)")
    parser.add_argument("--security-mirror", help="the mirror of Debian's security updates")
    parser.add_argument("--no-build", action="store_true", help="take the image as it is")
    return parser.parse_args()


def target_folder() -> pathlib.Path:
    return (ROOT / os.environ.get("CARGO_TARGET_DIR", "target")).resolve()


def compile_programs(executables: list[plan.Executable]) -> None:
    """The C programs of the tests, which a guest finds compiled."""
    hazards = next(executable for executable in executables if executable.name == "cli/hazards")
    subprocess.run([hazards.path, "--exact", "every_program_compiles", "--nocapture"], cwd=hazards.directory, check=True, stdout=subprocess.DEVNULL)


def build_disk(executables: list[plan.Executable], target: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """The disk of all guests: this machine's programs, and what cargo built at the same places."""
    say("building the guests' disk")
    tree = image.Tree(folder / "root")
    missing = image.add_system(tree)
    if missing:
        warn(f"SKIPPED: not installed here, so tests that need them are skipped in the guests: {' '.join(missing)}")
    for executable in executables:
        tree.add_program(executable.path, strip=True)
    for name in ("pagetide", "libpagetide_preload.so", "pagetide-bench"):
        tree.add_program(target / "debug" / name, strip=True)
    for name in ("hazards", "programs"):
        for program in sorted((target / "tmp" / name).iterdir()):
            tree.add_program(program, strip=True)
    for package in sorted((ROOT / "crates").iterdir()):
        tree.add(package / "Cargo.toml")
        tree.add_all(package / "tests")
    tree.place(target / "tmp").mkdir(exist_ok=True)
    disk = folder / "disk.ext4"
    image.disk(tree, disk, spare_mib=1024)
    return disk


def guest_files(kernel: Kernel, tests: list[plan.Test], folder: pathlib.Path, environment: dict[str, str]) -> pathlib.Path:
    """The guest's first file system, with the list of its tests."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {
        "run-tests": (HERE / "guest/run-tests").read_text(),
        "list": "".join(test.line() + "\n" for test in tests),
        "environment": "".join(f"{name}={value}\n" for name, value in environment.items()),
    }
    return image.first_files(kernel, folder, HERE / "guest/init", files)


def run_kernel(kernel: Kernel, parts: list[list[plan.Test]], folder: pathlib.Path, options, report: Report, pool) -> Account:
    """All tests on one kernel."""

    account = Account(kernel.wanted, kernel.release)

    def run_part(number: int) -> None:
        begun = time.monotonic()
        place = folder / "guests" / f"{kernel.wanted}-{number}"
        first = guest_files(kernel, parts[number], place, plan.environment(target_folder(), options.scale))
        machine = Machine(kernel, first, folder / "disk.ext4", place, options.memory)
        expected = [(test.name, test.limit) for test in parts[number]]
        account.results += machine.run(expected, lambda result: report.each(kernel.wanted, result))
        account.complaints += machine.kernel_complaints()
        account.seconds += time.monotonic() - begun
        account.cpu_seconds += machine.cpu_seconds

    for part in [pool.submit(run_part, number) for number in range(len(parts))]:
        part.result()
    return account


def doctor(target: pathlib.Path, limit: int) -> plan.Test:
    """What `pagetide doctor` says of the kernel, kept in its log; 3 is a failure, 1 (degraded) is none."""
    command = f"{target}/debug/pagetide doctor; code=$?; echo doctor exits with $code; [ $code -lt 3 ]"
    return plan.Test("doctor", None, command, limit, [])


def main() -> int:
    options = arguments()
    target = target_folder()
    folder = target / "kernels"
    folder.mkdir(parents=True, exist_ok=True)
    accounts: list[Account] = []
    kernels: list[Kernel] = []
    try:
        emulator()
        debian = Debian(folder, options.mirror, options.security_mirror)
    except Unavailable as reason:
        warn(f"SKIPPED: no test was run on another kernel: {reason}")
        return 0
    for wanted in options.kernels:
        try:
            kernels.append(debian.get(wanted))
        except Unavailable as reason:
            warn(f"SKIPPED: kernel {wanted}: {reason}")
            accounts.append(Account(wanted, reason=str(reason)))
    report = Report(folder / "logs")
    if kernels:
        executables = plan.build(ROOT, os.environ.get("CARGO", "cargo"))
        tests = plan.plan(executables, plan.read_rules(HERE / "tests.list"), options.suite, options.only, options.without, options.limit)
        tests = [test for test in tests for _ in range(options.repeat)]
        if not options.no_build:
            try:
                compile_programs(executables)
                build_disk(executables, target, folder)
            except Unavailable as reason:
                warn(f"SKIPPED: no test was run on another kernel: {reason}")
                return 0
        tests.insert(0, doctor(target, options.limit))
        parts = [tests[number :: options.parts] for number in range(options.parts)]
        say(f"{len(tests)} tests on {' '.join(kernel.release for kernel in kernels)}")
        with (
            concurrent.futures.ThreadPoolExecutor(options.machines) as pool,
            concurrent.futures.ThreadPoolExecutor(len(kernels)) as runs,
        ):
            futures = [runs.submit(run_kernel, kernel, parts, folder, options, report, pool) for kernel in kernels]
            accounts += [future.result() for future in futures]
    accounts.sort(key=lambda account: options.kernels.index(account.wanted))
    report.table(accounts)
    return 1 if any(account.failed() for account in accounts) else 0


def end_at_signal(number: int, _frame) -> None:
    """Guests must not outlive whoever started them."""
    Machine.stop_all()
    raise SystemExit(128 + number)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end_at_signal)
    sys.exit(main())
