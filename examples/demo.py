"""Runs a Python program twice, by itself and at a quarter of the memory it then used, and shows what came out.

usage: demo.py --pagetide COMMAND --out DIRECTORY [--mib N]
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAM = os.path.normpath(os.path.join(HERE, "..", "crates", "cli", "tests", "programs", "sort_and_hash.py"))

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def children(pid):
    """`pid` and everything that descends from it."""
    parents = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as stat:
                parents[int(name)] = int(stat.read().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError):
            continue
    members = [pid]
    for member in members:
        members.extend(child for child, parent in parents.items() if parent == member)
    return members


def resident(pid):
    """RssAnon in bytes, 0 when it has gone."""
    try:
        with open(f"/proc/{pid}/status") as status:
            return next((int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon:")), 0)
    except OSError:
        return 0


def end(process):
    """Ends it and all that descends from it: a program goes on under its agent when the launcher is killed."""
    family = children(process.pid)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for member in family:
            try:
                os.kill(member, number)
            except ProcessLookupError:
                continue
        try:
            process.wait(timeout=3)
        except subprocess.TimeoutExpired:
            continue


def run(command):
    """Runs it to its end: what it printed, the most one process had resident, and the seconds it took."""
    started = time.monotonic()
    # Not in the terminal's group: what Ctrl-C is to end is ended here, without words of its own.
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    peak = 0
    ended = threading.Event()

    def watch():
        nonlocal peak
        # The program shows its progress on a terminal; elsewhere somebody has to say that it goes on.
        said = None if sys.stderr.isatty() else started
        while not ended.wait(0.05):
            now_resident = max(map(resident, children(process.pid)))
            peak = max(peak, now_resident)
            now = time.monotonic()
            if said is not None and now - said >= 10:
                said = now
                print(f"  after {now - started:.0f} s: {mib(now_resident)} resident", flush=True)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        printed = process.communicate()[0]
    except BaseException:
        end(process)
        raise
    finally:
        ended.set()
    watcher.join()
    if process.returncode != 0:
        sys.exit(f"`{' '.join(command)}` exited with {process.returncode}")
    return printed, peak, time.monotonic() - started


def interrupted(number, _frame):
    """Signals end it as they end a shell's command; the first one counts."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


def mib(count):
    return f"{count / 2**20:,.0f} MiB"


def main():
    for number in SIGNALS:
        signal.signal(number, interrupted)
    parser = argparse.ArgumentParser()
    parser.add_argument("--pagetide", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--mib", type=int, default=512)
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)
    plot, stats = (os.path.join(options.out, name) for name in ("pagetide-demo.svg", "stats.json"))

    doctor = subprocess.run([options.pagetide, "doctor"], capture_output=True, text=True)
    if doctor.returncode == 3:
        sys.exit(f"programs cannot be paged on this system; `pagetide doctor` says:\n{doctor.stdout}{doctor.stderr}")
    # The interpreter itself: version managers put scripts in its place.
    command = [os.path.realpath(sys.executable), PROGRAM, str(options.mib)]
    print(f"A Python program builds, sorts and hashes {mib(options.mib << 20)} of records.\n\nBy itself:", flush=True)
    native, native_peak, native_seconds = run(command)
    print(f"{native_seconds:.1f} s", flush=True)
    budget = native_peak // 4
    print(f"\nUnder Pagetide, with {mib(budget)} resident at most, a quarter of the {mib(native_peak)} it used:", flush=True)
    governed = [options.pagetide, "run", "--quiet", "--resident", str(budget), "--stats", stats, "--plot", plot, "--", *command]
    paged, paged_peak, paged_seconds = run(governed)
    with open(stats) as file:
        told = json.loads(file.readline())
    if native != paged:
        sys.exit(f"FAILED: the results differ\nby itself: {native.decode()}under Pagetide: {paged.decode()}")

    latency = told["fault_latency_ns"]
    rows = [
        ("result", native.decode().split("sha256 ")[1][:16] + "...", "the same"),
        ("resident at most (kernel's count)", mib(native_peak), mib(paged_peak)),
        ("budget", "none", mib(told["budget_bytes"])),
        ("managed at most", "", mib(told["managed_bytes_max"])),
        ("store at most", "", f"{mib(told['store_bytes_max'])}, compressed {told['compression_ratio']:.2f} times"),
        ("time", f"{native_seconds:.1f} s", f"{paged_seconds:.1f} s"),
        ("faults", "", f"{told['faults']:,}"),
        ("pages fetched / written back", "", f"{told['fetched_pages']:,} / {told['writebacks']:,}"),
        ("fault latency, mean / p99", "", f"{latency['mean'] / 1e3:.1f} / {latency['p99'] / 1e3:.1f} us"),
        ("store errors", "", str(told["errors"])),
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    print(f"\n{'':{widths[0]}}  {'by itself':{widths[1]}}  under Pagetide")
    for name, before, after in rows:
        print(f"{name:{widths[0]}}  {before:{widths[1]}}  {after}")
    print(f"\nresident memory over time, with the fault rate: {plot}")


main()
