"""``with pagetide.numpy(...)``: numpy's own arrays come from one governed arena."""

from __future__ import annotations

import contextvars
from typing import TYPE_CHECKING

from . import _pagetide
from ._region import Region, _arenas, _capacity
from ._sizes import size as _size
from .errors import ArenaError

if TYPE_CHECKING:
    from typing import Any

# The arenas entered in this context, and what numpy used before each: numpy's handler is a context
# variable, too.
_entered: contextvars.ContextVar[tuple[tuple[Arena, Any], ...]] = contextvars.ContextVar(
    "pagetide_entered", default=()
)
_SPACE = 64 << 30
_PAGE = 4096


class Arena(_pagetide.Arena):
    """The memory of :func:`pagetide.numpy`, and a context manager that has numpy use it.

    A thread that is started inside the block begins with numpy's own memory (numpy keeps its
    handler in a context variable): there, enter the arena again (``with arena:``). It may be
    entered any number of times. Arrays that outlive the block keep it.
    """

    region: Region
    """Its memory: budget, statistics, pins."""

    def __new__(cls, region: Region, small: int, retained: int) -> Arena:
        arena = super().__new__(cls, region, small, retained)
        arena.region = region
        _arenas.add(region)
        return arena

    def __enter__(self) -> Arena:
        before = _pagetide.set_handler(self._handler)
        _entered.set((*_entered.get(), (self, before)))
        return self

    def __exit__(self, *exception: object) -> None:
        entered = _entered.get()
        if not entered or entered[-1][0] is not self:
            raise ArenaError("this thread or task has not entered the arena, or another one since")
        _entered.set(entered[:-1])
        _pagetide.set_handler(entered[-1][1])

    def stats(self) -> dict[str, Any]:
        """The region's counters, and of the arena: `arrays`, `used_bytes`, `used_bytes_max`, and
        `retained_bytes`, which were freed and wait for the next array."""
        arrays, used, used_max, retained = self._usage()
        return {
            **self.region.stats(),
            "arrays": arrays,
            "used_bytes": used,
            "used_bytes_max": used_max,
            "retained_bytes": retained,
        }

    def set_budget(self, resident: int | str) -> None:
        """See :meth:`pagetide.Region.set_budget`."""
        self.region.set_budget(resident)

    def purge(self) -> None:
        """Gives back, at once, what was freed: frames, and room in the store."""
        self._purge()


def numpy(
    resident: int | str,
    store: str = "ram:",
    *,
    size: int | str | None = None,
    small: int | str = "64K",
    overcommit: bool = False,
    policy: str | None = None,
) -> Arena:
    """Has every larger array that numpy allocates in the block lie in one arena.

    At most `resident` bytes of it are in memory. The code inside is as it was:

    >>> import numpy, pagetide
    >>> with pagetide.numpy(resident="1M") as arena:
    ...     total = (numpy.arange(1_000_000) * 2.0).sum()
    >>> total, arena.stats()["resident_bytes_max"] <= 1 << 20
    (np.float64(999999000000.0), True)

    :param size: the most that all arrays together may have, in bytes; beyond it numpy raises
        MemoryError. None: what budget and store have room for; 64G where that is not known.
    :param small: arrays below that are malloc's, as ever.
    :param overcommit: `size` may be more than budget and store have room for. See
        :class:`pagetide.Region`.
    :raises StartError, StoreError, StoreFullError: see :class:`pagetide.Region`.
    """
    budget = _size(resident, "resident")
    if size is None:
        room = _capacity(store)
        space = _SPACE if room is None else min(_SPACE, budget + room)
    else:
        space = _size(size, "size")
    space = max(space // _PAGE, 1) * _PAGE
    region = Region(
        space,
        min(budget, space),
        store,
        # Without a size it is what there is room for.
        overcommit=overcommit or size is None,
        policy=policy,
    )
    retained = min(max(budget // 16, 1 << 20), 64 << 20)
    return Arena(region, max(_size(small, "small"), _PAGE), retained)
