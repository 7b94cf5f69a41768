"""Sorts COUNT tuples by their random keys: objects all over the heap.

usage: sort.py COUNT
"""

import random
import sys

count = int(sys.argv[1])
source = random.Random(1)
rows = [(source.random(), number, f"row {number}") for number in range(count)]
rows.sort()
digest = 0
for place, (_, number, name) in enumerate(rows):
    digest = (digest * 31 + (number ^ place) + len(name)) % (1 << 61)
print(count, rows[0][2], rows[-1][2], digest)
