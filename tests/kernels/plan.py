"""Which tests run in a guest: `tests.list` against what the test executables have."""
import dataclasses
import fnmatch
import json
import os
import pathlib
import subprocess

SETS = ("quick", "full", "never")


@dataclasses.dataclass
class Executable:
    """A test executable that cargo built."""

    name: str  # "cli/hazards": the package without "pagetide-", and the target
    path: pathlib.Path
    directory: pathlib.Path  # of the package: where cargo would run it


@dataclasses.dataclass
class Rule:
    """A line of the list: what holds for the tests it names."""

    set: str
    executable: str
    test: str
    options: dict[str, str]
    line: int


@dataclasses.dataclass
class Test:
    """One test, and how it is to be run in a guest."""

    name: str
    executable: Executable | None
    test: str
    limit: int
    variables: list[str]

    def line(self) -> str:
        """As the guest reads it."""
        path, directory = (self.executable.path, self.executable.directory) if self.executable else (self.test, "/")
        test = self.test if self.executable else "-"
        return "\t".join([self.name, str(self.limit), str(directory), str(path), test, " ".join(self.variables)])


def build(root: pathlib.Path, cargo: str) -> list[Executable]:
    """Has cargo build everything; the test executables of the workspace."""
    subprocess.run([cargo, "build", "--workspace", "--all-targets"], cwd=root, check=True)
    built = subprocess.run(
        [cargo, "test", "--workspace", "--no-run", "--message-format=json"], cwd=root, check=True, stdout=subprocess.PIPE, text=True
    )
    found = []
    for line in built.stdout.splitlines():
        message = json.loads(line)
        if message.get("reason") == "compiler-artifact" and message["profile"]["test"] and message["executable"]:
            directory = pathlib.Path(message["manifest_path"]).parent
            target = "lib" if "lib" in message["target"]["kind"] else message["target"]["name"]
            found.append(Executable(f"{directory.name}/{target}", pathlib.Path(message["executable"]), directory))
    return sorted(found, key=lambda executable: executable.name)


def tests_of(executable: Executable) -> list[str]:
    """The names of the tests in an executable."""
    said = subprocess.run(
        [executable.path, "--list", "--format=terse"], cwd=executable.directory, check=True, capture_output=True, text=True
    ).stdout
    return [line.removesuffix(": test") for line in said.splitlines() if line.endswith(": test")]


def read_rules(path: pathlib.Path) -> list[Rule]:
    """The list; a line is SET EXECUTABLE TEST [NAME=VALUE...]."""
    rules = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        if words[0] not in SETS or len(words) < 3 or not all("=" in word for word in words[3:]):
            raise SystemExit(f"{path}:{number}: not SET EXECUTABLE TEST [NAME=VALUE...]: {line}")
        rules.append(Rule(words[0], words[1], words[2], dict(word.split("=", 1) for word in words[3:]), number))
    return rules


def plan(executables: list[Executable], rules: list[Rule], suite: str, only: list[str], without: list[str], limit: int) -> list[Test]:
    """The tests of the suite, in the order of the list's lines. The last rule that names a test holds; one that none names is an error."""
    planned: list[tuple[int, Test]] = []
    forgotten, used = [], set()
    for executable in executables:
        for test in tests_of(executable):
            name = f"{executable.name}::{test}"
            matching = [
                rule for rule in rules if fnmatch.fnmatch(executable.name, rule.executable) and fnmatch.fnmatch(test, rule.test)
            ]
            used |= {rule.line for rule in matching}
            if not matching:
                forgotten.append(name)
                continue
            rule = matching[-1]
            wanted = matches(name, only) if only else rule.set in wanted_sets(suite)
            if wanted and not matches(name, without):
                options = dict(rule.options)
                seconds = int(options.pop("limit", limit))
                variables = [f"{key}={value}" for key, value in options.items()]
                planned.append((rule.line, Test(name, executable, test, seconds, variables)))
    for rule in rules:
        if rule.line not in used:
            forgotten.append(f"(line {rule.line} names no test: {rule.executable} {rule.test})")
    if forgotten:
        raise SystemExit("tests/kernels/tests.list does not fit the tests there are:\n" + "\n".join(forgotten))
    return [test for _, test in sorted(planned, key=lambda pair: pair[0])]


def matches(name: str, patterns: list[str]) -> bool:
    return any(fnmatch.fnmatch(name, f"*{pattern}*") for pattern in patterns)


def wanted_sets(suite: str) -> tuple[str, ...]:
    return ("quick",) if suite == "quick" else ("quick", "full")


def environment(target: pathlib.Path, scale: float) -> dict[str, str]:
    """What every test in a guest has in its environment."""
    return {
        "target": str(target),
        "PAGETIDE": str(target / "debug/pagetide"),
        "PAGETIDE_TESTS_PREBUILT": "1",
        "PAGETIDE_TESTS_TIME_SCALE": f"{scale:g}",
        "HAZARD_MIB": os.environ.get("HAZARD_MIB", "8"),
        "HAZARD_CHILD_SECONDS": os.environ.get("HAZARD_CHILD_SECONDS", "240"),
        "HAZARD_ROUNDS_PERCENT": os.environ.get("HAZARD_ROUNDS_PERCENT", "15"),
    }
