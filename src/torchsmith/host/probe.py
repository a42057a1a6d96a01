"""Finding and asking programs: the one place in this room that starts a process.

A machine can hold a program that is broken, hangs, asks questions, or never stops printing.
None of these may stop the reading of a host, so the answer of such a program is `None`.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, TypeVar

from torchsmith.programs import Answer

# No program asked for its version says more than this; one that does is not what it seems.
_MOST_OUTPUT = 1 << 20
# Between two looks at whether a program has ended while its output stays open.
_TICK = 0.05

_VERSION = re.compile(r"(?<![\d.])\d{1,6}(?:\.\d{1,6}){1,5}(?!\d)")

A = TypeVar("A")
B = TypeVar("B")


def ask(
    argv: Sequence[str], environ: Mapping[str, str] | None = None, timeout: float = 5.0
) -> Answer | None:
    """Run a program and return what it said; `None` if it cannot be run or does not end."""
    # In a session of its own it has no terminal to ask a question on, and can be ended
    # together with everything it started.
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**(os.environ if environ is None else environ), "LC_ALL": "C"},
            start_new_session=True,
        )
    except (OSError, ValueError):
        return None
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        deadline = time.monotonic() + timeout
        streams = _listen(process, (process.stdout, process.stderr), deadline)
        left = deadline - time.monotonic()
        if streams is None or not _ends(process, max(0.0, left)):
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal.SIGKILL)
            # nvidia-smi on a driver that hangs cannot be killed; it is left behind, not waited for.
            _ends(process, 1.0)
            return None
    out, err = (stream.decode("utf-8", "replace") for stream in streams)
    return Answer(process.returncode, out, err)


def _ends(process: subprocess.Popen[bytes], within: float) -> bool:
    try:
        process.wait(within)
    except subprocess.TimeoutExpired:
        return False
    return True


def _listen(
    process: subprocess.Popen[bytes], pipes: tuple[IO[bytes], IO[bytes]], deadline: float
) -> tuple[bytearray, bytearray] | None:
    """Collect both outputs until the program ends; `None` if it says too much."""
    output = (bytearray(), bytearray())
    with selectors.DefaultSelector() as selector:
        for pipe, buffer in zip(pipes, output, strict=True):
            selector.register(pipe, selectors.EVENT_READ, buffer)
        while selector.get_map():
            left = deadline - time.monotonic()
            if left <= 0:
                break
            # Looked at before the pipes: what an ended program said is in them already. They
            # alone do not tell, as a background process can hold them open.
            ended = process.poll() is not None
            ready = selector.select(0 if ended else min(left, _TICK))
            if ended and not ready:
                break
            for key, _ in ready:
                piece = os.read(key.fd, 65536)
                key.data.extend(piece)
                if not piece:
                    selector.unregister(key.fileobj)
                if len(key.data) > _MOST_OUTPUT:
                    return None
    return output


def run(
    argv: Sequence[str], environ: Mapping[str, str] | None = None, timeout: float = 5.0
) -> str | None:
    """Run a program and return its standard output; `None` if it failed in any way."""
    answer = ask(argv, environ, timeout)
    return answer.out if answer is not None and answer.code == 0 else None


def first_version(text: str | None) -> str | None:
    """Return the first dotted version in what a program printed."""
    found = _VERSION.search(text or "")
    return found.group() if found else None


def read_text(path: Path) -> str | None:
    """Return a file's text; `None` if it is missing, unreadable or not a file."""
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except (OSError, ValueError):
        return None


def together(function: Callable[[A], B], items: Iterable[A]) -> list[B]:
    """Apply a function that waits for programs to many things at once, keeping their order."""
    work = list(items)
    if len(work) < 2:
        return [function(item) for item in work]
    with ThreadPoolExecutor(max_workers=min(16, len(work))) as pool:
        return list(pool.map(function, work))


class Programs:
    """The programs on one search path, and the environment they are asked in."""

    def __init__(self, environ: Mapping[str, str], timeout: float = 5.0) -> None:
        self.environ = environ
        self._timeout = timeout
        # Relative entries mean another folder wherever one stands: not a property of a machine.
        entries = environ.get("PATH", "").split(os.pathsep)
        folders = [Path(entry) for entry in entries if Path(entry).is_absolute()]
        # One listing of each folder answers every later question about names.
        self._names: list[tuple[Path, frozenset[str]]] = []
        for folder in dict.fromkeys(folders):
            with contextlib.suppress(OSError, ValueError):
                self._names.append((folder, frozenset(path.name for path in folder.iterdir())))

    def find(self, *names: str) -> Path | None:
        """Return the first executable of the first of these names that has one."""
        for name in names:
            for path in self.all(name):
                return path
        return None

    def all(self, name: str) -> list[Path]:
        """Return every executable of this name, in the order of the search path."""
        found = (folder / name for folder, names in self._names if name in names)
        return [path for path in found if is_executable(path)]

    def matching(self, pattern: re.Pattern[str]) -> list[Path]:
        """Return every executable whose whole name matches; shorter names first in a folder."""
        return [
            path
            for folder, names in self._names
            for name in sorted(filter(pattern.fullmatch, names), key=lambda n: (len(n), n))
            if is_executable(path := folder / name)
        ]

    def ask(self, *argv: str | Path) -> Answer | None:
        """Run a program; see `ask`."""
        return ask([str(arg) for arg in argv], self.environ, self._timeout)

    def run(self, *argv: str | Path) -> str | None:
        """Run a program for its standard output; see `run`."""
        return run([str(arg) for arg in argv], self.environ, self._timeout)


def is_executable(path: Path) -> bool:
    """Whether this is a file that may be run, under a name that can be written down."""
    try:
        os.path.realpath(path).encode()  # not a str the file system made of stray bytes
        return path.is_file() and os.access(path, os.X_OK)
    except (OSError, ValueError):
        return False
