"""Regions, and which one an array lies in."""

from __future__ import annotations

import contextlib
import operator
import os
import weakref
from typing import TYPE_CHECKING

from . import _pagetide
from ._pagetide import Pin
from ._sizes import size
from .errors import (
    ForkError,
    NotARegionError,
    RangeError,
    SnapshotError,
    StoreError,
    StoreFullError,
)

if TYPE_CHECKING:
    from typing import Any, Literal, Union

    from numpy import ndarray

    Delivery = Literal["thread", "signal"]
    Part = Union[None, slice, tuple[int, int], "ndarray[Any, Any]"]


class Region(_pagetide.Region):
    """A span of memory of which at most a budget is resident.

    The rest is in a store, and each page comes back when it is touched. The memory is exported as a
    writable buffer of bytes. Arrays made by :func:`pagetide.empty` and its like lie in a region
    of their own, which lives as long as they do; :func:`pagetide.region_of` gives it.

    A *part* of it is an array that lies in it, a slice of bytes (``slice(0, 4096)``), a pair
    (start, stop) of bytes, or None for all of it.

    :param length: bytes, or text such as "4G"; rounded up to pages of 4096 bytes.
    :param resident: the most bytes that may be resident; None: all of it.
    :param store: where the rest is, by URI (docs/stores.md).
    :param overcommit: make it though the store is known to have no room for all that may have to
        leave memory. If it is full then, the process waits ten seconds for it, and is ended.
    :param policy: which pages leave first, by name.
    :param delivery: "thread": a thread of the library serves faults. "signal": the thread that
        touches a page serves itself, for which no right is needed, and a fault takes half as
        long; but a system call that is given a page that is not resident fails with EFAULT,
        unless it is pinned, which counts as a write there.
    :raises StartError: no userfaultfd can be opened here (``pagetide doctor`` says why).
    :raises StoreError: the store cannot be opened.
    :raises StoreFullError: the store has too little room.
    """

    __slots__ = ()

    def __new__(
        cls,
        length: int | str,
        resident: int | str | None = None,
        store: str = "ram:",
        *,
        overcommit: bool = False,
        policy: str | None = None,
        delivery: Delivery = "thread",
        _source: tuple[str, int, int] | None = None,
    ) -> Region:
        if not isinstance(store, str):
            raise StoreError(f"store={store!r}: expected a URI as text, such as 'ram:'")
        length = size(length, "length")
        budget = None if resident is None else size(resident, "resident")
        if not overcommit:
            _check_room(store, length - min(length, budget or length))
        return super().__new__(
            cls, length, budget, store, delivery=delivery, policy=policy, source=_source
        )

    def stats(self) -> dict[str, Any]:
        """The counters now, as docs/statistics.md lists them: bytes, pages, nanoseconds."""
        import json

        seen: dict[str, Any] = json.loads(self._stats())
        return seen

    def set_budget(self, resident: int | str) -> None:
        """Changes the most bytes that may be resident, and waits until that holds.

        :raises BudgetError: it does not after ten seconds; it is in force all the same.
        """
        self._set_budget(size(resident, "resident"))

    def prefetch(self, part: Part = None) -> None:
        """Starts making `part` resident as far as the budget has room, without waiting."""
        self._prefetch(*self._range(part))

    def evict(self, part: Part = None) -> None:
        """Makes `part` non-resident, and waits until it is.

        Pinned pages stay, and what the store does not take since it is full.
        """
        self._evict(*self._range(part))

    def discard(self, part: Part = None) -> None:
        """Gives up what the whole pages in `part` hold, without storing it.

        They read as zeros when next touched; of :func:`pagetide.load`, as the file has them.

        :raises InUseError: the region is tracked or snapshotted.
        """
        _release(self)
        self._discard(*self._range(part))

    def pin(self, part: Part = None) -> Pin:
        """Makes `part` resident and keeps it so until the pin is released: a context manager.

        :raises PinError: all pins together would not fit in the budget, or a page is pinned 254 times.
        """
        return self._pin(*self._range(part))

    def close(self) -> None:
        """Ends the region: its memory is unmapped, and its room in the store given back.

        :raises InUseError: arrays, pins, trackers or anything else use it.
        """
        _release(self)
        super().close()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _range(self, part: Part) -> tuple[int, int]:
        length = len(self)
        if part is None:
            return 0, length
        if isinstance(part, slice):
            if part.step not in (None, 1):
                raise RangeError(f"{part}: a slice of bytes has no step", length=length)
            start = 0 if part.start is None else part.start
            stop = length if part.stop is None else part.stop
        elif isinstance(part, tuple) and len(part) == 2:
            start, stop = part
        else:
            start, stop = _bounds(part)
            start, stop = start - self.address, stop - self.address
        try:
            start, stop = operator.index(start), operator.index(stop)
        except TypeError:
            raise RangeError(f"{part!r}: expected whole numbers of bytes", length=length) from None
        if not 0 <= start <= stop <= length:
            what = f"bytes {start} to {stop} are no part of the region's {length} bytes"
            if not isinstance(part, (slice, tuple)):
                what = f"the array does not lie in this region of {length} bytes"
            raise RangeError(
                what,
                start=start,
                stop=stop,
                length=length,
            )
        return start, stop


