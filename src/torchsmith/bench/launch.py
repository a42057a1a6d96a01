"""The sides of a comparison and their workers: processes that run cases and answer.

A worker runs in a side's own Python, here or in an image. One that nobody asks is stopped, so that
no thread of it spins while another side is measured.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from torchsmith.bench.worker import script
from torchsmith.bench.worker.script import SETTINGS
from torchsmith.errors import HostError, UsageError
from torchsmith.inputs import check_file
from torchsmith.programs import call

if TYPE_CHECKING:
    from torchsmith.verify.target import Environment

_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._+-]*)=(.+)", re.DOTALL)
_HINT = "For example: torchsmith bench ours=ENVIRONMENT pip,env:OMP_NUM_THREADS=1"


@dataclass(frozen=True, slots=True)
class Side:
    """A torch installation with its settings.

    `target` is a path, `image:` and a name, or `pip`, which may be followed by `:` and a release.
    """

    name: str
    target: str
    environ: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)

    @property
    def image(self) -> str:
        """The image's name, if it is one."""
        return self.target.removeprefix("image:") if self.target.startswith("image:") else ""

    @property
    def published(self) -> str | None:
        """The release that pip is to bring; empty for that of the first side."""
        word, _, release = self.target.partition(":")
        return release if word == "pip" else None


def parse_side(text: str) -> Side:
    """Read one side; its name, if none is given, is made of what it is."""
    named = _NAMED.fullmatch(text)
    # A file may have such a name itself.
    if named and Path(text.partition(",")[0]).exists():
        named = None
    name, rest = (named[1], named[2]) if named else ("", text)
    # Commas divide only where a setting follows: a path may have one.
    target, *changes = re.split(r",(?=(?:env|set):)", rest)
    if not target:
        raise UsageError(f"{text!r} names no installation", _HINT)
    environ, settings = read_changes(changes)
    if not name:
        name = _short(target)
        name += "".join(f",{key}={value}" for key, value in {**environ, **settings}.items())
    return Side(name, target, environ, settings)


