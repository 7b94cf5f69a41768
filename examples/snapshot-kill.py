"""Kills the example programs with SIGKILL and checks that they come back with all that was saved.

usage: snapshot-kill.py DIRECTORY-OF-EXAMPLES [ROUNDS]      (cargo build --release -p pagetide --examples builds them in target/release/examples)
"""
import pathlib
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time

examples = pathlib.Path(sys.argv[1])
rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 3


def start_server(directory, how):
    command = [examples / "kv-server", directory, "0", how]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = process.stdout.readline()
    if not line.startswith("ready on "):
        sys.exit(f"the server did not start: {line}{process.stderr.read()}")
    port = int(line.split(":")[1].split()[0])
    return process, port


def kv_server(how):
    """Writes key n = n * 7 for n = 0, 1, ...; the number saved says exactly which keys must be there after the kill."""
    with tempfile.TemporaryDirectory() as directory:
        written = 0
        for round_number in range(rounds):
            process, port = start_server(directory, how)
            with socket.create_connection(("127.0.0.1", port)) as connection:
                file = connection.makefile("rw")

                def ask(line):
                    file.write(line + "\n")
                    file.flush()
                    return file.readline().strip()

                saved = int(ask("SAVED"))
                began = time.monotonic()
                for key in [*random.sample(range(saved), min(saved, 3000)), *range(max(0, saved - 50), saved)]:
                    value = ask(f"GET {key}")
                    assert value == str(key * 7), f"{how}: key {key} is {value} after coming back with {saved} writes"
                assert ask(f"GET {saved}") == "NONE" or saved == 0, "a write from after the save is there"
                back = time.monotonic() - began
                written = saved
                end = time.monotonic() + 2.5 + random.random()
                while time.monotonic() < end:
                    batch = range(written, written + 500)
                    file.write("".join(f"SET {key} {key * 7}\n" for key in batch))
                    file.flush()
                    for _ in batch:
                        answer = file.readline().strip()
                        assert answer == "OK", answer
                    written += 500
                process.send_signal(signal.SIGKILL)
            pauses = [line.split("pause ")[1].split(",")[0] for line in process.stderr.read().splitlines() if "pause" in line]
            process.wait()
            print(f"kv-server, {how}, round {round_number + 1}: {saved} writes were there (checked in {back:.2f} s), {written} written, killed; pauses {' '.join(pauses)}")


def checkpoint():
    """The result is the same, whether it is killed or not."""
    steps = "30000000"
    with tempfile.TemporaryDirectory() as directory:
        whole = subprocess.run([examples / "checkpoint", directory, steps], capture_output=True, text=True, check=True).stdout
    with tempfile.TemporaryDirectory() as directory:
        kills, resumed = 0, 0
        while True:
            process = subprocess.Popen([examples / "checkpoint", directory, steps], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            try:
                out, err = process.communicate(timeout=0.8 + random.random() if kills < 2 * rounds else 600)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                kills += 1
                resumed += "resumed" in process.communicate()[1]
                continue
            resumed += "resumed" in err
            break
        assert out == whole, f"after {kills} kills the result is {out}, not {whole}"
        assert resumed > 0, "it never resumed"
        print(f"checkpoint: {kills} kills, resumed {resumed} times, the same result {out.strip()}")


kv_server("snapshot")
kv_server("fork")
checkpoint()
