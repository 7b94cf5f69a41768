"""Firecracker as a process of a test: its API, its guest's serial port, and whether it can be run."""
import fcntl
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess

from serving import PATIENCE, Failed, Unable, expect, fresh, short, until

KVM = "/dev/kvm"
# _IO(0xAE, 0x01) of linux/kvm.h.
KVM_CREATE_VM = 0xAE01


def executable():
    """Its executable; each of what it needs is asked for in turn."""
    try:
        device = os.open(KVM, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise Unable(f"{KVM} cannot be opened ({error.strerror})") from error
    try:
        os.close(fcntl.ioctl(device, KVM_CREATE_VM, 0))
    except OSError as error:
        raise Unable(f"{KVM} makes no virtual machine: KVM_CREATE_VM: {error.strerror}") from error
    finally:
        os.close(device)
    named = os.environ.get("PAGETIDE_FIRECRACKER")
    found = shutil.which(named or "firecracker")
    if not found:
        why = f"PAGETIDE_FIRECRACKER={named} is no executable" if named else (
            "there is no firecracker on PATH, and PAGETIDE_FIRECRACKER names none"
        )
        raise Unable(f"{KVM} makes virtual machines, but {why}")
    return os.path.realpath(found)


class Connection(http.client.HTTPConnection):
    """To the socket of an API."""

    def __init__(self, path):
        super().__init__("localhost", timeout=PATIENCE)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        with short(self.path) as path:
            self.sock.connect(path)


class Machine:
    """One Firecracker, in a directory of its own. It is killed with the `with` block."""

    def __init__(self, program, place):
        self.place = fresh(place)
        # Of the serial port's output, what was read.
        self.seen = 0
        words = [program, "--api-sock", "api", "--level", "Warning", "--log-path", "log"]
        (place / "log").touch()
        with (place / "serial").open("w") as serial:
            self.process = subprocess.Popen(
                words, cwd=place, stdin=subprocess.PIPE, stdout=serial, stderr=serial
            )

    def __enter__(self):
        until("Firecracker", lambda: (self.place / "api").exists() or self.process.poll(), self.log)
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()

    def log(self):
        return "".join((self.place / name).read_text(errors="replace")[-1500:] for name in ["serial", "log"])

    def call(self, method, path, **what):
        connection = Connection(self.place / "api")
        try:
            connection.request(method, path, json.dumps(what), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            text = answer.read().decode(errors="replace")
        except OSError as error:
            raise Failed(f"{method} {path}: {error}; Firecracker says:\n{self.log()}") from error
        finally:
            connection.close()
        if answer.status >= 300:
            raise Failed(f"{method} {path}: {answer.status} {text}")

    def boot(self, kernel, mebibytes, huge=False, hotplug=0):
        """A guest that is `kernel` alone, with a balloon where pages are not huge. So many MiB can be
        plugged in."""
        pages = {"huge_pages": "2M"} if huge else {}
        self.call("PUT", "/machine-config", vcpu_count=1, mem_size_mib=mebibytes, **pages)
        self.call("PUT", "/boot-source", kernel_image_path=str(kernel), boot_args="")
        if not huge:
            self.call("PUT", "/balloon", amount_mib=0, deflate_on_oom=False, stats_polling_interval_s=0)
        if hotplug:
            self.call("PUT", "/hotplug/memory", total_size_mib=hotplug)
        self.call("PUT", "/actions", action_type="InstanceStart")

    def pause(self):
        self.call("PATCH", "/vm", state="Paused")

    def snapshot(self, place):
        """Writes all of it, paused, to `state` and `memory` at `place`."""
        paths = {"snapshot_path": str(place / "state"), "mem_file_path": str(place / "memory")}
        self.call("PUT", "/snapshot/create", snapshot_type="Full", **paths)

    def restore(self, state, server, resume=True):
        """A clone whose pages `server` brings."""
        backend = {"backend_type": "Uffd", "backend_path": str(server.socket)}
        self.call("PUT", "/snapshot/load", snapshot_path=str(state), mem_backend=backend, resume_vm=resume)

    def resume(self):
        self.call("PATCH", "/vm", state="Resumed")

    def inflate(self, mebibytes):
        """Has the balloon take so much, and the guest give it; how many pages it says it gave."""
        self.call("PATCH", "/balloon", amount_mib=mebibytes)
        return self.ask("b", r"given up: (\d+)")

    def plug(self, mebibytes, letter="p"):
        """Has the guest have so much memory plugged in; how many pages that is by its own word."""
        self.call("PATCH", "/hotplug/memory", requested_size_mib=mebibytes)
        return self.ask(letter, r"plugged: (\d+)")

    def ask(self, letter, answer):
        """Types `letter` at the serial port; the number in the answer."""
        self.process.stdin.write(letter.encode())
        self.process.stdin.flush()
        return self.says(answer)

    def says(self, pattern):
        """Waits until the guest says it; the numbers in it."""
        serial, found = self.place / "serial", []

        def is_said():
            match = re.compile(pattern + "\n").search(serial.read_text(errors="replace"), self.seen)
            if match:
                self.seen = match.end()
                found.append([int(number) for number in match.groups()])
            elif self.process.poll() is not None:
                raise Failed(f"Firecracker ended with {self.process.returncode}:\n{self.log()}")
            return bool(match)

        until(f"'{pattern}' from the guest", is_said, self.log)
        return found[0][0] if len(found[0]) == 1 else found[0]

    def is_killed(self):
        """By somebody else."""
        expect("the end of Firecracker", self.process.wait(PATIENCE), -signal.SIGKILL)
