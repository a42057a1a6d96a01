"""Starting programs: for an answer, followed line by line, or left to themselves."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from torchsmith.errors import HostError, TookTooLongError

OnLine = Callable[[str], None]
# How a program that builds is ended: by a signal, or through what it runs in containers.
Ending = Callable[["subprocess.Popen[str]"], None]

# Seconds that a program gets to clean up.
PATIENCE = 50.0
_TICK = 0.1
# Lines kept of a program that is followed: enough for the end of any build to be explained.
_KEPT_LINES = 400
# The same of one whose lines are progress without number.
_KEPT_BYTES = 64 << 10
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Answer:
    """How a program ended and what it printed; of one that is followed, `out` has the end."""

    code: int
    out: str
    err: str = ""

    @property
    def complaint(self) -> list[str]:
        """Its complaint: the lines of its error output, or else of its output."""
        text = self.err.strip() or self.out.strip()
        return [line.rstrip() for line in text.splitlines() if line.strip()]

    @property
    def last(self) -> str:
        """The last line of its error output, where programs say what went wrong."""
        return self.err.strip().rpartition("\n")[2].strip()


def call(
    argv: Sequence[str | Path],
    *,
    env: Mapping[str, str] | None = None,
    stdin: bytes = b"",
    timeout: float | None = None,
) -> Answer:
    """Run a program to its end; `stdin` is its standard input."""
    words = list(map(str, argv))
    try:
        done = subprocess.run(
            words, env=env, input=stdin, capture_output=True, check=False, timeout=timeout
        )
    except OSError as error:
        raise _not_started(words[0], error) from None
    except subprocess.TimeoutExpired:
        raise TookTooLongError(f"{words[0]} did not end within {timeout:g} s") from None
    return _answer(done.returncode, done.stdout, done.stderr)


def apart(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    package: str = "",
    cwd: Path | None = None,
    stdin: bytes = b"",
    timeout: float | None = None,
    on_line: OnLine | None = None,
) -> Answer:
    """Run a program without a terminal to ask on; if it is stopped, all it started ends with it.

    `package` has it in Debian. `on_line` gets the lines of its error output as they come; what it
    prints elsewhere is then of no use.
    """
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE if stdin else subprocess.DEVNULL,
            stdout=subprocess.DEVNULL if on_line else subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=dict(env),
            start_new_session=True,
        )
    except OSError as error:
        raise _not_started(argv[0], error, package) from None
    try:
        if on_line is None:
            out, err = process.communicate(stdin or None, timeout)
        else:
            out, err = b"", _followed(process, on_line)
            process.wait()
    except BaseException as reason:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if isinstance(reason, subprocess.TimeoutExpired):
            raise TookTooLongError(f"{argv[0]} did not end within {timeout:g} s") from None
        raise
    return _answer(process.returncode, out, err)


def _followed(process: subprocess.Popen[bytes], on_line: OnLine) -> bytes:
    """Pass on lines as they come; a progress line ends in a carriage return."""
    assert process.stderr is not None
    kept, rest = b"", b""
    with process.stderr as stream:
        while piece := os.read(stream.fileno(), 65536):
            kept = (kept + piece)[-_KEPT_BYTES:]
            *lines, rest = (rest + piece).replace(b"\r", b"\n").split(b"\n")
            for line in filter(None, lines):
                on_line(line.decode("utf-8", "replace"))
    return kept


def _answer(code: int, out: bytes, err: bytes) -> Answer:
    return Answer(code, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))


def detach(
    argv: Sequence[str], log: IO[bytes], *, env: Mapping[str, str], folder: str | None = None
) -> subprocess.Popen[bytes]:
    """Start a program that outlives us; what it prints goes to a log."""
    return subprocess.Popen(
        argv,
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


def follow(
    argv: Sequence[str], on_line: OnLine, ending: Ending, env: Mapping[str, str] | None = None
) -> Answer:
    """Run a program to its end and pass its lines on.

    It has a group of its own: Ctrl-C reaches it through `ending` only. If we are killed, the kernel
    ends it.
    """
    try:
        process = subprocess.Popen(
            list(argv),
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            process_group=0,
            preexec_fn=_die_with_us,
        )
    except OSError as error:
        raise _not_started(argv[0], error) from None
    kept: deque[str] = deque(maxlen=_KEPT_LINES)
    assert process.stdout is not None
    with process:
        try:
            for line in process.stdout:
                kept.append(line.rstrip("\n"))
                on_line(kept[-1])
            return Answer(process.wait(), "\n".join(kept))
        except BaseException:
            _end(process, ending)
            raise


def _not_started(program: str, error: OSError, package: str = "") -> HostError:
    if package and isinstance(error, FileNotFoundError):
        return HostError(f"{program} is needed and not installed", f"apt-get install {package}")
    return HostError(
        f"{program} cannot be started: {error.strerror}", "Is it installed, and executable?"
    )


def _die_with_us() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _end(process: subprocess.Popen[str], ending: Ending) -> None:
    """End a program so that it can put things away; where it does not, insist."""
    assert process.stdout is not None
    # Its last words have to go somewhere, or it waits for a reader.
    drain = threading.Thread(target=process.stdout.read, daemon=True)
    drain.start()
    try:
        ending(process)
    finally:
        if process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        drain.join(_TICK)


def interrupt(process: subprocess.Popen[str]) -> None:
    """Tell a program to stop, as Ctrl-C does, and wait."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(PATIENCE)


def end_what_runs_inside(process: subprocess.Popen[str]) -> None:
    """Kill what a program runs in containers, so that it fails and removes them.

    A build of podman 4.3 that is interrupted leaves its containers behind.
    """
    until = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < until:
        for pid in _inside(process.pid):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_TICK)


def _inside(top: int) -> Iterator[int]:
    """The processes below one that are in another PID namespace than it."""
    outside = _namespace(top)
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                # The name in parentheses may hold spaces; the parent is the second field after it.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents.setdefault(int(fields[1]), []).append(int(entry.name))
    pending = list(parents.get(top, ()))
    while pending:
        pid = pending.pop()
        pending += parents.get(pid, ())
        if (its := _namespace(pid)) and its != outside:
            yield pid


def _namespace(pid: int) -> str:
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""
