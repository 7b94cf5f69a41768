#!/usr/bin/env python3
"""`pagetide serve criu` with CRIU itself: real programs are dumped and restored lazily.

usage: run.py --pagetide PATH --work DIRECTORY [--criu 4.1 4.2] [--megabytes N] [--bench RUNS]
       [--twice SECONDS] [--zdtm PATTERN]

CRIU's packages are unpacked below DIRECTORY and run from there; nothing of the system is replaced.
Two programs are restored with each version, and every byte of theirs is verified: one in Python,
and a Redis; both from images, and from a store that their pages were packed into. Then CRIU's own tests of lazy restores run, those that its daemon passes. What cannot
be had is SKIPPED, loudly; exit code 77 if that is everything. Meanwhile pipes may be as large as
CRIU's page server makes them (fs.pipe-max-size, fs.pipe-user-pages-soft); that is put back. --bench measures instead how long a
restored Redis takes to its first answer, with either daemon, and restored all at once. --twice measures what a store grows by
when both programs are dumped and packed twice, so many seconds apart. --zdtm runs those of CRIU's own tests alone whose whole name
the pattern matches, .* for all, which takes hours.
"""
import argparse
import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
# The suite of Debian's that has each version.
SUITES = {"4.1": "trixie", "4.2": "sid"}
# What CRIU's own continuous integration runs with lazy pages, less what it leaves out.
ZDTM = re.compile(r".*(maps0|uffd-events|lazy-thp|futex|fork|pthread01).*")
ZDTM_LEFT_OUT = {"maps04", "maps007", "cmdlinenv00"}
# Longest wait for anything, in seconds.
PATIENCE = 120


def say(text):
    print(text, flush=True)


def wait_for(what, is_so, seconds=PATIENCE):
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited for {what} for {seconds} s")
        time.sleep(0.005)


class Criu:
    """One version of CRIU, unpacked."""

    def __init__(self, version, place):
        self.version = version
        self.suite = SUITES[version]
        self.place = place / f"criu-{version}"
        self.command = self.place / "criu"

    def apt(self):
        state = self.place / "apt"
        for name in ["lists/partial", "cache/archives/partial", "parts"]:
            (state / name).mkdir(parents=True, exist_ok=True)
        (state / "status").touch()
        key = "/usr/share/keyrings/debian-archive-keyring.gpg"
        line = f"[signed-by={key}] {mirror()} {self.suite} main"
        (state / "sources.list").write_text(f"deb {line}\ndeb-src {line}\n")
        options = {
            "Dir::State::status": state / "status",
            "Dir::State::lists": state / "lists",
            "Dir::Cache": state / "cache",
            "Dir::Etc::sourcelist": state / "sources.list",
            "Dir::Etc::sourceparts": state / "parts",
            "Dir::Etc::preferencesparts": state / "parts",
            "Dir::Etc::main": "/dev/null",
            "Dir::Etc::Parts": state / "parts",
            "APT::Install-Recommends": "false",
            "APT::Sandbox::User": "root",
        }
        words = ["apt-get", "-qq", "-y"]
        for name, value in options.items():
            words += ["-o", f"{name}={value}"]
        return words

    def get(self):
        """Unpacks it, with what it needs, unless that was done before."""
        if self.command.exists():
            return
        apt = self.apt()
        run(apt + ["update"])
        # As nothing is installed by the status file given, all that it needs comes.
        run(apt + ["--download-only", "install", "criu"])
        # Its modules for Python, which run with the Python there is.
        run(apt + ["download", "python3-pycriu"], cwd=self.place / "apt/cache/archives")
        root = self.place / "root"
        for package in (self.place / "apt/cache/archives").glob("*.deb"):
            run(["dpkg-deb", "-x", package, root])
        libraries = f"{root}/usr/lib/x86_64-linux-gnu:{root}/lib/x86_64-linux-gnu"
        loader = root / "usr/lib64/ld-linux-x86-64.so.2"
        write_script(
            self.command,
            f'exec {loader} --library-path {libraries} {root}/usr/sbin/criu "$@"',
        )

    def tests(self):
        """Its own tests, unpacked from its source; where."""
        source = self.place / "source"
        if not source.exists():
            source.mkdir()
            run(self.apt() + ["--download-only", "--tar-only", "source", "criu"], cwd=source)
            for archive in source.glob("*.orig.tar.*"):
                run(["tar", "-xf", archive, "--strip-components=1"], cwd=source)
            # The packaged modules are used: these are not built.
            (source / "test/pycriu").unlink(missing_ok=True)
        return source / "test"


