"""Arrays by pagetide beside numpy's own ways, with the same memory; each in a process of its own.

    beside.py [--gib 2] [--share 0.12] [--runs 3] [--reads 200000] [--directory .]
              [first] [sum] [random] [update] [allocate] [import]

first        seconds until the first element of an .npy file is there.
sum, random  an .npy file by `load` and by `numpy.memmap`, both in a memory cgroup of the share of
             the array and 48 MiB for the interpreter. A first pass (the file is in no cache) and
             one after it; `reads` elements at random. "advised" is numpy.memmap of which the kernel
             was told that reads are at random. What numpy.memmap reads around each of them is the
             disk's read_ahead_kb. `load` has a 256th of the file less to keep resident, since what
             the pager knows of its pages is in the same limit.
update       `a[i] = 3 * a[i] + 1` for 20 000 elements at random at a time: `pagetide.empty` with
             the store `ram:` and either delivery, and numpy in a cgroup of the same limit with swap
             on zram. --huge:
             numpy asks for huge pages, as it does by itself. With 4 GiB the kernel then ends it for
             want of memory.
allocate     1 MiB allocated and freed, in an arena and by numpy.
import       `import pagetide`.

For root, in an environment with pagetide and numpy. The cgroup, the swap and the file are removed.
"""

import argparse
import contextlib
import functools
import itertools
import json
import mmap
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

PROCESS_BYTES = 48 << 20
BATCHES, BATCH = 20, 20_000
PAIRS = 200_000


def timed(work):
    """Seconds that `work` takes, and its result."""
    begun = time.perf_counter()
    result = work()
    return time.perf_counter() - begun, result


def source_array(way, path, resident):
    import numpy as np

    if way != "load":
        array = np.load(path, mmap_mode="r")
        if way == "advised":
            array._mmap.madvise(mmap.MADV_RANDOM)
        return array
    import pagetide

    return pagetide.load(path, resident=resident)


