"""Fills a server of values over a Unix socket, and asks for ten at a time, a few of them most of the
time; rests a millisecond, replaces one of 20, and shuts the server down in the end.

usage: requests.py SOCKET COUNT redis|memcached
"""

import hashlib
import random
import socket
import sys
import time

path, count, is_redis = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "redis"


def connect():
    for _ in range(6000):
        server = socket.socket(socket.AF_UNIX)
        if server.connect_ex(path) == 0:
            return server
        time.sleep(0.01)
    sys.exit("no server answers within a minute")


server = connect()
replies = server.makefile("rb")


def put(numbers, turn):
    commands = []
    for n in numbers:
        value = b"%d/%d/" % (n, turn) * (20 + n % 90)
        words = (n, value) if is_redis else (n, len(value), value)
        commands.append((b"SET key:%d %b\r\n" if is_redis else b"set key:%d 0 0 %d\r\n%b\r\n") % words)
    server.sendall(b"".join(commands))
    for _ in numbers:
        if replies.readline() not in (b"+OK\r\n", b"STORED\r\n"):
            sys.exit("the server did not store a value")


def get(numbers):
    command = b"GET key:%d\r\n" if is_redis else b"get key:%d\r\n"
    server.sendall(b"".join(command % n for n in numbers))
    for n in numbers:
        size = replies.readline()[1:] if is_redis else replies.readline().split()[3]
        value = replies.read(int(size) + 2)
        if not value.startswith(b"%d/" % n) or not is_redis and replies.readline() != b"END\r\n":
            sys.exit(f"the server says {value[:40]!r} for {n}")
        digest.update(value)


for first in range(0, count, 100):
    put(range(first, min(first + 100, count)), 0)
source, digest = random.Random(8), hashlib.blake2b()
for turn in range(count // 10):
    ranks = [int(count * source.random() ** 8) for _ in range(10)]
    numbers = [rank * 2654435761 % count for rank in ranks]
    get(numbers)
    if turn % 2 == 0:
        put(numbers[:1], turn)
    time.sleep(0.001)
print(count, digest.hexdigest())
sys.stdout.flush()
server.sendall(b"SHUTDOWN NOSAVE\r\n" if is_redis else b"shutdown graceful\r\n")
