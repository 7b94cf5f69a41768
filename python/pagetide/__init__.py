"""Page-level control of memory: arrays larger than memory, locked memory, snapshots.

>>> import pagetide
>>> table = pagetide.zeros((1000, 1000), resident="1M")
>>> table[3, 5] = 7
>>> pagetide.region_of(table).stats()["budget_bytes"]
1048576
"""

from . import errors, lock
from ._arrays import empty, full, load, zeros
from ._numpy import Arena, numpy
from ._pagetide import Pin
from ._region import Region, region_of
from ._track import DirtyTracker, Restored, Snapshot, Snapshotter, restore, snapshot
from .errors import PagetideError

__version__ = "0.1.0"
__all__ = [
    "Arena",
    "DirtyTracker",
    "PagetideError",
    "Pin",
    "Region",
    "Restored",
    "Snapshot",
    "Snapshotter",
    "empty",
    "errors",
    "full",
    "load",
    "lock",
    "numpy",
    "region_of",
    "restore",
    "snapshot",
    "zeros",
]
