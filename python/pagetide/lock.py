"""Memory that stays: files that are kept in memory, and secrets that never leave it.

See docs/lock.md for what the kernel locks, and what it does not.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from . import _pagetide
from ._sizes import size

if TYPE_CHECKING:
    from typing import Literal

__all__ = ["LockedFile", "SecretBytes"]


class LockedFile(_pagetide.LockedFile):
    """A file, or a part of it, mapped and locked: what is touched stays in memory.

    A buffer, read-only unless `writable`: ``memoryview(file)``, ``numpy.frombuffer(file)``. A
    context manager. While it is mapped the file must not be made shorter.

    :param mode: "on-fault" (pages from their first touch on) or "full" (all at once).
    :param access: how a touch reads ahead: "adaptive", "random", "exact", "sequential", "normal".
    :param writable: what is written is this process's own, and never goes to the file.
    :param offset, length: a part, in bytes; `offset` is a multiple of 4096.
    :raises LockError: it cannot be locked; the message ends with the lines that raise the limit.
    :raises OSError: it cannot be opened or mapped.
    """

    def __new__(
        cls,
        path: str | os.PathLike[str],
        *,
        mode: Literal["on-fault", "full"] = "on-fault",
        access: Literal["adaptive", "random", "exact", "sequential", "normal"] = "adaptive",
        writable: bool = False,
        offset: int = 0,
        length: int | str | None = None,
    ) -> LockedFile:
        part = None
        if offset or length is not None:
            part = (offset, (1 << 62) if length is None else size(length, "length"))
        return super().__new__(cls, os.fsdecode(path), mode, access, writable, part)

    def __enter__(self) -> LockedFile:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class SecretBytes(_pagetide.SecretBytes):
    """Bytes that are never in swap or core dumps, and are wiped when they go.

    A writable buffer: read a key into ``memoryview(secret)``, so that it is nowhere else. The
    size cannot change while there are such buffers. A context manager, which wipes at the end.

    :param max: the most bytes it can have, reserved and charged now.
    :param data: what it begins with. The original is not wiped.
    :param memfd_secret: memory that the kernel itself does not map.
    :param in_child: "wiped" or "absent": what a forked child finds.
    :raises LockError: it cannot be locked; the message ends with the lines that raise the limit.
    :raises SecretSizeError: more bytes than `max`.
    """

    def __new__(
        cls,
        max: int | str,
        data: bytes | bytearray = b"",
        *,
        memfd_secret: bool = False,
        in_child: Literal["wiped", "absent"] = "wiped",
    ) -> SecretBytes:
        if in_child not in ("wiped", "absent"):
            raise ValueError(f"in_child={in_child!r}: expected 'wiped' or 'absent'")
        secret = super().__new__(cls, size(max, "max"), memfd_secret, in_child == "absent")
        secret._extend(data)
        return secret

    def extend(self, data: bytes | bytearray) -> None:
        """Appends `data`. The original is not wiped."""
        self._extend(data)

    def __eq__(self, other: object) -> bool:
        """In a time that depends on the lengths alone."""
        if isinstance(other, (bytes, bytearray, memoryview, SecretBytes)):
            # What is in one piece is copied nowhere.
            view = memoryview(other)
            return self._equals(view.cast("B") if view.c_contiguous else view.tobytes())
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<pagetide.lock.SecretBytes of {len(self)} bytes>"

    def __enter__(self) -> SecretBytes:
        return self

    def __exit__(self, *exception: object) -> None:
        self.clear()
