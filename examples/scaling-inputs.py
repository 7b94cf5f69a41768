#!/usr/bin/env python3
"""Measures on this machine what scaling-model.py wants to know, with one client and one redis-server by loopback TCP, the pages
compressed and encrypted as they are when they leave a machine. Prints the model's command line.

usage: scaling-inputs.py [--pagetide PATH] [--resident SIZE] -- COMMAND...     (a program that needs more than SIZE)
"""
import argparse, json, os, pathlib, socket, subprocess, tempfile, time


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def info(port: int) -> dict:
    text = subprocess.run(["redis-cli", "-p", str(port), "INFO", "all"], capture_output=True, text=True, check=True).stdout
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def processor_seconds(pid: int) -> float:
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def calls(before: dict, after: dict, command: str) -> int:
    def count(found):
        words = dict(word.split("=") for word in found.get(f"cmdstat_{command}", "calls=0").split(","))
        return int(words["calls"])

    return count(after) - count(before)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pagetide", default="pagetide")
    parser.add_argument("--resident", default="64M")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        port = free_port()
        server = subprocess.Popen(
            ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", directory], stdout=subprocess.DEVNULL
        )
        try:
            while subprocess.run(["redis-cli", "-p", str(port), "PING"], capture_output=True).returncode != 0:
                time.sleep(0.05)
            measure(options, port, server.pid, pathlib.Path(directory) / "stats")
        finally:
            server.kill()
            server.wait()


def measure(options, port: int, server: int, stats: pathlib.Path):
    uri = f"valkey://127.0.0.1:{port}"
    bench = subprocess.run([options.pagetide, "store", "bench", "--json", uri], capture_output=True, text=True, check=True)
    round_trip = json.loads(bench.stdout)["get_us"]
    before, busy = info(port), processor_seconds(server)
    subprocess.run(
        [options.pagetide, "run", "--quiet", "--resident", options.resident, "--store", uri, "--stats", str(stats), "--"] + options.command,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    after, busy = info(port), processor_seconds(server) - busy
    run = json.loads(stats.read_text().splitlines()[0])
    gets, sets = calls(before, after, "get"), calls(before, after, "set")
    received = int(after["total_net_input_bytes"]) - int(before["total_net_input_bytes"])
    sent = int(after["total_net_output_bytes"]) - int(before["total_net_output_bytes"])
    # Pages of one repeated word are counted as 8 bytes, and are not sent. The encryption's tag is in what is counted.
    page = (run["writebacks"] * 4096 / run["compression_ratio"] - 8 * run["same_filled"]) / max(sets, 1)
    other = (received + sent) / max(gets + sets, 1) - page
    seconds = run["wall_seconds"]
    found = {
        "fetches": gets / seconds,
        "writebacks": sets / seconds,
        "page_bytes": page,
        "request_bytes": max(other, 0),
        "server_us": 1e6 * busy / max(gets + sets, 1),
        "round_trip_us": round_trip,
    }
    print(f"{seconds:.1f} s, {gets} pages read, {sets} written, the server busy {100 * busy / seconds:.0f} % of a core")
    print("scaling-model.py " + " ".join(f"--{name}={value:.1f}" for name, value in found.items()))


main()
