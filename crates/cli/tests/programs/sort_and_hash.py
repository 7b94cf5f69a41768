"""Builds MIB mebibytes of records, sorts them, indexes them and hashes everything: the same digest on every run.

usage: sort_and_hash.py MIB      progress goes to stderr, the digest to stdout
"""

import hashlib
import random
import sys
import time


def progress(step, done, total, started):
    if sys.stderr.isatty():
        sys.stderr.write(f"\r  {step:<8} {done * 100 // total:3d} %  {time.monotonic() - started:6.1f} s ")
        sys.stderr.flush()
        if done == total:
            sys.stderr.write("\n")


def main():
    mebibytes = int(sys.argv[1])
    started = time.monotonic()
    source = random.Random(20240229)
    target, held, records = mebibytes << 20, 0, []
    text = b"every byte a program wrote reads back, or it gets a signal and a message. " * 30
    while held < target:
        # Half random, half text, as real data are half compressible.
        length = source.randrange(200, 1800)
        record = source.randbytes(length // 2) + text[: length - length // 2]
        records.append(record)
        held += len(record) + 33
        if len(records) % 20000 == 0:
            progress("build", min(held, target - 1), target, started)
    progress("build", target, target, started)

    # Records begin with random bytes, so these decide; a sort by keys of its own does not touch every record twenty times.
    records.sort(key=lambda record: record[:16])
    progress("sort", 1, 1, started)

    index = {}
    for position, record in enumerate(records):
        index.setdefault(len(record), []).append(position)
    longest = max(index)

    digest = hashlib.sha256()
    for position, record in enumerate(records):
        digest.update(record)
        if position % 20000 == 0:
            progress("hash", position, len(records), started)
    progress("hash", 1, 1, started)
    assert all(records[i] <= records[i + 1] for i in range(len(records) - 1)), "not sorted"
    print(f"{len(records)} records, longest {longest} ({len(index[longest])} times), sha256 {digest.hexdigest()}")


main()
