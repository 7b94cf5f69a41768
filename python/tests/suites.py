"""Runs suites that others wrote, as they are and with numpy's memory in an arena, and names what
fails in the arena alone.

usage: suites.py [SUITE...], such as numpy._core or pandas.tests.groupby; with the Python of an
environment that has pagetide, numpy, pytest and hypothesis.
"""

import os
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree

HERE = pathlib.Path(__file__).parent
SUITES = ["numpy._core", "numpy.lib", "numpy.linalg"]


def run(suites, directory, *options):
    """The tests that failed, and how many did not."""
    report = pathlib.Path(directory, "report.xml")
    report.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=no", *options]
    command += ["-m", "not slow and not network", f"--junitxml={report}", "--pyargs", *suites]
    environment = {"PAGETIDE_SMALL": "4K", **os.environ, "PYTHONPATH": str(HERE)}
    done = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True)
    print("\n".join(done.stdout.splitlines()[-2:]), flush=True)
    if not report.exists():
        sys.exit(f"the suite did not come to its end:\n{done.stdout[-4000:]}{done.stderr[-4000:]}")
    cases = list(ElementTree.parse(report).iter("testcase"))
    failed = {
        f"{case.get('classname')}::{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    }
    return failed, len(cases) - len(failed)


def main():
    suites = sys.argv[1:] or SUITES
    with tempfile.TemporaryDirectory() as directory:
        before, _ = run(suites, directory)
        within, passed = run(suites, directory, "-p", "under_arena")
    more = sorted(within - before)
    print(f"{passed} did not fail in the arena; {len(before)} fail without it, and {len(more)} with it only")
    print(*more, sep="\n")
    sys.exit(bool(more))


if __name__ == "__main__":
    main()
