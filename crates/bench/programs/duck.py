"""A table of COUNT rows in DuckDB: groups, joins and sorts by two threads.

usage: duck.py COUNT
"""

import sys

import duckdb

count = int(sys.argv[1])
# What it would choose by the memory and the processors it finds is said, so that it is always the
# same program.
database = duckdb.connect(config={"threads": 2, "memory_limit": "8GB"})
database.execute(
    f"""CREATE TABLE visit AS
        SELECT i AS id, hash(i) % 500000 AS person, hash(i + 1) % 1000 AS page,
               hash(i + 2) % 3600 AS seconds
        FROM range({count}) t(i)"""
)
for question in (
    "SELECT count(*), sum(seconds), count(DISTINCT person) FROM visit",
    "SELECT page, sum(seconds) s FROM visit GROUP BY page ORDER BY s DESC, page LIMIT 5",
    """SELECT count(*), sum(n), max(n) FROM
       (SELECT person, page, count(*) n FROM visit GROUP BY person, page)""",
    """SELECT count(*), sum(a.seconds) FROM visit a
       JOIN (SELECT person, max(id) id FROM visit GROUP BY person) b ON a.id = b.id""",
    """SELECT sum(id * (place % 97)) FROM
       (SELECT id, row_number() OVER (ORDER BY seconds, id) place FROM visit WHERE page < 300)""",
):
    print(database.execute(question).fetchall())
