"""What can go wrong. All are :class:`PagetideError`; the numbers of each are attributes."""

from __future__ import annotations


class PagetideError(Exception):
    """The base of all. ``str()`` names the value, what was expected, and the next step."""

    def __init__(self, message: str = "", **numbers: object) -> None:
        super().__init__(message)
        self.__dict__.update(numbers)


class ShapeError(PagetideError, ValueError):
    """A shape or length that cannot be mapped."""

    bytes: int
    """Bytes that were asked for."""


class DTypeError(PagetideError, TypeError):
    """A dtype that cannot lie in a region: Python objects, or items of no size."""


class SizeError(PagetideError, ValueError):
    """A size that is no number of bytes: write 4294967296 or "4G"."""


class RangeError(PagetideError, IndexError):
    """A part that reaches beyond its region."""

    start: int
    """First byte of the part, from the beginning of the region."""
    stop: int
    """First byte after it."""
    length: int
    """Bytes of the region."""


class StartError(PagetideError, OSError):
    """No pager can be had here: the message names the right that is missing."""


class StoreError(PagetideError, OSError):
    """A store cannot be opened."""


class StoreFullError(StoreError):
    """The store could not take all that may have to leave memory."""

    needed_bytes: int
    """The most that may have to be stored."""
    capacity_bytes: int
    """What the store has room for."""


class BudgetError(PagetideError):
    """A budget does not hold yet: pins, or a failing store, keep memory resident."""

    budget_bytes: int
    """The new budget, which is in force."""


class PinError(PagetideError):
    """Pages that cannot be pinned, or a pin that has ended."""

    pages: int
    """Pages (of 4096 bytes) to be pinned, where they do not fit in the budget."""
    budget_pages: int
    """Pages of the budget then."""
    pins: int
    """The most pins that a page can have, where one has them."""


class ClosedError(PagetideError, ValueError):
    """A region was used after it was closed."""


class InUseError(PagetideError, BufferError):
    """A region cannot be closed, or given to a second tracker: somebody uses it."""

    buffers: int
    """Arrays and other buffers of it."""
    others: int
    """Pins, trackers, snapshots and calls."""


class ForkError(PagetideError, RuntimeError):
    """Memory of another process was used in a forked child, which does not have it."""

    pid_made: int
    """The process that made it."""
    pid: int
    """This one."""


class LostError(PagetideError):
    """A page's bytes are lost: its store, or the file it is read from, failed."""


class NotARegionError(PagetideError, TypeError):
    """An object that lies in no region of Pagetide's."""


class FileFormatError(PagetideError, ValueError):
    """A file that does not hold the array asked for."""


class TrackError(PagetideError):
    """Memory that cannot be tracked."""


class SnapshotError(PagetideError):
    """A snapshot that could not be taken; there is no file of it."""


class SnapshotFileError(SnapshotError):
    """A snapshot's file that is missing, damaged, or not of its chain."""


class LockError(PagetideError, OSError):
    """Memory that cannot be locked; the message ends with the lines that raise the limit."""

    needed_bytes: int
    """Bytes that the call would have locked, where the limit was the reason."""
    in_use_bytes: int
    """Bytes that the process had locked then."""


class SecretSizeError(PagetideError, ValueError):
    """More bytes than a secret was made for."""

    asked_bytes: int
    """Bytes it would have."""
    max_bytes: int
    """Bytes it may have."""


class ArenaError(PagetideError):
    """The arena of ``pagetide.numpy`` cannot be had or given up."""
