"""A table larger than memory, kept and worked on in several ways with the same memory.

    table.py [--gib 4] [--memory 512] [--rows 5000] [--directory .] [WAY...]

The table has four columns of eight bytes. It is filled; revenue is summed over all of it; rows at
random are looked up; and prices of rows at random are changed. Each way is a process in a memory
cgroup of so many MiB and 96 for the interpreter:

pagetide       `pagetide.empty`, with the store `ram:`
pagetide-file  the same with the store `file:`
memmap         `numpy.memmap`
blosc2         compressed chunks on disk
swap           numpy's own arrays, and swap on zram

What is compressed in memory (`ram:`, zram) is in no cgroup. For root, in an environment with
pagetide, numpy and blosc2. All that is made is removed.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile

from beside import cgroup, timed, zram_swap

COLUMNS = ("item", "customer", "amount", "price")
CHUNK = 1 << 20
# The interpreter, its libraries and what is computed with.
PROCESS_BYTES = 96 << 20


def columns(way, count, memory, directory):
    """Four empty columns of `count` int64."""
    import numpy as np

    if way.startswith("pagetide"):
        import pagetide

        store = f"file:{directory}" if way == "pagetide-file" else "ram:"
        # One budget for all: the columns are rows of one array.
        whole = pagetide.empty((len(COLUMNS), count), np.int64, resident=memory, store=store)
        return dict(zip(COLUMNS, whole))
    if way == "memmap":
        return {
            name: np.memmap(f"{directory}/{name}", np.int64, "w+", shape=(count,))
            for name in COLUMNS
        }
    if way == "blosc2":
        import blosc2

        return {
            name: blosc2.empty((count,), np.int64, urlpath=f"{directory}/{name}.b2nd", mode="w")
            for name in COLUMNS
        }
    return {name: np.empty(count, np.int64) for name in COLUMNS}


def pieces(count):
    return [slice(start, min(start + CHUNK, count)) for start in range(0, count, CHUNK)]


def worker(way, gib, memory, rows, directory):
    """The seconds of each step, and a number that is the same in all ways."""
    import numpy as np

    count = int(gib * (1 << 30)) // (8 * len(COLUMNS))
    random = np.random.default_rng(1)
    table = columns(way, count, memory, directory)

    def fill():
        for piece in pieces(count):
            length = piece.stop - piece.start
            table["item"][piece] = random.integers(0, 10_000, length)
            table["customer"][piece] = random.integers(0, 1_000_000, length)
            table["amount"][piece] = random.integers(1, 20, length)
            table["price"][piece] = random.integers(100, 50_000, length)

    def revenue():
        return sum(
            int((table["amount"][piece] * table["price"][piece]).sum()) for piece in pieces(count)
        )

    def look_up():
        places = random.integers(0, count, rows)
        return sum(int(table[name][places].sum()) for name in COLUMNS)

    def change():
        places = np.unique(random.integers(0, count, rows))
        table["price"][places] = table["price"][places] + 1

    steps = {"fill": fill, "sum": revenue, "look up": look_up, "change": change}
    took, results = {}, []
    for name, step in steps.items():
        took[name], result = timed(step)
        results.append(result)
    return took, results


def run(way, options):
    """One way, in a process of its own."""
    memory = options.memory << 20
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(dir=options.directory))
        if way == "swap":
            stack.enter_context(zram_swap(int(options.gib * (1 << 30))))
        # What the store `ram:` has in memory is the process's own to a cgroup.
        procs = None
        if way != "pagetide":
            procs = stack.enter_context(cgroup(memory + PROCESS_BYTES))

        def enter():
            if procs is not None:
                procs.write_text(str(os.getpid()))

        numbers = [str(options.gib), str(memory), str(options.rows)]
        arguments = [sys.executable, __file__, "--worker", way, *numbers, directory]
        done = subprocess.run(arguments, preexec_fn=enter, check=True, stdout=subprocess.PIPE)
        return json.loads(done.stdout)


def main():
    if sys.argv[1:2] == ["--worker"]:
        way, gib, memory, rows, directory = sys.argv[2:]
        print(json.dumps(worker(way, float(gib), int(memory), int(rows), directory)))
        return
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("--gib", type=float, default=4)
    parser.add_argument("--memory", type=int, default=512)
    parser.add_argument("--rows", type=int, default=5000)
    parser.add_argument("--directory", default=".")
    ways = ["pagetide", "pagetide-file", "memmap", "blosc2", "swap"]
    parser.add_argument("ways", nargs="*", default=ways)
    options = parser.parse_args()
    expected = None
    for way in options.ways:
        took, results = run(way, options)
        if expected not in (None, results):
            sys.exit(f"{way}: the results differ: {results} for {expected}")
        expected = results
        print(f"{way:13}", ", ".join(f"{step} {s:.2f} s" for step, s in took.items()), flush=True)


if __name__ == "__main__":
    main()
