"""What is said of the results: a line a test while it goes, a table at the end, the output of what failed in files."""
import dataclasses
import pathlib
import re
import threading

from machine import Result
from say import say

TAIL_LINES = 25


@dataclasses.dataclass
class Account:
    """The results of one kernel."""

    wanted: str
    release: str = ""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    results: list[Result] = dataclasses.field(default_factory=list)
    reason: str = ""  # why it was not run
    complaints: list[str] = dataclasses.field(default_factory=list)

    def count(self, verdict: str) -> int:
        return sum(result.verdict == verdict for result in self.results)

    def failed(self) -> bool:
        return self.count("FAIL") > 0 or bool(self.complaints)


class Report:
    """Says results as they come, from several guests at once."""

    def __init__(self, logs: pathlib.Path):
        self.logs, self.lock = logs, threading.Lock()

    def each(self, wanted: str, result: Result) -> None:
        """A line for a test, and the end of its output if it failed; all of that in a file."""
        reason = next((line for line in result.output if "SKIPPED" in line), "") if result.verdict == "SKIP" else ""
        with self.lock:
            say(f"{wanted:>5} {result.verdict:4} {result.seconds:7.1f} s  {result.name}{'  ' + reason if reason else ''}")
            if result.verdict == "FAIL":
                say("\n".join(f"      | {line}" for line in result.output[:1] + result.output[1:][-TAIL_LINES:]))
        if result.verdict != "ok":
            folder = self.logs / wanted
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / (re.sub(r"[^\w.-]+", "_", result.name) + f".{result.verdict.lower()}.log")
            path.write_text("\n".join(result.output) + "\n")

    def table(self, accounts: list[Account]) -> None:
        """By kernel, and what failed and what was skipped by name."""
        say("")
        say(f"{'kernel':8} {'release':34} {'passed':>6} {'failed':>6} {'skipped':>7} {'seconds':>7} {'of CPU':>7}")
        for account in accounts:
            if account.reason:
                say(f"{account.wanted:8} SKIPPED: {account.reason.splitlines()[0]}")
                continue
            counts = " ".join(f"{account.count(verdict):>{width}}" for verdict, width in (("ok", 6), ("FAIL", 6), ("SKIP", 7)))
            say(f"{account.wanted:8} {account.release:34} {counts} {account.seconds:7.0f} {account.cpu_seconds:7.0f}")
        for account in accounts:
            for result in account.results:
                if result.verdict != "ok":
                    say(f"{account.wanted}: {result.verdict} {result.name}")
            for line in account.complaints[:5]:
                say(f"{account.wanted}: the kernel said: {line}")
        say(f"logs: {self.logs}")
        passed, failed, skipped = (sum(account.count(verdict) for account in accounts) for verdict in ("ok", "FAIL", "SKIP"))
        say(f"tests on other kernels: {passed} passed, {failed} failed, {skipped} skipped")