def _bounds(array: ndarray[Any, Any]) -> tuple[int, int]:
    """The first address of `array` and the one after its last."""
    try:
        start = array.__array_interface__["data"][0]
    except (AttributeError, TypeError):
        raise NotARegionError(
            f"a part is an array, a slice of bytes or (start, stop), not {type(array).__name__}"
        ) from None
    stop = start + array.itemsize
    if array.size == 0:
        return start, start
    for extent, stride in zip(array.shape, array.strides):
        if stride > 0:
            stop += (extent - 1) * stride
        else:
            start += (extent - 1) * stride
    return start, stop


def region_of(array: object) -> Region:
    """The region that `array` lies in: an array of Pagetide's, a view of one, or a buffer.

    :raises NotARegionError: it lies in none (a copy, for example).
    """
    owner = array
    while not isinstance(owner, Region):
        below = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
        if below is None:
            below = _arena_of(owner)
        if below is None:
            raise NotARegionError(
                f"this {type(array).__name__} lies in no region: expected an array made by "
                "pagetide.empty, zeros, full or load, or a view of one"
            )
        owner = below
    return owner


# The regions of arenas: their arrays have no base.
_arenas: weakref.WeakSet[Region] = weakref.WeakSet()


def _arena_of(owner: Any) -> Region | None:
    interface = getattr(owner, "__array_interface__", None)
    if interface is None or not _arenas:
        return None
    address = interface["data"][0]
    for region in _arenas:
        if region.address <= address < region.address + len(region):
            return region
    return None


# What `pagetide.snapshot` keeps for `since`: by the addresses of the memory, and the arrays.
_kept: dict[tuple[tuple[int, ...], Any], Any] = {}
# Snapshots of these that nobody waited for.
_unfinished: dict[tuple[tuple[int, ...], Any], list[Any]] = {}


def _release(owner: Any) -> None:
    """Ends the snapshotters that are kept for `owner`: somebody else needs it."""
    _release_address(owner.address)


def _release_address(address: int) -> None:
    for key in [key for key in _kept if address in key[0]]:
        snapshotter = _kept.pop(key)
        # One that is let go of is written all the same; its file tells how that ended.
        for taken in _unfinished.pop(key, []):
            with contextlib.suppress(SnapshotError):
                taken.wait()
        snapshotter.close()


def _release_freed(address: int) -> None:
    """The same when the memory is freed, which a forked child does without having it."""
    with contextlib.suppress(ForkError):
        _release_address(address)


def _check_room(store: str, needed: int) -> None:
    """An error if `store` is known to have less room than `needed` bytes."""
    capacity = _capacity(store)
    if capacity is not None and needed > capacity:
        raise StoreFullError(
            f"{needed} bytes may have to leave memory, and the store '{store}' has room for "
            f"{capacity}: give it more, raise resident, or pass overcommit=True where the data "
            "compress well",
            needed_bytes=needed,
            capacity_bytes=capacity,
        )


def _capacity(store: str) -> int | None:
    scheme, _, rest = store.partition(":")
    place, _, query = rest.partition("?")
    if scheme not in ("ram", "file") or "then=" in query:
        return None
    options = dict(option.partition("=")[::2] for option in query.split("&"))
    room = size(options["max"], "max") if "max" in options else None
    if scheme == "file":
        try:
            disk = os.statvfs(place if os.path.isdir(place) else os.path.dirname(place) or ".")
        except OSError:
            return room
        free = disk.f_bavail * disk.f_frsize
        room = free if room is None else min(room, free)
    return room
