"""A worker: the process in a side's Python that runs cases and answers.

The one place of this room that starts Pythons. A worker that nobody asks is stopped, so that
no thread of it spins while another side is measured.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence

from torchsmith.bench.launch import Launch

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
        found = json.loads(answer)
        assert isinstance(found, dict)
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
