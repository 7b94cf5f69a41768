"""Fills a redis-server with COUNT values over a Unix socket, gets a few of them most of the time,
has it save in the background, goes on, and shuts it down.

usage: redis_client.py SOCKET COUNT
"""

import hashlib
import random
import socket
import sys
import time

path, count = sys.argv[1], int(sys.argv[2])
BATCH = 200


def connect():
    for _ in range(6000):
        server = socket.socket(socket.AF_UNIX)
        if server.connect_ex(path) == 0:
            return server
        time.sleep(0.01)
    sys.exit("the server does not answer within a minute")


server = connect()
replies = server.makefile("rb")
digest = hashlib.blake2b()


def ask(commands):
    server.sendall(b"".join(b" ".join(words) + b"\r\n" for words in commands))
    return [reply() for _ in commands]


def reply():
    line = replies.readline()
    if not line or line[:1] == b"-":
        sys.exit(f"the server says {line!r}")
    return replies.read(int(line[1:]) + 2)[:-2] if line[:1] == b"$" else line[1:].strip()


for first in range(0, count, BATCH):
    numbers = range(first, min(first + BATCH, count))
    ask([(b"SET", b"key:%d" % n, b"%d/" % n * (20 + n % 90)) for n in numbers])
source = random.Random(7)
for turn in range(3 * count // BATCH):
    ranks = [int(count * source.random() ** 8) for _ in range(BATCH)]
    for value in ask([(b"GET", b"key:%d" % (rank * 2654435761 % count)) for rank in ranks]):
        digest.update(value[:8])
    if turn == count // BATCH:
        ask([(b"BGSAVE",)])
state = b"rdb_bgsave_in_progress:1"
while b"rdb_bgsave_in_progress:1" in state:
    time.sleep(0.01)
    state = ask([(b"INFO", b"persistence")])[0]
saved = b"rdb_last_bgsave_status:ok" in state
print(count, ask([(b"DBSIZE",)])[0].decode(), saved, digest.hexdigest())
sys.stdout.flush()
server.sendall(b"SHUTDOWN NOSAVE\r\n")
