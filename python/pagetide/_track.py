"""Written elements, snapshots of arrays, and bringing them back."""

from __future__ import annotations

import os
import weakref
from typing import TYPE_CHECKING

from . import _pagetide
from ._arrays import _checked, _view
from ._region import Region, _arena_of, _kept, _release, _release_freed, _unfinished
from .errors import NotARegionError, SnapshotError, SnapshotFileError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any, Union

    from numpy import ndarray

    Path = Union[str, os.PathLike[str]]
    Owner = Union[Region, _pagetide.Mapping]
    Progress = Callable[[int, int], object]

# The region that says where in the others each array lies.
_TABLE = ".arrays"
_TABLE_BYTES = 1 << 20


def _owner_of(array: Any) -> Owner:
    """The region or mapping that `array`, and nothing but arrays of its kind, lies in."""
    owner = array
    while not isinstance(owner, (Region, _pagetide.Mapping)):
        below = owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)
        if below is None:
            where = "an arena" if _arena_of(owner) is not None else "memory of its own"
            raise NotARegionError(
                f"this {type(array).__name__} lies in {where}: copy it into one made by "
                "pagetide.empty, whose memory can be tracked"
            )
        owner = below
    return owner


def _place(array: Any, owner: Owner) -> tuple[int, str]:
    """The first byte of `array` in its owner, and its order; it must be in one piece."""
    order = "C" if array.flags.c_contiguous else "F" if array.flags.f_contiguous else ""
    if not order:
        raise NotARegionError("the array is not contiguous: give the whole it is a view of")
    return array.__array_interface__["data"][0] - owner.address, order


