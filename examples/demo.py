"""Runs sqlite alone, in 60 % of its memory under Pagetide, and in as much under the kernel's swap, and shows what came out.

usage: demo.py --pagetide COMMAND --out DIRECTORY [--scale N]
"""

import argparse
import json
import os
import signal
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPT = os.path.normpath(os.path.join(HERE, "..", "crates", "bench", "programs", "items.sql"))
ROWS = 1_500_000

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def interrupted(number, _frame):
    """Signals end it as they end a shell's command; the first one counts."""
    for each in SIGNALS:
        signal.signal(each, signal.SIG_IGN)
    sys.exit(128 + number)


def printed_by(command):
    """What it prints. It is interrupted with us, and puts the machine back as it was before it ends."""
    # Not in the terminal's group: what Ctrl-C is to end is ended here, without words of its own.
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    try:
        printed = process.communicate()[0]
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if process.returncode != 0:
        sys.exit(f"`{' '.join(command)}` exited with {process.returncode}")
    return printed


def mib(count):
    return f"{count / 2**20:,.0f} MiB"


def seconds(number, alone):
    return f"{number:.1f} s" + (f", {number / alone:.1f} times" if number != alone else "")


def column(side, alone):
    """What one side of the table says: result, time, processor time, memory in all, pages read and written."""
    if side is None:
        return ["not measured"] + [""] * 5
    if side["failures"]:
        return [f"failed: {side['failures'][0]}"] + [""] * 5
    found = side["median"]
    pages = [found["demand_pages"], found["ahead_pages"], found["written_pages"]]
    read = (pages[0] or 0) + (pages[1] or 0)
    return [
        "the same" if side is not alone else found["output"].split()[0][:16],
        seconds(found["wall_seconds"], alone["median"]["wall_seconds"]),
        seconds(found["cpu_seconds"], alone["median"]["cpu_seconds"]),
        mib(found["memory_bytes"]) if found["memory_bytes"] else "",
        f"{read:,}" if pages[0] is not None else "",
        f"{pages[2]:,}" if pages[2] is not None else "",
    ]


def main():
    for number in SIGNALS:
        signal.signal(number, interrupted)
    parser = argparse.ArgumentParser()
    parser.add_argument("--pagetide", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--scale", default="0.5")
    options = parser.parse_args()
    os.makedirs(options.out, exist_ok=True)

    doctor = subprocess.run([options.pagetide, "doctor"], capture_output=True, text=True)
    if doctor.returncode == 3:
        sys.exit(f"programs cannot be paged on this system; `pagetide doctor` says:\n{doctor.stdout}{doctor.stderr}")

    print("sqlite builds a database in memory, with two indexes, and works on it.", flush=True)
    bench = [options.pagetide, "bench", "programs", "--only", "sqlite", "--share", "60%", "--runs", "1"]
    found = json.loads(printed_by([*bench, "--scale", options.scale, "--json", "-"]))
    if not found["programs"]:
        sys.exit("\n".join(f"not measured: {what}: {why}" for what, why in found["not_measured"]))
    sqlite = found["programs"][0]
    row, alone = sqlite["rows"][0], sqlite["alone"]
    names = ["", "result", "time", "processor time", "most memory in all", "pages read back", "pages written out"]
    columns = [
        ["alone", *column(alone, alone)],
        [f"pagetide run --resident {mib(row['resident_bytes'])}", *column(row["pagetide"], alone)],
        ["swap on zram, the same bound", *column(row["swap"], alone)],
    ]
    columns[0][4] = mib(sqlite["peak_bytes"])
    widths = [max(map(len, each)) for each in [names, *columns]]
    print()
    for line in zip(names, *columns):
        print("  ".join(f"{cell:{width}}" for cell, width in zip(line, widths)).rstrip())
    for what, why in found["not_measured"]:
        print(f"\nSKIPPED: {what}: {why}")

    plot = os.path.join(options.out, "pagetide-demo.svg")
    print("\nOnce more, for a picture.", flush=True)
    draw = ["run", "--quiet", "--resident", str(row["resident_bytes"]), "--plot", plot, "--"]
    rows = f".parameter set @rows {int(ROWS * float(options.scale))}"
    words = [*("-init", "/dev/null"), *("-cmd", "PRAGMA temp_store = MEMORY"), *("-cmd", ".parameter init"), *("-cmd", rows)]
    printed_by([options.pagetide, *draw, "sqlite3", *words, ":memory:", f".read {SCRIPT}"])
    print(f"resident memory over time, with the fault rate: {plot}")
    if row["pagetide"]["failures"]:
        sys.exit(1)


main()