def mirror():
    """The Debian mirror that this system uses."""
    places = [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]
    for place in places:
        if place.is_file():
            found = re.search(r"https?://\S+/debian/?(?=\s)", place.read_text())
            if found:
                return found.group(0)
    return "http://deb.debian.org/debian"


def run(words, **options):
    done = subprocess.run(words, capture_output=True, text=True, check=False, **options)
    if done.returncode != 0:
        line = " ".join(str(word) for word in words[:4])
        raise RuntimeError(f"{line} ...: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return done.stdout


def write_script(path, line):
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)


class Program:
    """A program that is dumped and restored."""

    def __init__(self, place, words):
        self.images = place / "images"
        shutil.rmtree(place, ignore_errors=True)
        self.images.mkdir(parents=True)
        log = (place / "log").open("w")
        self.process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=place
        )
        self.pid = self.process.pid

    def dump(self, criu, options=()):
        words = [criu.command, "dump", "-t", str(self.pid), "-D", self.images, "-v4", "-o", "dump.log"]
        run(words + list(options))
        if not options:
            # The process ID is free once it has been waited for.
            self.process.wait()

    def pack(self, daemon, options=()):
        """Packs its pages into a store beside its images, with the command that `daemon` is of."""
        words = [daemon[0], "pack", self.images, f"file:{self.images.parent}/store", "--json"]
        return json.loads(run(words + list(options)))

    def restore(self, criu, daemon):
        """Restores it with `daemon`, words of a command; that, running. Without one, all at once."""
        if daemon is None:
            words = [criu.command, "restore", "-d", "-D", self.images, "-v1", "-o", "restore.log"]
            run(words)
            return None
        ready, told = os.pipe()
        words = daemon + ["--images-dir", self.images, "--log-file", "lazy.log", "-v4"]
        words += ["--status-fd", str(told)]
        server = subprocess.Popen(words, pass_fds=[told])
        os.close(told)
        if os.read(ready, 1) != b"\0":
            raise RuntimeError(f"the daemon is not ready: {self.log('lazy.log')}")
        os.close(ready)
        words = [criu.command, "restore", "--lazy-pages", "-d", "-D", self.images]
        run(words + ["-v1", "-o", "restore.log"])
        return server

    def log(self, name):
        path = self.images / name
        return path.read_text(errors="replace")[-1500:] if path.exists() else "(no log)"

    def end(self):
        try:
            os.kill(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        wait_for("its end", lambda: not is_running(self.pid))
        try:
            # Its process ID is free then, for another restore.
            os.waitpid(self.pid, 0)
        except ChildProcessError:
            pass


def adopt_orphans():
    """Has processes that were restored, whose parent ends, be children of this one."""
    pr_set_child_subreaper = 36
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_child_subreaper, 1, 0, 0, 0)


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def finish(program, server):
    """Waits for the end of the daemon, which comes when all pages are there."""
    code = server.wait(timeout=PATIENCE)
    if code != 0:
        raise RuntimeError(f"the daemon ended with {code}: {program.log('lazy.log')}")
    lines = program.log("lazy.log").strip().splitlines()
    return lines[-1].removeprefix("pagetide: ") if lines else ""


def packed(criu, daemon, program):
    """Packs the pages of a dump, so that they are in the store alone; what there is to say of it."""
    figures = program.pack(daemon, ["--remove-pages"])
    if list(program.images.glob("pages-*.img")):
        raise RuntimeError("there are files of pages still")
    return (
        f"{figures['pages']} pages packed into {figures['added_bytes'] >> 10} KiB, index of "
        f"{figures['index_bytes'] >> 10} KiB"
    )


def python_program(criu, daemon, place, megabytes, prepare=None):
    """A program in Python that verifies all its memory once it is told to."""
    words = ["/usr/bin/python3", HERE / "program.py", str(megabytes), "said"]
    program = Program(place, words)
    try:
        said = place / "said"
        wait_for("the program", said.exists)
        program.dump(criu)
        prepared = prepare(criu, daemon, program) + "; " if prepare else ""
        # It begins as soon as it runs again, while its pages come.
        (place / "said.go").touch()
        server = program.restore(criu, daemon)
        done = place / "said.done"
        wait_for("its word", done.exists)
        said = done.read_text().strip()
        figures = finish(program, server)
        if said != "0 wrong":
            raise RuntimeError(f"the program says: {said}")
        return prepared + figures
    finally:
        program.end()


def packed_python_program(criu, daemon, place, megabytes):
    """The program in Python, with its pages in a store."""
    return python_program(criu, daemon, place, megabytes, packed)