class DirtyTracker(_pagetide.Tracker):
    """Tells which elements of an array were written since it was last asked.

    Writes are seen by pages of 4096 bytes: what shares a page with a written element counts as
    written. A write between two takes is in one of them or in both. A context manager.

    :param array: contiguous, made by :func:`pagetide.empty` and its like, or restored.
    :raises InUseError: its memory has a tracker or a snapshotter already.
    :raises StartError: the right to open a userfaultfd is missing.
    """

    _first: int
    _bytes: int
    _item: int
    _owner: Owner

    def __new__(cls, array: ndarray[Any, Any]) -> DirtyTracker:
        owner = _owner_of(array)
        offset, _ = _place(array, owner)
        _release(owner)
        tracker = super().__new__(cls, owner)
        tracker._first, tracker._bytes = offset, array.nbytes
        tracker._item = array.itemsize
        tracker._owner = owner
        return tracker

    def take(self) -> list[slice]:
        """What was written since the last take, or since the tracker was made.

        Slices of the flat array, in order: ``array.reshape(-1)[part]``, with ``order="F"`` if the
        array has that.
        """
        found = []
        for start, stop in self._take():
            start = max(start - self._first, 0)
            stop = min(stop - self._first, self._bytes)
            if start < stop:
                found.append(slice(start // self._item, -(-stop // self._item)))
        return found

    def __enter__(self) -> DirtyTracker:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Snapshot:
    """A snapshot that is being written while the program goes on. A context manager, which waits.

    If it is let go of, it is written all the same.
    """

    def __init__(self, inner: _pagetide.Snapshot) -> None:
        self._inner = inner

    @property
    def id(self) -> str:
        """Its identity, 32 hex digits: for `since`."""
        return self._inner.id

    @property
    def pause_seconds(self) -> float:
        """For how long the other threads were held still."""
        return self._inner.pause_seconds

    @property
    def finished(self) -> bool:
        """Whether the file is complete, or there will be none."""
        return self._inner.finished

    def cancel(self) -> None:
        """Ends it without a file, unless it is complete, and waits until that is done."""
        self._inner.cancel()
        try:
            self._inner._wait()
        except SnapshotError:
            pass

    def wait(self, progress: Progress | None = None) -> dict[str, Any]:
        """Waits until the file is complete, and returns the report: pages, bytes, seconds.

        :param progress: called about 20 times a second, with the pages done and all of them.
        :raises SnapshotError: there is no file; the message says why.
        """
        import json
        import time

        try:
            while not self._inner.finished:
                if progress is not None and (seen := self._inner.progress) is not None:
                    progress(*seen)
                time.sleep(0.05 if progress is not None else 0.005)
        except BaseException:
            self.cancel()
            raise
        report: dict[str, Any] = json.loads(self._inner._wait())
        if progress is not None:
            progress(report["pages_total"], report["pages_total"])
        return report

    def __enter__(self) -> Snapshot:
        return self

    def __exit__(self, *exception: object) -> None:
        if exception[0] is None:
            self.wait()
        else:
            self.cancel()


class Snapshotter(_pagetide.Snapshotter):
    """Takes snapshots of arrays while the program goes on writing. A context manager.

    Arrays in one region are saved with all of it. A region has one snapshotter or one tracker at a
    time.

    :param arrays: by the names they have in the files.
    :param incremental: later snapshots can build on earlier ones of this snapshotter (`since`).
    :param extra_memory: the most bytes that old contents of pages take, which are written while a
        snapshot is; beyond that writers wait. At least 4 MiB.
    :raises InUseError: some memory has a tracker or a snapshotter already.
    """

    def __new__(
        cls,
        /,
        *,
        incremental: bool = True,
        extra_memory: int | None = None,
        **arrays: ndarray[Any, Any],
    ) -> Snapshotter:
        import json

        if not arrays:
            raise SnapshotError("no arrays were given: name each, as in table=array")
        if _TABLE in arrays:
            raise SnapshotError(f"no array may be named '{_TABLE}': that is the table of the others")
        owners: dict[int, tuple[str, Owner]] = {}
        table = {}
        for name, array in arrays.items():
            owner = _owner_of(array)
            offset, order = _place(array, owner)
            _release(owner)
            known, _ = owners.setdefault(id(owner), (name, owner))
            table[name] = {
                "region": known,
                "offset": offset,
                "shape": array.shape,
                "dtype": _describe(array.dtype),
                "order": order,
            }
        text = json.dumps(table).encode()
        if len(text) > _TABLE_BYTES:
            raise SnapshotError(f"{len(arrays)} arrays are too many to be described in 1 MiB")
        described = _pagetide.Mapping(_TABLE_BYTES)
        memoryview(described)[: len(text)] = text
        parts: dict[str, Owner] = {name: owner for name, owner in owners.values()}
        parts[_TABLE] = described
        return super().__new__(cls, parts, incremental, extra_memory)

    def snapshot(
        self,
        path: Path,
        since: Snapshot | str | None = None,
        *,
        patience: float = 1.0,
    ) -> Snapshot:
        """Begins a snapshot into a new file at `path`, and returns once its instant is past.

        The other threads hold still for that moment; then they go on, and the file is written. It
        is there when it is complete, and not before. Threads that block all signals cannot be held;
        such a one waits where it writes to the arrays meanwhile.

        :param since: an earlier one of this snapshotter, or its id: only what was written since
            is saved. Its file must stay beside the new one.
        :param patience: seconds to wait for all threads to hold still.
        :raises SnapshotError: the message says what is wrong, and no file is left.
        """
        base = since.id if isinstance(since, Snapshot) else since
        return Snapshot(self._take(os.fsdecode(path), base, patience))

    def __enter__(self) -> Snapshotter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _describe(dtype: Any) -> Any:
    """What numpy.lib.format says of `dtype`, as JSON."""
    from numpy.lib.format import dtype_to_descr

    return repr(dtype_to_descr(dtype))


def snapshot(
    path: Path,
    since: Snapshot | str | None = None,
    *,
    wait: bool = True,
    progress: Progress | None = None,
    **arrays: ndarray[Any, Any],
) -> Snapshot:
    """Saves arrays, as they are at one instant, into a new file at `path`.

    Other threads may go on writing. With `since`, an earlier snapshot of the same arrays by this
    function, only what was written since is saved. For that the memory stays under watch until a
    tracker or a :class:`Snapshotter` is made of it, it is given up (`discard`), or it is freed.

    :param wait: return when the file is complete; else at once. What gives the memory up, or
        makes a tracker of it, then waits for the file.
    :param progress: see :meth:`Snapshot.wait`.
    :raises SnapshotError: the message says what is wrong, and no file is left.
    """
    if not arrays:
        raise SnapshotError("no arrays were given: name each, as in table=array")
    owners = {id(owner): owner for owner in map(_owner_of, arrays.values())}
    key = (tuple(owner.address for owner in owners.values()), _key(arrays))
    snapshotter = _kept.get(key)
    if snapshotter is None:
        if since is not None:
            raise SnapshotError(
                "these arrays have no earlier snapshot that later ones can build on: take one "
                "without `since` first"
            )
        snapshotter = Snapshotter(incremental=True, extra_memory=None, **arrays)
        _kept[key] = snapshotter
        for owner in owners.values():
            at_its_end = weakref.finalize(owner, _release_freed, owner.address)
            # Older type checkers take it for a name that is not there.
            setattr(at_its_end, "atexit", False)
    taken = snapshotter.snapshot(path, since)
    if wait:
        taken.wait(progress)
    else:
        earlier = [one for one in _unfinished.get(key, []) if not one.finished]
        _unfinished[key] = [*earlier, taken]
    return taken


def _key(arrays: dict[str, Any]) -> tuple[Any, ...]:
    places = ((name, a.__array_interface__["data"][0], a.shape, a.dtype) for name, a in arrays.items())
    return tuple(sorted(places, key=lambda place: place[0]))


class Restored:
    """Arrays of a snapshot, by name, as :func:`pagetide.restore` brings them back.

    It is a mapping from names to arrays, and a context manager, which waits.
    """

    def __init__(self, arrays: dict[str, Any], lazy: _pagetide.Restored | None, id: str) -> None:
        self._arrays, self._lazy, self.id = arrays, lazy, id

    id: str
    """The identity of the snapshot."""

    def __getitem__(self, name: str) -> ndarray[Any, Any]:
        array: ndarray[Any, Any] = self._arrays[name]
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def keys(self) -> Any:
        return self._arrays.keys()

    def items(self) -> Any:
        return self._arrays.items()

    @property
    def complete(self) -> bool:
        """Whether everything has been fetched."""
        return self._lazy is None or self._lazy.complete

    @property
    def faults(self) -> int:
        """Touches that had to wait for a page so far."""
        return 0 if self._lazy is None else self._lazy.faults

    def wait(self) -> None:
        """Waits until everything has been fetched: the memory is plain memory then.

        :raises SnapshotFileError: a block is damaged; touching its pages raises SIGBUS.
        """
        if self._lazy is not None:
            self._lazy.wait()

    def save_working_set(self, path: Path) -> None:
        """Writes down what was touched so far, in its order, for `working_set` of the next restore.

        Of a restore with ``record=True``.
        """
        if self._lazy is None:
            raise SnapshotError("only a lazy restore with record=True knows what was touched")
        self._lazy.save_working_set(os.fsdecode(path))

    def __enter__(self) -> Restored:
        return self

    def __exit__(self, *exception: object) -> None:
        if exception[0] is None:
            self.wait()


def restore(
    path: Path,
    *,
    lazy: bool = True,
    record: bool = False,
    working_set: Path | None = None,
    resident: int | str | None = None,
    store: str = "ram:",
    overcommit: bool = False,
) -> Restored:
    """Brings the arrays of a snapshot back.

    Lazily, they can be used at once: a page comes when it is touched, and the rest meanwhile. What
    the snapshot builds on is found beside its file.

    :param lazy: False: all is read before this returns, into regions with the budget `resident`.
    :param record: fetch nothing ahead and record what is touched; see
        :meth:`Restored.save_working_set`.
    :param working_set: a file of that, whose pages are fetched before the rest.
    :param resident, store, overcommit: of each region; not with `lazy`, which has no budget.
    :raises SnapshotFileError: a file is missing or damaged.
    :raises StartError: a lazy restore has no right to open a userfaultfd here.
    """
    file = os.fsdecode(path)
    image = _pagetide.Image(file)
    regions = dict(image.regions)
    places = _places(_read_table(image, regions, file), regions, file)
    if lazy:
        if resident is not None:
            raise SnapshotError("a lazy restore has no budget: leave resident out, or lazy=False")
        set_file = None if working_set is None else os.fsdecode(working_set)
        restored = _pagetide.Restored(file, record, set_file)
        owners: dict[str, Owner] = {
            name: restored.take(name) for name in regions if name != _TABLE
        }
    else:
        if record or working_set is not None:
            raise SnapshotError("record and working_set are for a lazy restore")
        restored = None
        owners = {}
        for name, length in regions.items():
            if name != _TABLE:
                region = Region(length, resident, store, overcommit=overcommit)
                image.read_into(name, region)
                owners[name] = region
    arrays = {name: _view(owners[of], *place) for name, (of, *place) in places.items()}
    return Restored(arrays, restored, image.id)


def _places(table: Any, regions: dict[str, int], file: str) -> dict[str, Any]:
    """Of each array of `table`: its region, first byte, shape, dtype, bytes and order."""
    places = {}
    try:
        for name, entry in table.items():
            shape, dtype, count = _checked(tuple(entry["shape"]), _dtype(entry["dtype"]))
            of, place, order = entry["region"], entry["offset"], entry["order"]
            if not 0 <= place <= regions[of] - count or order not in ("C", "F"):
                raise ValueError(f"array '{name}' reaches beyond its region")
            places[name] = of, place.__index__(), shape, dtype, count, order
    except (AttributeError, KeyError, SyntaxError, TypeError, ValueError) as error:
        raise SnapshotFileError(
            f"'{file}': its table of arrays is not as this version writes it: {error!r}"
        ) from None
    return places


def _dtype(text: str) -> Any:
    import ast

    from numpy.lib.format import descr_to_dtype

    return descr_to_dtype(ast.literal_eval(text))


def _read_table(image: _pagetide.Image, regions: dict[str, int], file: str) -> Any:
    import json

    if _TABLE not in regions:
        raise SnapshotFileError(f"'{file}' is a snapshot of another program, without arrays")
    if regions[_TABLE] > _TABLE_BYTES:
        raise SnapshotFileError(f"'{file}': its table of arrays is too long: {regions[_TABLE]} bytes")
    text = image.read(_TABLE, regions[_TABLE]).rstrip(b"\0")
    try:
        return json.loads(text)
    except ValueError as error:
        raise SnapshotFileError(f"'{file}': its table of arrays cannot be read: {error}") from None
