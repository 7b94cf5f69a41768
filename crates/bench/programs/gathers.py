"""Gathers at random from an array of COUNT numbers, sorts a part of it and sums it up.

usage: gathers.py COUNT
"""

import sys

import numpy

count = int(sys.argv[1])
source = numpy.random.Generator(numpy.random.PCG64(3))
numbers = source.integers(0, 100_000, count)
digest = 0
for turn in range(16):
    places = source.integers(0, count, count // 600)
    digest = (digest * 31 + int(numbers[places].sum())) % (1 << 61)
order = numpy.argsort(numbers[: count // 4], kind="stable")
print(count, digest, int(order[::1000].sum()), int(numbers.cumsum()[::1000].sum()))
