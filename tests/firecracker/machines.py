"""`pagetide serve firecracker` with Firecracker itself: clones of one guest."""
import shutil
import subprocess
from pathlib import Path

from firecracker import Machine, executable
from serving import PAGE, Failed, Unable, expect, expect_between, fresh, huge_pages, until

HERE = Path(__file__).resolve().parent
MEBIBYTES = 32
PAGES = MEBIBYTES * 256
# Those that the guest fills: all from 2 MiB on.
FILLED = PAGES - 2 * 256
# What the balloon takes, and how many pages that is.
BALLOON = 8
TAKEN = BALLOON * 256
# What may be plugged in beside, and what is; both in MiB. (A part of the first 128 MiB: Firecracker has the
# others be inaccessible.)
HOTPLUG, PLUGGED = 256, 6
# Those that Firecracker may write to while it restores or resumes a guest: clocks and the like.
WRITTEN = 4
# Pages of a working set that have come.
PLACED = ["working_set_pages", "present_pages", "fault_pages"]


def is_hardware():
    """Whether the processor runs guests, and not KVM's emulator of one, which is slow."""
    flags = Path("/proc/cpuinfo").read_text().partition("flags")[2].partition("\n")[0].split()
    return "vmx" in flags or "svm" in flags


def build_guest(work):
    """The guest, which is one C program."""
    guest = work / "microvm"
    words = ["gcc", "-O2", "-ffreestanding", "-nostdlib", "-static", "-fno-pic", "-no-pie", "-mno-red-zone"]
    words += ["-mgeneral-regs-only", "-fno-stack-protector", "-fcf-protection=none"]
    words += [f"-DSTEP={1 if is_hardware() else 64}"]
    words += ["-Wl,-Ttext-segment=0x100000,-z,noseparate-code,--build-id=none"]
    try:
        subprocess.run([*words, "-o", guest, HERE / "guest/microvm.c"], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Unable(f"the guest is not built: {error}") from error
    return guest


class Machines:
    """The tests. `start(image, options, name)` starts a server over what `image` makes."""

    def __init__(self, program, guest, place, start):
        self.program, self.guest, self.place, self.start = program, guest, place, start
        self.state, self.memory = place / "state", place / "memory"

    def make_snapshot(self, huge=False, plugged=0):
        """Boots the guest and writes the snapshot that clones are restored from, in place of the last.
        With MiB that were plugged in."""
        total = HOTPLUG if plugged else 0
        with self.machine("source") as machine:
            machine.boot(self.guest, MEBIBYTES, huge, total)
            expect("pages that the guest fills", machine.says(r"filled: (\d+)"), FILLED)
            if plugged:
                expect("pages plugged in", machine.plug(plugged), plugged * 256)
            machine.pause()
            machine.snapshot(fresh(self.place))
        expect("bytes of the image", self.memory.stat().st_size, (PAGES + total * 256) * PAGE)

    def machine(self, name="clone"):
        return Machine(self.program, self.place.parent / name)

    def server(self, *options, name=None):
        return self.start(lambda _: self.memory, options, name)

    def verify(self, machine, more=0):
        """The guest looks at every page it filled, wrote to or gave up, and at so many plugged in."""
        right, wrong = machine.ask("v", r"verified: (\d+) right, (\d+) wrong")
        if wrong or right != FILLED + more:
            raise Failed(f"the guest finds {right} pages right, {wrong} wrong\n{machine.log()}")

    def two_clones(self):
        """Each writes to its own memory; one gives some up; both are right to the last page."""
        with self.server() as server, self.machine("one") as one, self.machine("two") as two:
            for machine in [one, two]:
                machine.restore(self.state, server)
                self.verify(machine)
            brought, faults = server.total("fault_pages", "block_pages"), server.total("faults")
            expect_between("pages brought", brought, 2 * FILLED, 2 * PAGES)
            one.ask("1", "marked")
            two.ask("2", "marked")
            expect("pages given up", one.inflate(BALLOON), TAKEN)
            server.reaches(TAKEN, "removed_pages")
            for machine in [one, two]:
                self.verify(machine)
            expect("clients", server.clients(), 2)
            expect("lost pages", server.total("lost_pages"), 0)
            two.process.kill()
            until("the end of one", lambda: server.clients() == 1, server.log)
            self.verify(one)
        return f"{brought} pages in {faults} faults, {TAKEN} given up"

    def given_up_unseen(self):
        """What the balloon takes before it has come never shows what the image has there."""
        with self.server() as server, self.machine() as machine:
            machine.restore(self.state, server)
            expect("pages given up", machine.inflate(BALLOON), TAKEN)
            self.verify(machine)
            server.reaches(TAKEN, "removed_pages")
            expect_between("pages of the image", server.total("image_pages"), 1, PAGES - TAKEN)
        return f"{TAKEN} given up"

    def snapshot_of_a_clone(self):
        """Firecracker writes a snapshot of a clone that never ran: every page is the image's."""
        with self.server() as server, self.machine() as machine:
            machine.restore(self.state, server, resume=False)
            copy = fresh(self.place.parent / "copy")
            machine.snapshot(copy)
            differ = differing(self.memory, copy / "memory")
            expect_between("pages that differ from the image", differ, 0, WRITTEN)
            shutil.rmtree(copy)
        return f"{PAGES} pages compared, {differ} differ"

    def without_the_server(self):
        """All pages come, the command ends, and the guest and its balloon go on."""
        with self.server("--prefetch-rate", "max") as server, self.machine() as machine:
            machine.restore(self.state, server)
            server.reaches(PAGES, "fault_pages", "block_pages", "background_pages")
            server.stop()
            self.verify(machine)
            expect("pages given up", machine.inflate(BALLOON), TAKEN)
            self.verify(machine)
        return f"{PAGES} pages"

    def the_end_of_the_server(self):
        """A guest that misses pages ends with the command."""
        with self.server() as server, self.machine() as machine:
            machine.restore(self.state, server)
            machine.ask("1", "marked")
            server.stop()
            machine.is_killed()
        return "1 killed"

    def by_its_examples_names(self):
        """By the names and arguments of Firecracker's example handlers."""
        for name in ["uffd_on_demand_handler", "uffd_fault_all_handler"]:
            with self.server(name=name) as server, self.machine() as machine:
                machine.restore(self.state, server)
                self.verify(machine)
                expect("pages given up", machine.inflate(BALLOON), TAKEN)
                self.verify(machine)
                background = server.total("background_pages")
                expect(f"{name}: brings what nobody asked for", background > 0, "all" in name)
        return "two names"

    def packed(self):
        """The image's pages are in a store alone."""
        place = fresh(self.place.parent / "packed")
        image = place / "memory"
        shutil.copyfile(self.memory, image)
        pagetide = self.start.pagetide
        words = [pagetide, "pack", image, f"file:{place}/store", "--remove-pages", "--json"]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        expect("the image itself is there", image.exists(), False)
        with self.start(lambda _: place / "memory.pages", ()) as server, self.machine() as machine:
            machine.restore(self.state, server)
            self.verify(machine)
            from_store = server.total("store_pages")
            expect_between("pages of the store", from_store, 1, PAGES)
        shutil.rmtree(place)
        return f"{from_store} pages of the store"

    def working_set(self):
        """What one clone waited for is there before the next one runs."""
        recorded = self.place / "set"
        with self.server("--record", recorded) as server, self.machine() as machine:
            machine.restore(self.state, server)
            machine.ask("1", "marked")
            before = server.total("faults")
            machine.process.kill()
            until("the end of the clone", lambda: server.clients() == 0, server.log)
            server.stop()
        with self.server("--replay", recorded) as server, self.machine() as machine:
            machine.restore(self.state, server, resume=False)
            until("the working set", lambda: server.total(*PLACED) >= before, server.status)
            machine.resume()
            machine.ask("1", "marked")
            after = server.total("faults")
            expect_between("faults with a working set", after, 0, before // 20)
            self.verify(machine)
        return f"{before} faults without a working set, {after} with one"

    def plugged_memory(self):
        """A guest with memory plugged in, a part of what could be: the rest cannot be accessed, and lies
        in the same region. It gives that back, and takes it again."""
        self.make_snapshot(plugged=PLUGGED)
        pages = PLUGGED * 256
        for options in [(), ("--prefetch-rate", "max")]:
            with self.server(*options) as server, self.machine() as machine:
                machine.restore(self.state, server)
                self.verify(machine, pages)
                if options:
                    brought = ["fault_pages", "block_pages", "background_pages"]
                    server.reaches(PAGES + HOTPLUG * 256, *brought)
                expect("pages left", machine.plug(2, "u"), 512)
                if not options:
                    server.reaches(pages - 512, "removed_pages")
                self.verify(machine, 512)
                expect("pages plugged in", machine.plug(PLUGGED + 2), pages + 512)
                self.verify(machine, pages + 512)
                expect("lost pages", server.total("lost_pages"), 0)
        return f"{pages} pages plugged in of {HOTPLUG * 256}, {pages - 512} given back"

    def of_huge_pages(self):
        """A guest in huge pages of 2 MiB, which Firecracker restores with such a handler alone."""
        with huge_pages(MEBIBYTES // 2 * 2):
            self.make_snapshot(huge=True)
            with self.server() as server, self.machine() as machine:
                machine.restore(self.state, server)
                machine.ask("1", "marked")
                self.verify(machine)
                faults = server.total("faults")
                expect_between("faults", faults, 1, PAGES // 512)
        return f"{faults} faults"


def differing(one, other):
    """How many pages of two files differ."""
    with one.open("rb") as one, other.open("rb") as other:
        pairs = zip(iter(lambda: one.read(PAGE), b""), iter(lambda: other.read(PAGE), b""), strict=True)
        return sum(left != right for left, right in pairs)


def prepare(work):
    """The executable, the guest, and where they are to be."""
    program = executable()
    guest = build_guest(work)
    return program, guest, work / "machines/snapshot"


def tests(prepared, start):
    """Name and test, in their order, with a snapshot for them."""
    machines = Machines(*prepared, start)
    try:
        machines.make_snapshot()
    except Failed as failed:
        raise Unable(f"it does not run a guest here: {failed}") from failed
    return [
        ("two clones", machines.two_clones),
        ("given up unseen", machines.given_up_unseen),
        ("a clone's snapshot", machines.snapshot_of_a_clone),
        ("without the server", machines.without_the_server),
        ("the end of the server", machines.the_end_of_the_server),
        ("names of its examples", machines.by_its_examples_names),
        ("a store", machines.packed),
        ("a working set", machines.working_set),
        ("memory plugged in", machines.plugged_memory),
        ("huge pages", machines.of_huge_pages),
    ]
