"""What a step on this machine sees: the system's folders, and what the plan and its own text name.

The step's root is a new, empty folder. Into it come, for reading, the system's folders, the Python
that runs torchsmith, and every file or folder that the step is told of: by a variable, in its
commands, on PATH, or as a program that a link there leads to. To write to it gets the work folder,
a temporary folder of its own, which is also its /tmp, and what all steps of a run share: the
compiler cache, the memory governor's socket. Nothing else is there: no home, no other work folder
of the store, no socket of a daemon. In the work folder it may change what it makes itself; what it
needs of other steps it can read, and their other results are hidden.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import site
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

import torchsmith
from torchsmith.engine import hermetic
from torchsmith.engine.shell import OWN_HOME
from torchsmith.engine.store import find_outputs
from torchsmith.plan.models import Step
from torchsmith.temporary import temporary_folder
from torchsmith.toolchain.nvcc_parts import PARTS

Mount = tuple[str, str, str]

# Folders at the root that hold programs, by convention or by the FHS.
_SYSTEM = (
    *("bin", "sbin", "lib", "lib32", "lib64", "libx32", "usr", "etc", "opt"),
    *("nix", "gnu", "cvmfs", "apps", "software", "sw"),
)
# What Debian's and Red Hat's systems say of their packages; SUSE's certificates.
_PACKAGES = ("/var/lib/dpkg", "/var/lib/rpm", "/var/lib/ca-certificates")
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts")
# NVIDIA's on servers, boards and WSL, AMD's.
_GPUS = ("nvidia*", "nvhost*", "nvmap", "nvgpu*", "nvsciipc", "dxg", "dri", "kfd")
# Only root may read some files there; it builds as everybody does.
_CLOSED = ("/etc", "/etc/ssh", "/etc/ssl")
# Variables that name places of the caller, not of the build.
_OF_THE_CALLER = frozenset(
    [
        *("HOME", "OLDPWD", "PROJECT", "PWD", "SHELL", "TMPDIR", "XDG_CACHE_HOME", "XDG_DATA_HOME"),
        *("TORCHSMITH_DOWNLOADS", "TORCHSMITH_SECRETS", "TORCHSMITH_STORE"),
    ]
)
# Settings and caches of pip and uv, in the caller's home: for steps that have a network. They are
# shown in the step's own.
_SETTINGS = (".config/pip", ".pip", ".config/uv", ".netrc")
_PIP_FILES = ("/etc/pip.conf", "~/.config/pip/pip.conf", "~/.pip/pip.conf")
_CACHES = ("pip", "uv")
# Compiler caches, on this machine or a team's.
_COMPILER_CACHES = (
    *("CCACHE_DIR", "CCACHE_TEMPDIR", "CCACHE_REMOTE_STORAGE", "CCACHE_SECONDARY_STORAGE"),
    PARTS,
)
_PATH = re.compile(r"(?<![\w.~$}/-])/[^\s:;,'\"=<>|&()$`*?\\]+")
_PROGRAMS = ("bin", "sbin")
_BESIDE = ("lib", "lib64", "libexec", "include")


@dataclass(frozen=True, slots=True)
class Reach:
    """What steps share beside the work folder, and what is hidden but for what they share."""

    readable: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Degree:
    """What this machine can close to a step."""

    network: bool
    files: bool


@functools.cache
def degree() -> Degree:
    """What this machine lets us close; tried once."""
    files = [*_system(), *_kernel()]
    if _can({"network": False, "files": files, "resolver": str(_resolver())}):
        return Degree(network=True, files=True)
    return Degree(_can({"network": False}), _can({"network": True, "files": files}))


def _can(view: Mapping[str, object]) -> bool:
    with temporary_folder("view") as folder:
        (folder / "view.json").write_bytes(msgspec.json.encode(view))
        words = command(folder / "view.json", ["true"])
        done = subprocess.run(words, cwd="/", check=False, capture_output=True)
        return done.returncode == 0


def command(view: Path, words: Sequence[str]) -> list[str]:
    """The command line that runs a command with no more than a view."""
    return [sys.executable, "-I", "-S", hermetic.__file__, str(view), *words]


def write_view(
    step: Step,
    steps: Mapping[str, Step],
    work: Path,
    temporary: Path,
    env: Mapping[str, str],
    reach: Reach,
    allowed: Degree,
) -> bytes:
    """A step's view, for hermetic.py; `env` is its environment."""
    files: list[Mount] | None = None
    if allowed.files:
        files = _Files(step, steps, work, temporary, env, reach).all()
    closed = step.offline and allowed.network
    view = {"network": not closed, "files": files, "resolver": str(_resolver())}
    return msgspec.json.format(msgspec.json.encode(view), indent=1)


