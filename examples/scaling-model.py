#!/usr/bin/env python3
"""What many clients ask of a store's servers and their network. Every number is an input. The defaults of page_bytes, server_us and
round_trip_us were measured with scaling-inputs.py on one machine; the others are assumptions to be replaced by your own.

usage: scaling-model.py [--clients N,N,...] [--name=value ...]

Get your own inputs: scaling-inputs.py.
"""
import argparse, math

# name, default, what it is
INPUTS = [
    ("fetches", 2000.0, "pages read a second by one client while it works"),
    ("writebacks", 800.0, "pages written a second by one client while it works"),
    ("active", 0.1, "share of clients that page at any moment"),
    ("page_bytes", 2190.0, "bytes of a page on the wire after compression and encryption"),
    ("request_bytes", 130.0, "bytes of a request besides the page: key, protocol, and its share of packet headers"),
    ("stored_gib", 2.0, "GiB of pages a client keeps on the servers, uncompressed"),
    ("overhead_bytes", 120.0, "bytes a server keeps for a key besides its value"),
    ("server_us", 16.0, "us of one server core for a request, network included"),
    ("server_load", 0.5, "share of a core to plan with: above it the queue grows and so does p99"),
    ("server_gib", 64.0, "GiB of pages one server may hold"),
    ("server_gbit", 10.0, "Gbit/s of a server's network, of which half is planned with"),
    ("replicas", 1.0, "replicas of each server"),
    ("round_trip_us", 25.0, "us of a fetch with no one waiting before it"),
]

# What is divided by.
NEVER_ZERO = ("fetches", "server_load", "server_gib", "server_gbit")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", default="10,1000,100000")
    for name, default, what in INPUTS:
        parser.add_argument(f"--{name}", type=float, default=default, help=f"{what} ({default:g})")
    o = parser.parse_args()
    try:
        counts = [int(n) for n in o.clients.split(",")]
    except ValueError:
        parser.error(f"--clients: '{o.clients}' is not a list of whole numbers; write 10,1000")
    if min(counts) < 1:
        parser.error(f"--clients: {min(counts)} is too few; the least is 1")
    for name, _, _ in INPUTS:
        if not 0 <= getattr(o, name) < math.inf or (name in NEVER_ZERO and not getattr(o, name)):
            parser.error(f"--{name}: {getattr(o, name):g} cannot be; expected a number above 0" + ("" if name in NEVER_ZERO else ", or 0"))
    per_client = o.fetches + o.writebacks
    print(f"a working client: {per_client:.0f} requests/s, {per_client * (o.page_bytes + o.request_bytes) * 8 / 1e6:.0f} Mbit/s")
    print(f"{'clients':>8} {'requests/s':>12} {'Gbit/s':>8} {'TiB kept':>9} {'servers for: requests':>22} {'memory':>7} {'network':>8} {'all':>6} {'fetch us':>9}")
    for clients in counts:
        requests = clients * o.active * per_client
        copies = 1 + o.replicas * o.writebacks / per_client
        gbit = requests * (o.page_bytes + o.request_bytes) * 8 / 1e9 * copies
        pages = clients * o.stored_gib * 2**30 / 4096
        kept = pages * (o.page_bytes + o.overhead_bytes) * (1 + o.replicas)
        by_requests = math.ceil(requests * o.server_us / 1e6 / o.server_load)
        by_memory = math.ceil(kept / (1 + o.replicas) / (o.server_gib * 2**30))
        by_network = math.ceil(gbit / (o.server_gbit / 2))
        masters = max(by_requests, by_memory, by_network, 1)
        load = requests * o.server_us / 1e6 / masters
        # One queue, one server, random arrivals (M/M/1): what waiting adds.
        fetch = o.round_trip_us + o.server_us * load / (1 - load)
        total = masters * (1 + o.replicas)
        print(f"{clients:>8} {requests:>12.0f} {gbit:>8.2f} {kept / 2**40:>9.2f} {by_requests:>22} {by_memory:>7} {by_network:>8} {total:>6.0f} {fetch:>9.1f}")


main()
