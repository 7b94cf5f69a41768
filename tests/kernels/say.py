"""What the driver says, and how it says that something could not be had."""
import sys


class Unavailable(Exception):
    """Something this machine lacks and that cannot be got now: what depends on it is skipped, loudly."""


def say(text: str) -> None:
    """One line for whoever waits, at once."""
    print(text, flush=True)


def warn(text: str) -> None:
    """The same, where it is seen even if standard output goes to a file."""
    print(text, file=sys.stderr, flush=True)