def _resolver() -> Path:
    return Path("/etc/resolv.conf").resolve()


def _system() -> Iterator[Mount]:
    for name in _SYSTEM:
        path = Path("/", name)
        if path.is_symlink():
            yield "link", str(path.readlink()), str(path)
        elif path.is_dir():
            yield "ro", str(path), str(path)
    for name in _PACKAGES:
        if Path(name).is_dir():
            yield "ro", name, name
    for name in _CLOSED:
        for path in Path(name).iterdir() if Path(name).is_dir() else ():
            status = path.lstat()
            if not path.is_symlink() and not status.st_mode & 0o004:
                yield ("empty", "", str(path)) if path.is_dir() else ("ro", "/dev/null", str(path))


def _kernel() -> Iterator[Mount]:
    yield "rw", "/proc", "/proc"
    # Root could change the machine's settings there.
    yield "ro", "/proc/sys", "/proc/sys"
    yield "ro", "/sys", "/sys"
    devices = [Path("/dev", name) for name in _DEVICES]
    for path in (*devices, *(path for name in _GPUS for path in Path("/dev").glob(name))):
        if path.exists():
            yield "ro", str(path), str(path)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        yield "link", f"/proc/self/fd/{number}", f"/dev/{name}"
    yield "link", "/proc/self/fd", "/dev/fd"
    yield "scratch", "", "/dev/shm"


