"""Keeps values in a dict, or in a table of sqlite in memory, for one who asks over a Unix socket
in redis's inline commands.

usage: values.py SOCKET dict|sqlite
"""

import socket
import sqlite3
import sys

path, kind = sys.argv[1:]


class Table:
    """A dict of bytes in sqlite."""

    def __init__(self):
        self.base = sqlite3.connect(":memory:", isolation_level=None)
        self.base.execute("create table kept (name text primary key, value blob) without rowid")

    def __setitem__(self, name, value):
        self.base.execute("insert or replace into kept values (?, ?)", (name.decode(), value))

    def __getitem__(self, name):
        return self.base.execute("select value from kept where name = ?", (name.decode(),)).fetchone()[0]


kept = {"dict": dict, "sqlite": Table}[kind]()
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen()
client, _ = listener.accept()
rest = b""
while received := client.recv(1 << 16):
    *lines, rest = (rest + received).split(b"\r\n")
    answers = []
    for line in lines:
        command, name, *value = line.split(b" ")
        if command == b"SHUTDOWN":
            sys.exit(0)
        if command == b"SET":
            kept[name] = value[0]
            answers.append(b"+OK\r\n")
        else:
            found = kept[name]
            answers.append(b"$%d\r\n%b\r\n" % (len(found), found))
    client.sendall(b"".join(answers))