def forget(path):
    """Nothing of the file is in a cache."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def work_first(way, path, resident, _reads):
    # Imports are not what is measured.
    import numpy  # noqa: F401

    import pagetide  # noqa: F401

    took, value = timed(lambda: source_array(way, path, resident)[0])
    return {"first": took}, float(value)


def work_sum(way, path, resident, _reads):
    array = source_array(way, path, resident)
    passes = [timed(array.sum) for _ in range(2)]
    return {"cold": passes[0][0], "warm": passes[1][0]}, float(passes[1][1])


def work_random(way, path, resident, reads):
    import numpy as np

    array = source_array(way, path, resident)
    places = np.random.default_rng(1).integers(0, len(array), reads)
    took, total = timed(lambda: array[places].sum())
    return {"random": took}, float(total)


def work_update(way, gib, resident, _reads):
    import numpy as np

    count = int(gib * (1 << 27))
    if way == "numpy":
        array = np.empty(count, np.int64)
    else:
        import pagetide

        array = pagetide.empty(count, np.int64, resident=resident, delivery=way)
    random = np.random.default_rng(1)
    for start in range(0, count, 1 << 20):
        array[start : start + (1 << 20)] = random.integers(0, 1 << 32, min(1 << 20, count - start))

    def update():
        for _ in range(BATCHES):
            places = random.integers(0, count, BATCH)
            array[places] = array[places] * 3 + 1

    took, _ = timed(update)
    return {"update": took}, int(array[random.integers(0, count, 1000)].sum())


def work_allocate(way, _subject, _resident, _reads):
    import numpy as np
    import pagetide

    def pairs():
        for _ in range(PAIRS):
            np.empty(1 << 20, "u1")

    arena = pagetide.numpy(resident="256M") if way == "arena" else contextlib.nullcontext()
    with arena:
        pairs()
        took, _ = timed(pairs)
    return {"pair": took / PAIRS * 1e6}, 0


def work_import(way, _subject, _resident, _reads):
    took, _ = timed(lambda: __import__(way))
    return {"import": took * 1e3}, 0


WORK = {
    "first": work_first,
    "sum": work_sum,
    "random": work_random,
    "update": work_update,
    "allocate": work_allocate,
    "import": work_import,
}


@contextlib.contextmanager
def cgroup(limit):
    """A memory cgroup; its file of processes."""
    old = Path("/sys/fs/cgroup/memory")
    root, name = (old, "memory.limit_in_bytes") if old.is_dir() else (old.parent, "memory.max")
    group = root / f"pagetide-beside-{os.getpid()}"
    group.mkdir()
    try:
        (group / name).write_text(str(limit))
        yield group / "cgroup.procs"
    finally:
        group.rmdir()


@contextlib.contextmanager
def zram_swap(length):
    """Swap on a zram device of its own."""
    control = Path("/sys/class/zram-control")
    if not control.is_dir():
        subprocess.run(["modprobe", "zram", "num_devices=0"], check=True)
    number = (control / "hot_add").read_text().strip()
    device, settings = f"/dev/zram{number}", Path(f"/sys/block/zram{number}")
    try:
        with contextlib.suppress(OSError):
            (settings / "comp_algorithm").write_text("lz4")
        (settings / "disksize").write_text(str(length))
        subprocess.run(["mkswap", device], check=True, stdout=subprocess.DEVNULL)
        subprocess.run(["swapon", "-p", "32767", device], check=True)
        try:
            yield
        finally:
            subprocess.run(["swapoff", device], check=True)
    finally:
        (control / "hot_remove").write_text(number)


def run(task, way, subject, resident, reads, procs, huge=True):
    """Times of one worker, in the cgroup of `procs` if there is one, and its result."""
    environment = os.environ if huge else {**os.environ, "NUMPY_MADVISE_HUGEPAGE": "0"}

    def enter():
        if procs is not None:
            procs.write_text(str(os.getpid()))

    numbers = [str(subject), str(resident), str(reads)]
    arguments = [sys.executable, __file__, "--worker", task, way, *numbers]
    done = subprocess.run(
        arguments, preexec_fn=enter, env=environment, check=True, stdout=subprocess.PIPE
    )
    return json.loads(done.stdout)


def measure(task, ways, runs, one, unit="s"):
    """Runs `one(way)` in turns, and prints medians beside each other."""
    times, results = {way: [] for way in ways}, set()
    for _ in range(runs):
        for way in ways:
            taken, result = one(way)
            times[way].append(taken)
            results.add(result)
    if len(results) != 1:
        sys.exit(f"{task}: the results differ: {results}")
    for name in times[ways[0]][0]:
        all_of = {way: [taken[name] for taken in times[way]] for way in ways}
        middle = {way: statistics.median(taken) for way, taken in all_of.items()}
        columns = [
            f"{way} {middle[way]:.4g} {unit} ({min(all_of[way]):.4g} to {max(all_of[way]):.4g})"
            for way in ways
        ]
        pairs = itertools.combinations(ways, 2)
        ratios = [f"{one} over {other} {middle[one] / middle[other]:.2f}" for one, other in pairs]
        print(f"{name:8} {', '.join(columns + ratios)}", flush=True)


def measure_file(tasks, options):
    import numpy as np

    path = Path(options.directory) / f"beside-{os.getpid()}.npy"
    count = int(options.gib * (1 << 27))
    resident = int(count * 8 * options.share)
    try:
        array = np.lib.format.open_memmap(path, "w+", np.float64, (count,))
        for start in range(0, count, 1 << 20):
            array[start : start + (1 << 20)] = np.arange(start, min(start + (1 << 20), count))
        array.flush()
        del array
        with cgroup(resident + PROCESS_BYTES) as procs:
            for task in tasks:

                def one(way, task=task):
                    forget(path)
                    known = count * 8 // 256 if way == "load" else 0
                    return run(task, way, path, resident - known, options.reads, procs)

                ways = ("load", "memmap", *(["advised"] if task == "random" else []))
                measure(task, ways, options.runs, one)
    finally:
        path.unlink(missing_ok=True)


def measure_update(options):
    length = int(options.gib * (1 << 30))
    resident = int(length * options.share)

    with zram_swap(length), cgroup(resident + PROCESS_BYTES) as procs:

        def one(way):
            # Both compress elsewhere what is not resident: zram's memory is in no cgroup.
            within = procs if way == "numpy" else None
            return run("update", way, options.gib, resident, 0, within, options.huge)

        measure("update", ("signal", "thread", "numpy"), options.runs, one)


def main():
    if sys.argv[1:2] == ["--worker"]:
        task, way, subject, resident, reads = sys.argv[2:]
        subject = float(subject) if task == "update" else subject
        print(json.dumps(WORK[task](way, subject, int(resident), int(reads))))
        return
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--gib", type=float, default=2)
    parser.add_argument("--share", type=float, default=0.12)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--reads", type=int, default=200_000)
    parser.add_argument("--directory", default=".")
    parser.add_argument("--huge", action="store_true")
    parser.add_argument("tasks", nargs="*", default=["sum", "random"], choices=sorted(WORK))
    options = parser.parse_args()
    on_file = [task for task in options.tasks if task in ("first", "sum", "random")]
    if on_file:
        measure_file(on_file, options)
    if "update" in options.tasks:
        measure_update(options)
    for task, ways, unit in [
        ("allocate", ("arena", "numpy"), "us"),
        ("import", ("pagetide",), "ms"),
    ]:
        if task in options.tasks:
            one = functools.partial(run, task, subject="-", resident=0, reads=0, procs=None)
            measure(task, ways, options.runs, one, unit)


if __name__ == "__main__":
    main()
