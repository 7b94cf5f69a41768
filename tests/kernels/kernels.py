"""Gets kernels from Debian's packages: looked up at the time, downloaded, unpacked, never installed."""
import dataclasses
import pathlib
import re
import shutil
import subprocess
import urllib.parse

from say import Unavailable, say, warn

SUITES = ["bullseye", "bookworm", "bookworm-backports", "trixie", "trixie-backports"]
SECURITY_SUITES = ["bullseye-security", "bookworm-security", "trixie-security"]
KEYRING = pathlib.Path("/usr/share/keyrings/debian-archive-keyring.gpg")

# Signed packages hold the kernel up to 6.19; later ones split it, and `linux-image-` is a name that only depends on the others.
WHOLE = re.compile(r"^linux-image-(\d+\.\d+\.\d+\S*)-cloud-amd64$")
SPLIT = re.compile(r"^linux-binary-(\d+\.\d+\.\d+\S*)-cloud-amd64$")


@dataclasses.dataclass
class Kernel:
    """A kernel that was unpacked."""

    wanted: str  # "6.1"
    release: str  # what `uname -r` says
    version: str  # of the package
    image: pathlib.Path
    modules: pathlib.Path  # the folder named after the release


class Debian:
    """Debian's packages, by an apt state of our own: nothing of the machine's is changed."""

    def __init__(self, folder: pathlib.Path, mirror: str | None, security_mirror: str | None):
        self.folder = folder
        for tool in ("apt-get", "apt-cache", "dpkg-deb", "dpkg"):
            if not shutil.which(tool):
                raise Unavailable(f"there is no {tool} here: Debian's kernels cannot be fetched")
        self.lists = folder / "apt"
        for name in ("lists/partial", "cache/archives/partial"):
            (self.lists / name).mkdir(parents=True, exist_ok=True)
        (self.lists / "status").touch()
        self.packages: dict[str, list[str]] | None = None
        self.mirror, self.security_mirror = mirror, security_mirror

    def _options(self) -> list[str]:
        state = {
            "Dir::Etc::sourcelist": self.lists / "sources.list",
            "Dir::Etc::sourceparts": "-",
            "Dir::State::lists": self.lists / "lists",
            "Dir::State::status": self.lists / "status",
            "Dir::Cache": self.lists / "cache",
            "APT::Architecture": "amd64",
            "APT::Sandbox::User": "root",
            "Acquire::Languages": "none",
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
            "Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled": "false",
            "Acquire::Retries": "2",
        }
        return [word for name, value in state.items() for word in ("-o", f"{name}={value}")]

    def _write_sources(self) -> None:
        mirror, security = self.mirror, self.security_mirror
        if not (mirror and security):
            found = mirrors_of_this_machine()
            mirror, security = mirror or found.get("debian"), security or found.get("debian-security")
        if not mirror:
            raise Unavailable("apt here names no mirror of Debian; name one with --mirror URL (and --security-mirror URL)")
        signed = f"[signed-by={KEYRING}] " if KEYRING.exists() else ""
        lines = [f"deb {signed}{mirror} {suite} main" for suite in SUITES]
        if security:
            lines += [f"deb {signed}{security} {suite} main" for suite in SECURITY_SUITES]
        (self.lists / "sources.list").write_text("\n".join(lines) + "\n")

    def _look_up(self) -> dict[str, list[str]]:
        """All cloud kernels there are now, each with its versions."""
        if self.packages is not None:
            return self.packages
        self._write_sources()
        say("asking Debian which kernels there are")
        update = subprocess.run(["apt-get", *self._options(), "update"], capture_output=True, text=True)
        listed = subprocess.run(
            ["apt-cache", *self._options(), "madison", *self._names()], capture_output=True, text=True
        ).stdout
        found: dict[str, list[str]] = {}
        for line in listed.splitlines():
            fields = [field.strip() for field in line.split("|")]
            if len(fields) == 3:
                found.setdefault(fields[0], []).append(fields[1])
        if not found:
            raise Unavailable("Debian's packages cannot be listed:\n" + (update.stderr or update.stdout)[-1500:].strip())
        if update.returncode != 0:
            warn("not every suite could be read:\n" + update.stderr.strip())
        self.packages = found
        return found

    def _names(self) -> list[str]:
        names = subprocess.run(["apt-cache", *self._options(), "pkgnames", "linux-"], capture_output=True, text=True).stdout.split()
        return [name for name in names if WHOLE.match(name) or SPLIT.match(name)]

    def newest(self, wanted: str) -> tuple[str, str]:
        """The package and version of the newest kernel `wanted` (as in "6.1")."""
        best = None
        for name, versions in self._look_up().items():
            match = WHOLE.match(name) or SPLIT.match(name)
            if not match or not re.match(re.escape(wanted) + r"(\.|$|[^0-9])", match[1]) or "-unsigned" in name:
                continue
            for version in versions:
                key = (name, version)
                # Of the same version, the one that holds the kernel: later `linux-image-` packages are empty.
                if best is None or is_later(version, best[1]) or (version == best[1] and SPLIT.match(name)):
                    best = key
        if best is None:
            raise Unavailable(f"no suite of Debian has a cloud kernel {wanted} now")
        return best

    def get(self, wanted: str, refresh: bool = True) -> Kernel:
        """Downloads and unpacks it, unless that was done before."""
        package, version = self.newest(wanted)
        place = self.folder / "unpacked" / f"{package}_{version.replace(':', '_')}"
        if not (place / "whole").exists():
            say(f"{wanted}: downloading {package} {version}")
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            names = [package]
            if SPLIT.match(package):
                names.append(package.replace("linux-binary-", "linux-modules-"))
            for name in names:
                self._unpack(name, version, place)
            (place / "whole").touch()
        return kernel_in(place, wanted, version)

    def _unpack(self, name: str, version: str, place: pathlib.Path) -> None:
        folder = self.lists / "debs"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        got = subprocess.run(
            ["apt-get", *self._options(), "download", f"{name}={version}"], cwd=folder, capture_output=True, text=True
        )
        files = list(folder.glob("*.deb"))
        if got.returncode != 0 or not files:
            raise Unavailable(f"{name} {version} cannot be downloaded: {got.stderr.strip()[-500:]}")
        subprocess.run(["dpkg-deb", "-x", files[0], place], check=True)
        shutil.rmtree(folder)


def mirrors_of_this_machine() -> dict[str, str]:
    """The mirrors this machine's apt is set up with, by the last part of their path: `debian` and `debian-security`."""
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"], capture_output=True, text=True
    ).stdout
    found: dict[str, str] = {}
    for uri in listed.split():
        found.setdefault(pathlib.PurePosixPath(urllib.parse.urlparse(uri).path).name, uri)
    return found


def is_later(version: str, than: str) -> bool:
    """By Debian's rules of order."""
    return subprocess.run(["dpkg", "--compare-versions", version, "gt", than]).returncode == 0


def kernel_in(place: pathlib.Path, wanted: str, version: str) -> Kernel:
    """The kernel that a package was unpacked to."""
    images = [*place.glob("boot/vmlinuz-*"), *place.glob("usr/lib/modules/*/vmlinuz"), *place.glob("lib/modules/*/vmlinuz")]
    folders = [path for path in [*place.glob("lib/modules/*"), *place.glob("usr/lib/modules/*")] if path.is_dir()]
    if not images or not folders:
        raise Unavailable(f"{wanted}: {place.name} holds no kernel with its modules")
    return Kernel(wanted, folders[0].name, version, images[0], folders[0])
