"""Loads a redis-server with MIB mebibytes over a private Unix socket, verifies every value, saves in the background
(which forks) while writes go on, starts a second server from the file saved, and compares.

usage: redis_session.py MIB REDIS-SERVER-COMMAND...
"""

import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

VALUE_BYTES = 1024


def value(key, version):
    """Half random, half text; a function of its arguments."""
    seed = hashlib.sha256(f"{key}/{version}".encode()).digest()
    return (seed * 16)[: VALUE_BYTES // 2] + (b"value of %d, version %d. " % (key, version) * 40)[: VALUE_BYTES // 2]


class Connection:
    """As much of a Redis client as is needed: pipelined commands, bulk and simple replies."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.reader = self.socket.makefile("rb")

    def send(self, *commands):
        out = []
        for words in commands:
            out.append(b"*%d\r\n" % len(words))
            out.extend(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
        self.socket.sendall(b"".join(out))
        return [self.reply() for _ in commands]

    def reply(self):
        line = self.reader.readline().rstrip(b"\r\n")
        if not line:
            raise SystemExit("FAILED: the server closed the connection")
        kind, rest = line[:1], line[1:]
        if kind == b"-":
            raise SystemExit(f"FAILED: the server says {rest.decode()}")
        if kind in b"+:":
            return rest
        length = int(rest)
        return None if length < 0 else self.reader.read(length + 2)[:-2]


def start(folder, command):
    path = os.path.join(folder, "redis.sock")
    options = ["--port", "0", "--unixsocket", path, "--dir", folder, "--save", "", "--appendonly", "no"]
    options += ["--daemonize", "no", "--rdbcompression", "no", "--loglevel", "warning"]
    server = subprocess.Popen(command + options, stdout=subprocess.DEVNULL, stderr=sys.stderr, start_new_session=False)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            connection = Connection(path)
            if connection.send([b"PING"]) == [b"PONG"]:
                return server, connection
        except (OSError, SystemExit):
            if server.poll() is not None:
                raise SystemExit(f"FAILED: redis-server ended with {server.returncode}")
            time.sleep(0.05)
    raise SystemExit("FAILED: redis-server does not answer within 120 s")


def stop(server, connection):
    connection.socket.sendall(b"*2\r\n$8\r\nSHUTDOWN\r\n$6\r\nNOSAVE\r\n")
    try:
        code = server.wait(120)
    except subprocess.TimeoutExpired:
        server.kill()
        raise SystemExit("FAILED: redis-server does not shut down")
    if code != 0:
        raise SystemExit(f"FAILED: redis-server ended with {code}")


def information(connection, field):
    text = connection.send([b"INFO", b"persistence"])[0].decode()
    return next(line.split(":", 1)[1] for line in text.splitlines() if line.startswith(field + ":"))


def verify(connection, versions, what):
    digest = hashlib.sha256()
    for base in range(0, len(versions), 200):
        keys = range(base, min(base + 200, len(versions)))
        for key, got in zip(keys, connection.send(*[[b"GET", b"key:%d" % key] for key in keys])):
            if got != value(key, versions[key]):
                raise SystemExit(f"FAILED: {what}: key {key} is {got[:64] if got else got!r}, not its version {versions[key]}")
            digest.update(got)
    return digest.hexdigest()


def write(connection, versions, keys, version):
    for key in keys:
        versions[key] = version
    connection.send(*[[b"SET", b"key:%d" % key, value(key, version)] for key in keys])


def main():
    count = (int(sys.argv[1]) << 20) // (VALUE_BYTES + 120)
    folder = tempfile.mkdtemp(prefix="pagetide-redis-")
    server = None
    try:
        server, connection = start(folder, sys.argv[2:])
        versions = [0] * count
        for base in range(0, count, 200):
            write(connection, versions, range(base, min(base + 200, count)), 1)
        print("loaded", verify(connection, versions, "after loading"))
        at_save = list(versions)
        connection.send([b"BGSAVE"])
        step = 0
        while information(connection, "rdb_bgsave_in_progress") == "1":
            # A fixed set of keys: however long the saving takes, what is written is the same in the end.
            write(connection, versions, range(step % 997, min(count, 997 * 100), 997), 2)
            step = (step + 1) % 20
        if information(connection, "rdb_last_bgsave_status") != "ok":
            raise SystemExit("FAILED: BGSAVE did not come out well")
        for step in range(20):
            write(connection, versions, range(step, min(count, 997 * 100), 997), 2)
        print("written while saving", verify(connection, versions, "after BGSAVE"))
        stop(server, connection)
        server, connection = start(folder, sys.argv[2:])
        # The file must hold the moment of the fork.
        print("reloaded", verify(connection, at_save, "after reloading"))
        stop(server, connection)
        server = None
        print("ok", count)
    finally:
        if server and server.poll() is None:
            server.send_signal(signal.SIGKILL)
        shutil.rmtree(folder, ignore_errors=True)


main()
