"""A plugin for pytest (-p under_arena) that runs all tests with numpy's memory in an arena, by
PAGETIDE_RESIDENT, PAGETIDE_SMALL and PAGETIDE_STORE. At the end it says what the arena saw."""

import os

import pagetide

_arena = pagetide.numpy(
    os.environ.get("PAGETIDE_RESIDENT", "64M"),
    os.environ.get("PAGETIDE_STORE", "ram:"),
    small=os.environ.get("PAGETIDE_SMALL", "64K"),
)


def pytest_configure(config):
    # In the context that tests run in.
    _arena.__enter__()


def pytest_terminal_summary(terminalreporter):
    seen = _arena.stats()
    names = ["used_bytes_max", "resident_bytes_max", "evictions", "fetched_pages", "faults", "errors"]
    terminalreporter.write_line("arena: " + ", ".join(f"{name} {seen[name]}" for name in names))
