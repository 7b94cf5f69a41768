"""`pagetide serve firecracker` as a process of a test, and what it says of itself."""
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

# Longest wait for anything, in seconds.
PATIENCE = 120
PAGE = 4096


class Failed(Exception):
    """What a test found is not as it should be."""


class Unable(Exception):
    """This cannot be done here."""


def say(text):
    print(text, flush=True)


def expect(what, seen, right):
    if seen != right:
        raise Failed(f"{what}: {seen}, and should be {right}")


def expect_between(what, seen, least, most):
    if not least <= seen <= most:
        raise Failed(f"{what}: {seen}, and should be from {least} to {most}")


def until(what, is_so, also=lambda: ""):
    """Waits until `is_so`; `also` has more to say if that does not come."""
    deadline = time.monotonic() + PATIENCE
    while not is_so():
        if time.monotonic() > deadline:
            raise Failed(f"waited {PATIENCE} s for {what}\n{also()}")
        time.sleep(0.005)


class Server:
    """The command, in a directory of its own that has `image`. It is ended with the `with` block."""

    def __init__(self, pagetide, place, image, options=(), name=None):
        self.place = place
        self.socket = place / "socket"
        words = [pagetide, "serve", "firecracker"]
        if name:
            # By a link of the name of one of Firecracker's example handlers.
            words = [place / name]
            words[0].symlink_to(pagetide)
        words += ["socket", image, "--status", "status", *options]
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(place)}
        with (place / "log").open("w") as log:
            self.process = subprocess.Popen(
                words, cwd=place, env=environment, stderr=log, stdin=subprocess.DEVNULL
            )

    def __enter__(self):
        try:
            until("that it serves", lambda: "is served at" in self.log() or self.ended(), self.log)
            expect("the end of the server", self.ended(), False)
        except Failed as failed:
            self.__exit__()
            raise Failed(f"{failed}\n{self.log()}") from failed
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def ended(self):
        return self.process.poll() is not None

    def log(self):
        return (self.place / "log").read_text(errors="replace")

    def status(self):
        # A path in a directory that is open is short enough for a socket's.
        with socket.socket(socket.AF_UNIX) as connection, short(self.place / "status") as path:
            connection.settimeout(PATIENCE)
            connection.connect(path)
            return json.loads(b"".join(iter(lambda: connection.recv(65536), b"")))

    def total(self, *counters):
        total = self.status()["total"]
        return sum(total[counter] for counter in counters)

    def clients(self):
        return len(self.status()["clients"])

    def reaches(self, count, *counters):
        """Waits until these counters, added up, are `count`; they do not go beyond it."""
        until(f"{count} {counters}", lambda: self.total(*counters) >= count, self.status)
        expect(f"{counters}", self.total(*counters), count)

    def forgets_all(self):
        until("the end of all clients", lambda: self.clients() == 0, self.log)

    def stop(self):
        """Ends it in order; its exit code has to be 0."""
        self.process.send_signal(signal.SIGTERM)
        expect(f"exit code of the server\n{self.log()}", self.process.wait(PATIENCE), 0)


@contextlib.contextmanager
def short(path):
    """A path to a socket that is no longer than a socket's may be."""
    directory = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


@contextlib.contextmanager
def huge_pages(count):
    """Has `count` huge pages of 2 MiB be free, and puts back what the system had."""
    setting = Path("/sys/kernel/mm/hugepages/hugepages-2048kB")
    pool = setting / "nr_hugepages"
    try:
        before, free = (int((setting / name).read_text()) for name in ["nr_hugepages", "free_hugepages"])
        pool.write_text(str(before + max(0, count - free)))
    except OSError as error:
        raise Unable(f"no huge pages: {error}") from error
    try:
        if int((setting / "free_hugepages").read_text()) < count:
            raise Unable(f"{count} huge pages of 2 MiB are not to be had")
        yield
    finally:
        pool.write_text(str(before))


def fresh(place):
    """An empty directory at `place`."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    return place