def page_server(criu, daemon, place, megabytes):
    """The program in Python, whose pages stay with `criu dump` until they are fetched."""
    program = Program(place, ["/usr/bin/python3", HERE / "program.py", str(megabytes), "said"])
    space = None
    try:
        wait_for("the program", (place / "said").exists)
        port = free_port()
        ready, told = os.pipe()
        words = [criu.command, "dump", "-t", str(program.pid), "-D", program.images, "-v4"]
        words += ["-o", "dump.log", "--lazy-pages", "--address", "127.0.0.1", "--port", str(port)]
        dump = subprocess.Popen(words + ["--status-fd", str(told)], pass_fds=[told])
        os.close(told)
        if os.read(ready, 1) != b"\0":
            raise RuntimeError(f"the dump is not ready: {program.log('dump.log')}")
        # The images without most pages, as on another machine.
        dumped, program.images = program.images, place / "copy"
        shutil.copytree(dumped, program.images)
        (place / "said.go").touch()
        words = daemon + ["-D", program.images, "-o", "lazy.log"]
        server = subprocess.Popen(words + ["--page-server", f"127.0.0.1:{port}"])
        wait_for("the daemon", (program.images / "lazy-pages.socket").exists)
        # Its process ID is in use here still, so it is restored among others.
        words = ["unshare", "--pid", "--mount", "--mount-proc", "--fork", "--kill-child", "sh", "-c"]
        line = f"{criu.command} restore --lazy-pages -d -D {program.images} -v1 -o restore.log"
        space = subprocess.Popen(words + [f"{line} && exec sleep 600"])
        wait_for("its word", lambda: (place / "said.done").exists() or dump.poll())
        if dump.poll():
            log = (dumped / "dump.log").read_text(errors="replace")
            if "page-pipe" in log and "Error" in log:
                raise Unable("CRIU's page server fails here: it needs CAP_SYS_RESOURCE for its pipes")
            raise RuntimeError(f"the page server failed: {log[-1500:]}")
        figures = finish(program, server)
        said = (place / "said.done").read_text().strip()
        if said != "0 wrong" or dump.wait(timeout=PATIENCE) != 0:
            raise RuntimeError(f"the program says: {said}; the dump ended with {dump.returncode}")
        return figures
    finally:
        if space:
            space.kill()
            space.wait()
        program.end()


@contextlib.contextmanager
def large_pipes():
    """Lets CRIU's page server make its pipes as large as it wants, which else needs
    CAP_SYS_RESOURCE. What is changed of the system is put back."""
    wanted = {"fs/pipe-user-pages-soft": "0", "fs/pipe-max-size": str(1 << 30)}
    before = {}
    try:
        for name, value in wanted.items():
            setting = Path("/proc/sys") / name
            there = setting.read_text().strip()
            try:
                setting.write_text(value)
            except OSError as error:
                say(f"{setting} cannot be set ({error}): page servers of CRIU may fail here")
                continue
            before[setting] = there
        yield
    finally:
        for setting, value in before.items():
            setting.write_text(value)


class Unable(Exception):
    """This cannot be done here."""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Redis(Program):
    """A Redis with so many megabytes of values."""

    def __init__(self, place, megabytes):
        self.place = place
        self.socket = place / "redis.sock"
        words = ["redis-server", "--port", "0", "--unixsocket", "redis.sock", "--save", ""]
        words += ["--enable-debug-command", "local", "--daemonize", "no"]
        super().__init__(place, words)
        wait_for("redis", self.socket.exists)
        self.ask("DEBUG", "POPULATE", str(megabytes * 1024), "key", "1000")
        self.digest = self.ask("DEBUG", "DIGEST")

    def ask(self, *words):
        """One request, on a connection of its own; its answer."""
        # A path in the current directory is short enough for a socket's.
        os.chdir(self.place)
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE)
            connection.connect("redis.sock")
            text = "".join(f"${len(word)}\r\n{word}\r\n" for word in words)
            connection.sendall(f"*{len(words)}\r\n{text}".encode())
            return connection.recv(65536)


def redis(criu, daemon, place, megabytes, prepare=None):
    """A Redis, which is asked for a digest of all its data while they come."""
    program = Redis(place, megabytes)
    try:
        program.dump(criu)
        prepared = prepare(criu, daemon, program) + "; " if prepare else ""
        server = program.restore(criu, daemon)
        digest = program.ask("DEBUG", "DIGEST")
        figures = finish(program, server)
        if digest != program.digest:
            raise RuntimeError(f"its data are others: {digest} and {program.digest}")
        return prepared + figures
    finally:
        program.end()