@dataclass
class _Files:
    """Gathers what one step sees."""

    step: Step
    steps: Mapping[str, Step]
    work: Path
    temporary: Path
    env: Mapping[str, str]
    reach: Reach
    shown: dict[str, Mount] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.home = Path(os.path.expanduser("~")).resolve()  # noqa: PTH111 - there may be none
        self.hidden = (self.home, *(path.resolve() for path in self.reach.hidden))

    def all(self) -> list[Mount]:
        """Everything, each after what it lies in."""
        for path in self.hidden:
            # The homes of some daemons' users are the system's own folders.
            if _in_system(path) and path.parts[1] not in ("bin", "sbin", "usr", "etc"):
                self.put("empty", path)
        for path in self._named():
            self.read(path)
        for name in _COMPILER_CACHES:
            for path in _paths(self.env.get(name, "")):
                if self._may_show(path):
                    self.put("rw", path)
        for path in self.reach.readable:
            self.put("ro", path)
        for path in self.reach.writable:
            self.put("rw", path)
        if not self.step.offline:
            self._let_install()
        for name in ("credentials", "credentials.toml"):
            path = Path(self.env.get("CARGO_HOME", "/"), name)
            if os.path.exists(path):  # noqa: PTH110
                self.shown[str(path)] = ("ro", "/dev/null", str(path))
        self.put("rw", self.work)
        for name in ("lock", "placed", "scripts", "started", "tools"):
            self.put("ro", self.work / ".torchsmith" / name)
        self._guard_results()
        for place in (Path("/tmp"), Path("/var/tmp"), self.temporary):
            self.shown[str(place)] = ("rw", str(self.temporary), str(place))
        below = sorted(self.shown.values(), key=lambda mount: mount[2].count("/"))
        return [*_system(), *_kernel(), *below]

    def put(self, how: str, path: Path) -> None:
        """Show a path under its own name, and under the name it really has."""
        if not os.path.exists(path):  # noqa: PTH110 - no error where looking is forbidden
            return
        real = str(path.resolve())
        for name in dict.fromkeys((real, str(path))):
            if name == real or not _in_system(Path(name)):
                self.shown[name] = (how, "" if how == "empty" else real, name)

    def read(self, path: Path) -> None:
        """Show a file or folder that the step is told of, with what it needs to work."""
        for root in self._behind(path):
            real = root.resolve()
            inside = self.work in (real, *real.parents)
            veiled = any(place in real.parents for place in self.hidden)
            if not inside and (veiled or not _in_system(real)):
                self.put("ro", root)

    def _let_install(self) -> None:
        """Show what pip needs to reach its indexes, and its cache."""
        self.put("ro", _resolver())
        own = self.work / OWN_HOME
        cache = self.env.get("XDG_CACHE_HOME")
        pairs = [("ro", self.home / name, own / name) for name in _SETTINGS]
        for name in _CACHES:
            place = Path(cache, name) if cache else self.home / ".cache" / name
            pairs.append(("rw", place, place if cache else own / ".cache" / name))
        for how, source, target in pairs:
            if os.path.exists(source):  # noqa: PTH110
                self.shown[str(target)] = (how, str(source.resolve()), str(target))
        for name in (*_PIP_FILES, f"{sys.prefix}/pip.conf", self.env.get("PIP_CONFIG_FILE", "")):
            with contextlib.suppress(OSError, UnicodeError):
                for path in _paths(Path(name).expanduser().read_text(encoding="utf-8")):
                    self.read(path)

    def _named(self) -> Iterator[Path]:
        """What the step is told of."""
        user = site.getusersitepackages() if site.ENABLE_USER_SITE else ""
        for name in (sys.prefix, sys.base_prefix, user, str(Path(torchsmith.__file__).parent)):
            if name:
                yield Path(name)
        # An environment leads to the packages of another, and to its Python.
        made = [self.steps[need] for need in self.step.needs if need in self.steps]
        texts = [
            text
            for item in (self.step, *(item for item in made if item.kind == "environment"))
            for text in (*item.commands, item.task.text if item.task else "", *item.reads)
        ]
        values = [value for name, value in self.env.items() if name not in _OF_THE_CALLER]
        for text in (*values, *texts):
            yield from _paths(text)
            if text.startswith("/"):
                yield Path(text)
        yield from (Path(self.env.get("PROJECT", "/"), name) for name in self.step.reads)
        for folder in self.env.get("PATH", "").split(":"):
            place = Path(folder)
            if place.is_absolute() and not _in_system(place.resolve()):
                with contextlib.suppress(OSError):
                    yield from [item for item in place.iterdir() if item.is_symlink()]

    def _behind(self, path: Path) -> Iterator[Path]:
        """A path, what its links lead to, and of programs what they were installed with."""
        for _ in range(20):
            if not os.path.lexists(path):
                return
            folder = path if os.path.isdir(path) else path.parent  # noqa: PTH112
            whole = folder.name in _PROGRAMS and folder.parent
            if whole and self._may_show(whole):
                yield whole
            elif whole:
                yield from (folder, *(whole / name for name in _BESIDE))
            elif self._may_show(path):
                yield path
            if not path.is_symlink():
                return
            path = Path(os.path.normpath(path.parent / path.readlink()))

    def _may_show(self, path: Path) -> bool:
        """Not a folder that also holds what nobody named."""
        real = path.resolve()
        data = (self.home / ".local", self.home / ".cache", self.home / ".config")
        return (
            len(real.parts) > 2
            and real not in data
            and not any(real in (place, *place.parents) for place in (self.work, *self.hidden))
        )

    def _guard_results(self) -> None:
        """Make other steps' results read-only, and hide those that the step does not need."""
        needed, pending = {self.step.id}, list(self.step.needs)
        while pending:
            if (need := pending.pop()) not in needed and need in self.steps:
                needed.add(need)
                pending += self.steps[need].needs
        own = [self.work / re.split(r"[*?\[]", output)[0] for output in self.step.outputs]
        if self.step.folder != ".":
            own.append(self.work / self.step.folder)
        read: list[Path] = []
        for other in sorted(self.steps.values(), key=lambda item: item.id not in needed):
            # A compilation goes on in the tree that was configured.
            if other.id == self.step.id or (other.kind == "configure" and other.id in needed):
                continue
            for name in find_outputs(other, self.work, must=False):
                path = self.work / name
                if self.work not in path.parents or _overlap(path, own):
                    continue
                if other.id in needed:
                    read.append(path)
                    self.put("ro", path)
                elif path.is_dir() and not path.is_symlink() and not _overlap(path, read):
                    self.put("empty", path)


def _paths(text: str) -> Iterator[Path]:
    """The absolute paths in a text, addresses of files among them."""
    words = _PATH.findall(text.replace("file://", " ").replace("file:", " "))
    yield from map(Path, words)


def _in_system(path: Path) -> bool:
    return len(path.parts) > 1 and path.parts[1] in _SYSTEM


def _overlap(path: Path, others: Iterable[Path]) -> bool:
    return any(path == one or path in one.parents or one in path.parents for one in others)
