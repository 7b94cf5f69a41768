"""Fills a dict with COUNT keys and looks up half as many again, a few of them most of the time.

usage: lookups.py COUNT
"""

import random
import sys

count = int(sys.argv[1])
source = random.Random(2)
table = {f"key {number}": [number, number * 7] for number in range(count)}
digest = 0
for turn in range(count + count // 2):
    # Half of the look-ups go to a 256th of the keys, about as of words or of visitors. These are
    # spread over the heap by the multiplication.
    rank = int(count * source.random() ** 8)
    entry = table[f"key {rank * 2654435761 % count}"]
    digest = (digest * 33 + entry[1]) % (1 << 61)
    if turn % 8 == 0:
        entry[1] += 1
print(count, digest)