def packed_redis(criu, daemon, place, megabytes):
    """A Redis, with its pages in a store."""
    return redis(criu, daemon, place, megabytes, packed)


def twice(criu, daemon, place, megabytes, seconds):
    """What a store grows by when a program is dumped twice, with time between."""

    def wait_idle(_):
        time.sleep(seconds)

    def wait_busy(program):
        # A thousand keys a second are written.
        end = time.monotonic() + seconds
        number = 0
        while time.monotonic() < end:
            number += 1000
            program.ask("DEBUG", "POPULATE", str(1000), f"more{number}", "100")
            time.sleep(1)

    def python(where):
        program = Program(where, ["/usr/bin/python3", HERE / "program.py", str(megabytes), "said"])
        wait_for("the program", (where / "said").exists)
        return program

    programs = [
        ("Python, idle", python, wait_idle),
        ("Redis, idle", lambda where: Redis(where, megabytes), wait_idle),
        ("Redis, 1000 keys a second", lambda where: Redis(where, megabytes), wait_busy),
    ]
    for name, start, wait in programs:
        program = start(place)
        try:
            for number in (1, 2):
                program.images = place / f"images-{number}"
                program.images.mkdir()
                program.dump(criu, ["--leave-running"])
                figures = program.pack(daemon)
                ratio = figures["added_bytes"] / figures["new_bytes"] if figures["new_bytes"] else 0
                say(
                    f"criu {criu.version}, {name}, {megabytes} MB, dump {number}: "
                    f"{figures['pages']} pages, {figures['new_pages']} new, "
                    f"{figures['new_bytes']} B compressed, {figures['added_bytes']} B added "
                    f"({ratio:.3f}), index {figures['index_bytes']} B"
                )
                if number == 1:
                    wait(program)
        finally:
            program.process.kill()
            program.process.wait()


def bench(criu, daemons, place, megabytes, runs):
    """How long it takes from the start of the restore to the first answer, and until all is there."""
    program = Redis(place, megabytes)
    times = {name: ([], []) for name in daemons}
    try:
        program.dump(criu)
        for number in range(runs):
            # Each is first as often as the others.
            names = list(daemons)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                begun = time.monotonic()
                server = program.restore(criu, daemons[name])
                program.ask("GET", "key:500")
                times[name][0].append(time.monotonic() - begun)
                if server:
                    finish(program, server)
                times[name][1].append(time.monotonic() - begun)
                program.end()
    finally:
        program.end()
    for name, (first, all_there) in times.items():
        say(
            f"criu {criu.version} {name}: first answer {statistics.median(first):.3f} s "
            f"({min(first):.3f} to {max(first):.3f}), all there {statistics.median(all_there):.3f} s "
            f"({min(all_there):.3f} to {max(all_there):.3f}), {runs} runs, {megabytes} MB"
        )
    median = {name: [statistics.median(of) for of in times[name]] for name in daemons}
    ours = median["pagetide"]
    for name in daemons:
        first, all_there = (mine / other for mine, other in zip(ours, median[name]))
        say(f"criu {criu.version}: pagetide to {name}: first {first:.2f}, all there {all_there:.2f}")


def zdtm(criu, pagetide, place, pattern=None):
    """CRIU's own tests of lazy restores, or those whose name `pattern` matches: what passes with both
    daemons, what with CRIU's alone, and what does not with its own."""
    tests = criu.tests()
    ours = place / f"ours-{criu.version}"
    modules = criu.place / "root/usr/lib/python3/dist-packages"
    write_script(
        ours,
        f'if [ "$1" = lazy-pages ]; then shift; exec {pagetide} serve criu "$@"; fi\n'
        f'exec {criu.command} "$@"',
    )
    # What zdtm.py needs of the system's Python.
    if subprocess.run(["/usr/bin/python3", "-c", "import google.protobuf, yaml"], check=False).returncode:
        run(["apt-get", "-qq", "-y", "install", "python3-protobuf", "python3-yaml"])
    run(["make", "-s", "-C", tests / "zdtm/lib"])
    names = sorted(path.stem for path in (tests / "zdtm/static").glob("*.c"))
    if pattern:
        names = [name for name in names if pattern.fullmatch(name)]
    else:
        names = [name for name in names if ZDTM.match(name) and name not in ZDTM_LEFT_OUT]
    ways = [[]] if pattern else [[], ["--pre", "2"], ["--remote-lazy-pages"]]
    both, wrong, neither = [], [], []
    for name in names:
        for options in ways:
            label = " ".join([name, *options])
            if not run_zdtm(tests, name, criu.command, modules, options):
                neither.append(label)
            elif run_zdtm(tests, name, ours, modules, options):
                both.append(label)
            else:
                wrong.append(label)
                if pattern:
                    say(f"criu {criu.version}: FAILED with Pagetide alone: {label}")
    return both, wrong, neither


