"""Merges two frames, one of COUNT rows, groups the result and sorts it.

usage: merge.py COUNT
"""

import sys

import numpy
import pandas

count = int(sys.argv[1])
source = numpy.random.Generator(numpy.random.PCG64(4))
sales = pandas.DataFrame(
    {
        "customer": source.integers(0, count // 10, count),
        "day": source.integers(0, 365, count),
        "amount": source.integers(1, 10_000, count),
    }
)
customers = pandas.DataFrame(
    {
        "customer": numpy.arange(count // 10),
        "region": source.integers(0, 50, count // 10),
        "rank": source.integers(0, 5, count // 10),
    }
)
merged = sales.merge(customers, on="customer")
by_region = merged.groupby(["region", "day"])["amount"].agg(["sum", "count", "max"])
by_customer = merged.groupby("customer")["amount"].sum().sort_values(kind="stable")
print(len(merged), int(by_region["sum"].sum()), int(by_region["max"].iloc[::7].sum()))
print(int(by_customer.iloc[::1000].sum()), int(by_customer.index[-1]))
