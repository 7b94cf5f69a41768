"""What the tests share. Without the right to open a userfaultfd they are skipped, loudly."""

import subprocess
import sys
import textwrap

import pytest

import pagetide


def pytest_report_header():
    try:
        pagetide.zeros(1)
    except pagetide.errors.StartError as error:
        return f"SKIPPED: no region can be made here: {error}"
    return f"pagetide from {pagetide.__file__}"


@pytest.fixture(autouse=True)
def can_page(request):
    if "anywhere" in request.keywords:
        return
    try:
        pagetide.zeros(1)
    except pagetide.errors.StartError as error:
        pytest.skip(f"no region can be made here: {error}")


def pytest_configure(config):
    config.addinivalue_line("markers", "anywhere: needs no userfaultfd")


@pytest.fixture
def python():
    """Runs a program of its own, and gives what became of it."""

    def run(program, *options):
        return subprocess.run(
            [sys.executable, *options, "-c", textwrap.dedent(program)],
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run
