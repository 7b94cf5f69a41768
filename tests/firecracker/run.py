#!/usr/bin/env python3
"""`pagetide serve firecracker` with Firecracker's own crates as its client, and with Firecracker.

usage: run.py --pagetide PATH --work DIRECTORY [--only WORD]

The client is built by cargo from Cargo.toml beside this; its `userfaultfd` needs libclang. Firecracker
itself is run where the environment's PAGETIDE_FIRECRACKER, or PATH, names it and /dev/kvm runs a
guest. What cannot be had is SKIPPED, loudly; exit code 77 if that is everything.
"""
import argparse
import os
import subprocess
import sys
from pathlib import Path

import clients
import machines
from serving import Failed, Server, Unable, fresh, say

HERE = Path(__file__).resolve().parent


def build_client(work):
    """The client's executable."""
    target = work / "client"
    words = [os.environ.get("CARGO", "cargo"), "build", "--quiet", "--locked"]
    words += ["--manifest-path", HERE / "Cargo.toml", "--target-dir", target]
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except OSError as error:
        raise Unable(f"cargo does not run: {error}") from error
    if done.returncode:
        raise Unable(f"it cannot be built here (is there a libclang?): {done.stderr.strip()[-600:]}")
    return target / "debug/firecracker-client"


class Start:
    """Starts servers, one at a time, in a directory of theirs."""

    def __init__(self, pagetide, place):
        self.pagetide, self.place = pagetide, place

    def __call__(self, image, options, name=None):
        """Over the file that `image` makes in that directory, or has elsewhere."""
        fresh(self.place)
        return Server(self.pagetide, self.place, image(self.place), options, name)


class Run:
    """What was run, and what failed."""

    def __init__(self, only):
        self.only = only
        self.passed, self.failed = 0, []

    def run(self, label, test):
        if self.only not in label:
            return
        try:
            figures = test()
        except Unable as why:
            return say(f"SKIPPED: {label}: {why}")
        except (Failed, OSError, subprocess.SubprocessError) as error:
            self.failed.append(label)
            return say(f"{label}: FAILED: {error}")
        self.passed += 1
        say(f"{label}: right; {figures}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pagetide", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--only", default="", metavar="WORD")
    options = parser.parse_args()
    options.work, options.pagetide = options.work.resolve(), options.pagetide.resolve()
    options.work.mkdir(parents=True, exist_ok=True)
    run = Run(options.only)
    start = Start(options.pagetide, options.work / "server")
    for what, prepare, tests in [
        ("a client of Firecracker's crates", build_client, clients.tests),
        ("Firecracker itself", machines.prepare, machines.tests),
    ]:
        try:
            made = tests(prepare(options.work), start)
        except Unable as why:
            say(f"SKIPPED: {what}: {why}")
            continue
        for name, test in made:
            run.run(f"{what}, {name}", test)
    if run.failed:
        say(f"FAILED: {'; '.join(run.failed)}")
        return 1
    return 0 if run.passed else 77


if __name__ == "__main__":
    sys.exit(main())