def read_changes(texts: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Read `env:NAME=VALUE` and `set:NAME=VALUE`: environment variables and torch's settings."""
    environ: dict[str, str] = {}
    settings: dict[str, str] = {}
    for text in texts:
        kind, _, pair = text.partition(":")
        key, equals, value = pair.partition("=")
        if kind not in ("env", "set") or not key or not equals:
            raise UsageError(
                f"{text!r} is not a setting", "Write env:NAME=VALUE, or set:NAME=VALUE for torch's."
            )
        if kind == "set" and key not in SETTINGS:
            raise UsageError(f"torch has no setting {key!r} here", f"Known: {', '.join(SETTINGS)}.")
        (environ if kind == "env" else settings)[key] = value
    return environ, settings


def _short(target: str) -> str:
    """The part of a target that tells it apart."""
    path = Path(target.removeprefix("image:"))
    if path.parent.name == "bin":
        path = path.parent.parent
    if path.suffix == ".whl":
        return "-".join(path.name.split("-")[:2])
    return path.name or str(path)


def parse_sides(texts: Sequence[str], common: Sequence[str] = ()) -> tuple[Side, ...]:
    """Read all sides; `common` are settings of each, unless it says otherwise itself."""
    environ, settings = read_changes(common)
    found = [
        Side(side.name, side.target, {**environ, **side.environ}, {**settings, **side.settings})
        for side in map(parse_side, texts)
    ]
    if len(found) < 2:
        raise UsageError(
            "a comparison needs two sides",
            "Name two installations, or yours and pip; or one twice with other settings "
            "(PATH,set:NAME=VALUE).",
        )
    names = [side.name for side in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(
            f"two sides are called {twice[0]!r}", "Give them names: a=PATH b=PATH,set:NAME=VALUE."
        )
    return tuple(found)


_WORKER = Path(script.__file__).parent
_NUMBERS = itertools.count(1)
_NO_PYTHON = 127
_FIND_PYTHON = (
    f"python=$(command -v python || command -v python3) || exit {_NO_PYTHON}; "
    'exec "$python" -I /torchsmith-bench/script.py'
)
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Launch:
    """A command line and its variables.

    `stop` are commands that end what it leaves running, `codes` what it means by ending with one.
    """

    argv: tuple[str, ...]
    environ: dict[str, str] = field(default_factory=dict)
    stop: tuple[tuple[str, ...], ...] = ()
    codes: Mapping[int, str] = field(default_factory=dict)


Launcher = Callable[[], Launch]


def launcher(
    side: Side, say: Say, *, python: str = "", gpu: bool = False, first: Side | None = None
) -> Launcher:
    """Return what starts workers of a side; refuses what cannot be one.

    The published torch is that of the first side's release and Python.
    """
    if side.image:
        return _image(side, gpu=gpu)
    interpreter = _environment(side, say, python, first).python
    argv = (str(interpreter), "-I", str(_WORKER / "script.py"))
    return lambda: Launch(argv, dict(side.environ))


def _environment(side: Side, say: Say, python: str, first: Side | None) -> Environment:
    from torchsmith.verify.target import read_environment

    if side.published is not None:
        return read_environment(_published(side, say, python, first))
    path = Path(side.target).expanduser()
    if not path.exists():
        raise UsageError(
            f"{side.target} does not exist",
            "Name an environment's folder, its python, a wheel, image:NAME, or pip.",
        )
    if path.suffix == ".whl":
        check_file(path, "Name a wheel.")
        path = _environment_of(path, python, say)
    return read_environment(path)


def _environment_of(path: Path, python: str, say: Say) -> Path:
    """An environment with the wheel and what it needs, made once for each content."""
    from torchsmith.sources.tree import file_hash

    name = f"{file_hash(path)[:24]}{'-' + python.replace('/', '_') if python else ''}"
    return _once(name, lambda folder: _install(path, python, folder, say))


def _published(side: Side, say: Say, python: str, first: Side | None) -> Path:
    """An environment with the torch that pip brings, made once for each release and Python."""
    from packaging.version import Version

    if first is None or first.published is not None or first.image:
        raise UsageError(
            f"{side.target} is held against an environment or a wheel",
            "Name yours first: torchsmith bench ours=ENVIRONMENT pip",
        )
    ours = _environment(first, say, python, None)
    torch = ours.installed().get("torch")
    release = side.published or (Version(torch.version).public if torch else "")
    if not release:
        raise UsageError(f"{first.target} has no torch", "Name a release: pip:2.6.0.")
    short = ".".join(ours.version.split(".")[:2])

    def make(folder: Path) -> None:
        say(f"pip brings torch {release} for Python {short}; it may be gigabytes")
        wheels = folder.with_name(f"{folder.name}.wheels")
        shutil.rmtree(wheels, ignore_errors=True)
        # A pip of its own: torchsmith's environment may have none.
        words = [str(wheels / "bin/python"), "-I", "-m", "pip", "download", "--quiet", "--no-deps"]
        words += ["--only-binary", ":all:", "--python-version", short]
        words += ["--dest", str(wheels / "torch"), f"torch=={release}"]
        for command in ([sys.executable, "-P", "-m", "venv", str(wheels)], words):
            done = call(command)
        found = next((wheels / "torch").glob("torch-*.whl"), None)
        if found is None:
            reason = (done.complaint or ["no reason given"])[-1]
            raise HostError(
                f"pip brings no torch {release} for Python {short}: {reason}",
                "Name another release, such as pip:2.6.0, or a wheel.",
            )
        _install(found, str(ours.python), folder, say)
        shutil.rmtree(wheels)

    return _once(f"pip-{release}-{short}{ours.flags}", make)


def _once(name: str, make: Callable[[Path], None]) -> Path:
    """The environment that `make` puts into a folder of the cache, made once."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(cache, "torchsmith", "bench", name)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Beside it: what a killed attempt left is removed with the folder.
    complete = folder.with_name(f"{folder.name}.complete")
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if complete.exists() and (folder / "env").is_dir():
            return folder / "env"
        complete.unlink(missing_ok=True)
        make(folder)
        complete.touch()
    return folder / "env"


def _install(path: Path, python: str, folder: Path, say: Say) -> None:
    from torchsmith.verify.target import Options, fresh_environment
    from torchsmith.verify.wheelfile import read_wheel

    wheel = read_wheel(path)
    if not wheel.installable or wheel.name != "torch":
        raise UsageError(
            f"{path.name} is not a torch that can be installed",
            "`torchsmith verify` of it says why.",
        )
    options = Options(python=python, folder=folder, keep=True)
    with fresh_environment([wheel], options, say) as (_, complaint):
        if complaint:
            raise HostError(
                f"{path.name} cannot be installed: {complaint.splitlines()[-1]}",
                "`pip install` of it into an environment of its own must work.",
            )


def _image(side: Side, *, gpu: bool) -> Launcher:
    """A worker in a container with no network, the worker's files mounted read-only."""
    from torchsmith.host.containers import READERS
    from torchsmith.host.probe import Programs, run

    programs = Programs(os.environ)
    engines = [engine for name in ("podman", "docker") if (engine := READERS[name](programs))]
    working = [engine for engine in engines if engine.running]
    if not working:
        raise HostError(
            f"no container tool here can run {side.target}",
            "Install podman, or start docker's daemon.",
        )
    look = ("image", "inspect", side.image)
    having = (item for item in working if run([item.path, *look], timeout=60) is not None)
    engine = next(having, None)
    if engine is None:
        names = " or ".join(item.name for item in working)
        raise UsageError(
            f"there is no image {side.image!r}", f"`{names} pull {side.image}` may bring it."
        )
    program = engine.path
    gpus = ["--gpus", "all"] if engine.name == "docker" else ["--device", "nvidia.com/gpu=all"]

    def make() -> Launch:
        name = f"torchsmith-bench-{os.getpid()}-{next(_NUMBERS)}"
        argv = [program, "run", "--rm", "--interactive", "--network", "none", "--name", name]
        argv += ["--volume", f"{_WORKER}:/torchsmith-bench:ro", "--shm-size", "1g"]
        argv += gpus if gpu else []
        argv += [f"--env={key}={value}" for key, value in side.environ.items()]
        argv += ["--entrypoint", "/bin/sh", side.image, "-c", _FIND_PYTHON]
        codes = {_NO_PYTHON: "there is no Python in the image"}
        return Launch(tuple(argv), stop=((program, "rm", "--force", name),), codes=codes)

    return make


_TAIL = 1500


class WorkerLost(Exception):  # noqa: N818 - the event, said as one
    """A worker ended, or did not answer in time; its last words are the message."""


class Worker:
    """A process that answers one request at a time."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch
        # A file, not a pipe: nobody has to read what torch prints while it works.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed by end()
        self._process = subprocess.Popen(
            list(launch.argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, **launch.environ},
            cwd=tempfile.gettempdir(),
            start_new_session=True,
        )
        self._received = b""

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def ask(self, request: Mapping[str, object], timeout: float) -> dict[str, object]:
        """Ask and wait for the answer."""
        self._signal(signal.SIGCONT)
        try:
            self._send(json.dumps(request).encode() + b"\n")
            answer = self._listen(time.monotonic() + timeout, timeout)
        finally:
            self._signal(signal.SIGSTOP)
        try:
            found = json.loads(answer)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise WorkerLost(f"its answer makes no sense: {answer[:80]!r}")
        return found

    def end(self) -> None:
        """End it with everything it started."""
        for stop in self._launch.stop:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(
                    stop, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=20
                )
        with contextlib.suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for stream in (self._process.stdin, self._process.stdout, self._log):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()
        self._process.wait()

    def _signal(self, number: int) -> None:
        # The client of a container can be stopped; what runs in the container would not be.
        if not self._launch.stop:
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, number)

    def _send(self, line: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except OSError:
            raise self._lost() from None

    def _listen(self, deadline: float, timeout: float) -> bytes:
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        while b"\n" not in self._received:
            left = deadline - time.monotonic()
            if left <= 0:
                self.end()
                raise WorkerLost(f"did not answer within {timeout:.0f} s")
            if select.select([pipe], [], [], left)[0]:
                piece = os.read(pipe, 1 << 20)
                if not piece:
                    raise self._lost()
                self._received += piece
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _lost(self) -> WorkerLost:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)
        code = self._process.poll()
        ended = "closed its answers" if code is None else f"ended with code {code}"
        if code is not None and code < 0:
            ended = f"ended by {signal.Signals(-code).name}"
            if -code == signal.SIGKILL:
                ended += " (often: out of memory)"
        self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, self._log.tell() - _TAIL))
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        self.end()
        words = lines[-1] if lines else self._launch.codes.get(code or 0)
        return WorkerLost(f"{ended}: {words}" if words else ended)


def pick_cpus(wanted: int) -> tuple[int, ...]:
    """Processors to run on: one of each core first, its other threads only if that is too few."""
    allowed = sorted(os.sched_getaffinity(0))
    first: list[int] = []
    second: list[int] = []
    for cpu in allowed:
        (second if set(_siblings(cpu)) & set(first) else first).append(cpu)
    count = wanted or len(first)
    return tuple(sorted((first + second)[:count]))


def _siblings(cpu: int) -> Sequence[int]:
    place = f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
    try:
        with open(place, encoding="ascii") as file:  # noqa: PTH123 - not a path anyone joins
            text = file.read().strip()
    except OSError:
        return (cpu,)
    found: list[int] = []
    for part in text.split(","):
        start, _, end = part.partition("-")
        found.extend(range(int(start), int(end or start) + 1))
    return found
