"""Plain numpy arrays that lie in a region of their own."""

from __future__ import annotations

import operator
import os
import stat
from typing import TYPE_CHECKING

from ._region import Region
from .errors import DTypeError, FileFormatError, ShapeError

if TYPE_CHECKING:
    from typing import Any, Literal, Union

    from numpy import ndarray
    from numpy.typing import DTypeLike

    from ._pagetide import Mapping
    from ._region import Delivery

    Shape = Union[int, tuple[int, ...]]
    Order = Literal["C", "F"]

_PAGE = 4096
# Half of what an address can be, less what the pager needs.
_BYTES_MAX = 1 << 46


def _checked(shape: Shape, dtype: DTypeLike) -> tuple[tuple[int, ...], Any, int]:
    """The shape as a tuple, the dtype, and how many bytes that is."""
    import math

    import numpy

    try:
        kind = numpy.dtype(dtype)
    except TypeError as error:
        raise DTypeError(f"dtype={dtype!r}: {error}") from None
    if kind.hasobject:
        raise DTypeError(f"dtype={kind}: Python objects cannot lie in a region, only plain data")
    if kind.itemsize == 0:
        raise DTypeError(f"dtype={kind}: its items have no size; say how long, as in 'S16'")
    try:
        extents = (shape.__index__(),) if hasattr(shape, "__index__") else tuple(shape)
        extents = tuple(extent.__index__() for extent in extents)
    except (TypeError, AttributeError):
        raise ShapeError(f"shape={shape!r}: expected whole numbers") from None
    if any(extent < 0 for extent in extents):
        raise ShapeError(f"shape={shape!r}: no extent may be negative")
    while kind.subdtype is not None:  # as numpy does: an array of arrays has their extents, too
        kind, inner = kind.subdtype
        extents += inner
    count = math.prod(extents) * kind.itemsize
    if count > _BYTES_MAX:
        raise ShapeError(
            f"shape={shape!r} of {kind} is {count} bytes; a region has at most {_BYTES_MAX}",
            bytes=count,
        )
    return extents, kind, count


def _view(
    owner: Region | Mapping, offset: int, shape: Any, dtype: Any, count: int, order: str
) -> ndarray[Any, Any]:
    import numpy

    if order not in ("C", "F"):
        raise ValueError(f"order={order!r}: expected 'C' or 'F'")
    flat = numpy.frombuffer(memoryview(owner), numpy.uint8)[offset : offset + count]
    array: ndarray[Any, Any] = flat.view(dtype).reshape(shape, order=order)
    return array


def empty(
    shape: Shape,
    dtype: DTypeLike = float,
    *,
    resident: int | str | None = None,
    store: str = "ram:",
    order: Order = "C",
    overcommit: bool = False,
    policy: str | None = None,
    delivery: Delivery = "thread",
) -> ndarray[Any, Any]:
    """A new array of zeros, of which at most `resident` bytes are in memory.

    It is a plain numpy.ndarray: any thread, library and system call can use it. What is not
    resident is in `store` and comes back when it is touched.

    :param resident: bytes, or text such as "4G"; None: the whole array.
    :param store: a URI: "ram:" (compressed), "file:/scratch/", a server (docs/stores.md).
    :param overcommit, delivery: see :class:`pagetide.Region`.
    :raises DTypeError: objects, or items of no size.
    :raises ShapeError: the array is larger than can be mapped.
    :raises StartError, StoreError, StoreFullError: see :class:`pagetide.Region`.
    """
    extents, kind, count = _checked(shape, dtype)
    options: Any = {"overcommit": overcommit, "policy": policy, "delivery": delivery}
    region = Region(max(count, 1), resident, store, **options)
    return _view(region, 0, extents, kind, count, order)


def zeros(shape: Shape, dtype: DTypeLike = float, **options: Any) -> ndarray[Any, Any]:
    """The same as :func:`empty`: new memory holds zeros."""
    return empty(shape, dtype, **options)


def full(
    shape: Shape, fill_value: Any, dtype: DTypeLike | None = None, **options: Any
) -> ndarray[Any, Any]:
    """An array as by :func:`empty`, filled with `fill_value`, whose dtype is the default."""
    import numpy

    array = empty(shape, numpy.asarray(fill_value).dtype if dtype is None else dtype, **options)
    array[...] = fill_value
    return array


def load(
    path: str | os.PathLike[str],
    *,
    resident: int | str | None = None,
    store: str = "ram:",
    dtype: DTypeLike | None = None,
    shape: Shape | None = None,
    offset: int = 0,
    order: Order = "C",
    overcommit: bool = False,
    policy: str | None = None,
    delivery: Delivery = "thread",
) -> ndarray[Any, Any]:
    """The array in a file, of which at most `resident` bytes are in memory.

    Nothing is read beforehand: a page is read from the file when it is touched, and again after it
    was evicted. Pages that are written go to `store`, and the file stays as it is. It must not be
    changed meanwhile: a page that it has no more is lost (SIGBUS).

    :param path: an .npy file; or with `dtype` (and `shape`, else all of the file, in one
        dimension) raw data from byte `offset` on.
    :param delivery: see :class:`pagetide.Region`.
    :raises FileFormatError: the file does not hold such an array.
    :raises OSError: it cannot be opened.
    """
    path = os.fsdecode(path)
    found = os.stat(path)
    if not stat.S_ISREG(found.st_mode):
        raise FileFormatError(f"'{path}' is no regular file: expected one that can be read again")
    if dtype is None:
        if shape is not None or offset or order != "C":
            raise FileFormatError(
                f"shape={shape!r}, offset={offset}, order={order!r}: these are of raw data, whose "
                "dtype is to be given, too; an .npy file says them itself"
            )
        shape, dtype, offset, order = _read_header(path)
    offset, size = operator.index(offset), found.st_size
    if offset < 0:
        raise FileFormatError(f"offset={offset}: expected a byte of '{path}', 0 to {size}")
    if shape is None:
        extents, kind, _ = _checked(0, dtype)
        count = max(size - offset, 0) // kind.itemsize * kind.itemsize
        extents = (count // kind.itemsize,)
    else:
        extents, kind, count = _checked(shape, dtype)
    if offset > size - count:
        raise FileFormatError(
            f"'{path}' has {size} bytes; {extents} of {kind} from byte {offset} on need "
            f"{offset + count}",
            bytes=size,
        )
    first = offset // _PAGE * _PAGE
    inside = offset - first
    length = max(inside + count, 1)
    source = (path, first, inside + count) if count else None
    options: Any = {"overcommit": overcommit, "policy": policy, "delivery": delivery}
    region = Region(length, resident, store, **options, _source=source)
    return _view(region, inside, extents, kind, count, order)


def _read_header(path: str) -> tuple[Any, Any, int, Any]:
    import numpy
    from numpy.lib import format as npy

    with open(path, "rb") as file:
        try:
            version = npy.read_magic(file)
            if version == (3, 0):  # names of fields that are not Latin: numpy alone reads these
                mapped: Any = numpy.load(path, mmap_mode="r")
                order = "C" if mapped.flags.c_contiguous else "F"
                return mapped.shape, mapped.dtype, mapped.offset, order
            read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
            shape, fortran, dtype = read[version](file)
        except KeyError:
            raise FileFormatError(f"'{path}': .npy version {version} is not known") from None
        except ValueError as error:
            raise FileFormatError(
                f"'{path}' is no .npy file ({error}); of raw data, give the dtype"
            ) from None
        return shape, dtype, file.tell(), "F" if fortran else "C"
