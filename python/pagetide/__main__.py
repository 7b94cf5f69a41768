"""The `pagetide` command, which the wheel brings along: ``python -m pagetide``."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Becomes the command, with the same arguments."""
    command = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_bin", "pagetide")
    try:
        os.execv(command, ["pagetide", *sys.argv[1:]])
    except OSError as error:
        sys.exit(f"pagetide: {command}: {error.strerror}; install the wheel that `make python` built")


if __name__ == "__main__":
    main()
