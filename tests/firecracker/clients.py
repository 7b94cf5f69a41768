"""`pagetide serve firecracker` with a client made of Firecracker's own crates (src/)."""
import contextlib
import signal
import subprocess
import threading

from serving import PATIENCE, Server, expect, expect_between, huge_pages, until

# Pages of the image: 16 MiB.
PAGES = 4096
# What its balloon takes: page 5 of each 16.
TAKEN = len(range(5, PAGES, 16))
# Where a client stops and is killed, in their order: before its handshake is whole, and after.
UNHEARD, HEARD = ["connected", "half"], ["sent", "restored", "resumed", "taken"]
BROUGHT = ["fault_pages", "block_pages", "background_pages"]


class Client:
    """One process of the client; it is killed with the `with` block."""

    def __init__(self, executable, server, *options):
        self.process = subprocess.Popen(
            [executable, "guest", server.socket, str(PAGES), *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.communicate()

    def says(self, right):
        """Its next line, which it says when it has come so far; it is not waited for for ever."""
        patience = threading.Timer(PATIENCE, self.process.kill)
        patience.start()
        try:
            expect("a client says", self.process.stdout.readline().strip(), right)
        finally:
            patience.cancel()

    def is_right(self, taken=TAKEN):
        self.says(f"{PAGES} pages are right, of them {taken} given up")

    def is_killed(self):
        """By somebody else."""
        expect("the end of a client", self.process.wait(PATIENCE), -signal.SIGKILL)


class Clients:
    """The tests. `start(image, options, name)` starts a server over what `image` makes."""

    def __init__(self, executable, start):
        self.executable, self.start = executable, start

    def server(self, *options, name=None, pages=PAGES):
        def image(place):
            subprocess.run([self.executable, "image", place / "image", str(pages)], check=True)
            return "image"

        return self.start(image, options, name)

    def client(self, server, *options):
        return Client(self.executable, server, *options)

    def verify_one(self, server):
        with self.client(server) as client:
            client.is_right()

    def every_handshake(self):
        """One message, many parts, more than a page of regions, blanks before, two descriptors."""
        said = 0
        with self.server() as server:
            for regions in ["1", "2", "64"]:
                for handshake in ["whole", "split", "padded"]:
                    for memfd in [(), ("memfd=first",), ("memfd=last",)]:
                        options = [f"regions={regions}", f"handshake={handshake}", *memfd]
                        with self.client(server, *options) as client:
                            client.is_right()
                            server.reaches((said + 1) * TAKEN, "removed_pages")
                        said += 1
            server.forgets_all()
            expect("clients", server.status()["clients_ended"], said)
            expect("lost pages", server.total("lost_pages"), 0)
            expect("broken clients", server.status()["clients_broken"], 0)
        return f"{said} handshakes"

    def many(self, count):
        """So many clients at once: each page once for each, and again if it was given up."""
        with self.server() as server, contextlib.ExitStack() as stack:
            clients = [stack.enter_context(self.client(server)) for _ in range(count)]
            for client in clients:
                client.is_right()
            expect("clients", server.clients(), count)
            server.reaches(count * TAKEN, "removed_pages")
            brought = server.total(*BROUGHT)
            expect_between("pages brought", brought, count * PAGES, count * (PAGES + TAKEN))
            expect("lost pages", server.total("lost_pages"), 0)
        return f"{count} clients, {brought} pages, {count * TAKEN} given up"

    def all_comes(self):
        """All pages come, also where nobody touches any, and then nobody is needed."""
        with self.server("--prefetch-rate", "max") as server:
            with self.client(server, "stop=sent") as client:
                client.says("at sent")
                server.reaches(PAGES, "background_pages")
                expect("faults", server.total("faults"), 0)
            self.verify_one(server)
            with self.client(server) as client:
                client.is_right()
                server.stop()
                expect("the client", client.process.poll(), None)
        return f"{PAGES} pages without a fault"

    def deaths(self):
        """Killed at each step, while another is served."""
        killed = 0
        for options in [(), ("--prefetch-rate", "max")]:
            with self.server("--on-loss", "leave", *options) as server:
                for step in UNHEARD + HEARD:
                    with self.client(server, f"stop={step}") as client:
                        client.says(f"at {step}")
                        self.verify_one(server)
                    server.forgets_all()
                    killed += 1
                until("both", lambda: server.status()["refused"] == len(UNHEARD), server.log)
                heard = len(HEARD) + len(HEARD + UNHEARD)
                expect("clients", server.status()["clients_ended"], heard)
                self.verify_one(server)
        return f"{killed} killed"

    def the_end_of_the_server(self):
        """With `--on-loss kill` clients that miss pages end with the server; not those before."""
        with self.server() as server:
            with self.client(server, "stop=connected") as silent:
                silent.says("at connected")
                with self.client(server, "stop=restored") as client:
                    client.says("at restored")
                    server.stop()
                    client.is_killed()
                expect("whoever said nothing", silent.process.poll(), None)
        return "1 killed"

    def beyond_the_image(self):
        """Regions that are more than the image are refused, with a message."""
        with self.server("--on-loss", "leave", pages=PAGES // 2) as server:
            with self.client(server, "stop=sent") as client:
                client.says("at sent")
                until("the message", lambda: "beyond the image" in server.log(), server.log)
            expect("refused", server.status()["refused"], 1)
        return "1 refused"

    def by_its_examples_names(self):
        """By the names and arguments of Firecracker's example handlers."""
        for name, all_comes in [("uffd_on_demand_handler", False), ("uffd_fault_all_handler", True)]:
            with self.server(name=name) as server:
                self.verify_one(server)
                self.verify_one(server)
                background = server.total("background_pages")
                expect(f"{name}: brings what nobody asked for", background > 0, all_comes)
        return "two names"

    def of_huge_pages(self):
        """Memory of huge pages of 2 MiB: each is one fault."""
        count = PAGES // 512
        with huge_pages(count), self.server() as server:
            for regions in ["1", "2"]:
                with self.client(server, "huge=2M", f"regions={regions}") as client:
                    client.is_right(taken=0)
                server.forgets_all()
            server.reaches(2 * PAGES, "fault_pages")
        return f"{count} huge pages, twice"


def tests(executable, start):
    """Name and test, in their order."""
    clients = Clients(executable, start)
    many = [(f"{count} at once", lambda count=count: clients.many(count)) for count in [1, 2, 8, 64]]
    return [
        ("handshakes", clients.every_handshake),
        *many,
        ("all pages", clients.all_comes),
        ("deaths", clients.deaths),
        ("the end of the server", clients.the_end_of_the_server),
        ("beyond the image", clients.beyond_the_image),
        ("names of its examples", clients.by_its_examples_names),
        ("huge pages", clients.of_huge_pages),
    ]