def run_zdtm(tests, name, command, modules, options):
    """Whether it passes; one that zdtm.py skips does not."""
    description = tests / f"zdtm/static/{name}.desc"
    if not description.exists():
        description.write_text("{'flavor': 'h', 'flags': 'suid'}")
    words = ["/usr/bin/python3", "zdtm.py", "run", "-t", f"zdtm/static/{name}", "-f", "h"]
    words += [] if "--remote-lazy-pages" in options else ["--lazy-pages"]
    words += [*options, "--criu-bin", command, "--ignore-taint"]
    # Its own parts are started by the first python3 that is found.
    path = "/usr/sbin:/usr/bin:/sbin:/bin"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(modules)}
    try:
        run(["make", "-s", "-C", tests / "zdtm/static", name])
        said = run(words, cwd=tests, env=environment, timeout=PATIENCE)
    except (RuntimeError, subprocess.TimeoutExpired):
        return False
    return f"Test zdtm/static/{name} PASS" in said


def able():
    """Why nothing can be done here, if so."""
    if os.geteuid() != 0:
        return "CRIU restores processes for root only"
    for program in ["apt-get", "dpkg-deb", "redis-server", "/usr/bin/python3"]:
        if not shutil.which(program):
            return f"there is no {program}"
    return None


def test(criu, options, failures):
    pagetide = [str(options.pagetide), "serve", "criu"]
    for what in [python_program, redis, packed_python_program, packed_redis, page_server]:
        place = options.work / f"{what.__name__}-{criu.version}"
        label = f"criu {criu.version}, {what.__name__}, {options.megabytes} MB"
        try:
            figures = what(criu, pagetide, place, options.megabytes)
            say(f"{label}: every byte is right; {figures}")
        except Unable as why:
            say(f"SKIPPED: {label}: {why}")
        except (RuntimeError, OSError, subprocess.SubprocessError) as error:
            failures.append(label)
            say(f"{label}: FAILED: {error}")
    own_tests(criu, options, failures)


def own_tests(criu, options, failures):
    try:
        both, wrong, neither = zdtm(criu, options.pagetide, options.work, options.zdtm)
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        return say(f"SKIPPED: CRIU {criu.version}'s own tests: {error}")
    say(f"criu {criu.version}, its own tests: {len(both)} pass with either daemon: {', '.join(both)}")
    if neither:
        say(f"criu {criu.version}: with its own daemon these fail or are skipped: {', '.join(neither)}")
    if wrong:
        failures.append(f"CRIU {criu.version}'s own tests")
        say(f"criu {criu.version}: FAILED with Pagetide alone: {', '.join(wrong)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pagetide", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--criu", nargs="+", choices=SUITES, default=list(SUITES))
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--bench", type=int, metavar="RUNS")
    parser.add_argument("--twice", type=int, metavar="SECONDS")
    parser.add_argument("--zdtm", type=re.compile, metavar="PATTERN")
    options = parser.parse_args()
    why = able()
    if why:
        say(f"SKIPPED: {why}")
        return 77
    adopt_orphans()
    options.work, options.pagetide = options.work.resolve(), options.pagetide.resolve()
    options.work.mkdir(parents=True, exist_ok=True)
    failures, had = [], 0
    for version in options.criu:
        criu = Criu(version, options.work)
        try:
            criu.get()
        except (RuntimeError, OSError) as error:
            say(f"SKIPPED: CRIU {version} cannot be had: {error}")
            continue
        had += 1
        ours = [str(options.pagetide), "serve", "criu"]
        if options.twice:
            place = options.work / f"twice-{version}"
            twice(criu, ours, place, options.megabytes, options.twice)
        elif options.bench:
            daemons = {"pagetide": ours, "criu": [criu.command, "lazy-pages"], "eager": None}
            place = options.work / f"bench-{version}"
            bench(criu, daemons, place, options.megabytes, options.bench)
        else:
            with large_pipes():
                (own_tests if options.zdtm else test)(criu, options, failures)
    if failures:
        say(f"FAILED: {'; '.join(failures)}")
        return 1
    return 0 if had else 77


if __name__ == "__main__":
    sys.exit(main())
