"""Answering the launchers: requests come in on a socket, the admission policy decides.

A compile waiting for memory sleeps, yet holds a job slot of the build tool. The server lends
that slot back through the jobserver, so that light files further on use the core, and takes
it out again when the compile starts. So the jobs that really run stay within the cores.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torchsmith.host.limits import control_groups, read_memory
from torchsmith.toolchain.admission import Admission, Room
from torchsmith.toolchain.compiles import Compile, killed_for_memory, read_compile
from torchsmith.toolchain.governor_events import (
    Event,
    FilesDone,
    Finished,
    GaveUp,
    Listener,
    Retried,
    Started,
    WaitingForMemory,
)
from torchsmith.toolchain.memory_book import MIB, Estimate, MemoryBook
from torchsmith.toolchain.processes import Process, end, find_child, own_group, process_tree


def _pressure_file() -> Path | None:
    groups = [folder / "memory.pressure" for folder in control_groups("memory")]
    places = [*groups, Path("/proc/pressure/memory")]
    return next((place for place in places if place.is_file()), None)


def _pressure(file: Path | None) -> float | None:
    """Percent of the last ten seconds in which something waited for memory."""
    if file is None:
        return None
    try:
        text = file.read_text()
    except OSError:
        return None
    found = re.search(r"^some avg10=([0-9.]+)", text, re.MULTILINE)
    return float(found[1]) if found else None


_PAGE = os.sysconf("SC_PAGE_SIZE")


def _resident(pid: int) -> int:
    """Bytes that a process holds now."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0


_TOKEN = b"+"


class Jobserver:
    """A GNU make jobserver on a named pipe: one pool of job slots for every tool of a build.

    Ninja 1.13 and make 4.4 take a token from the pipe before each job after their first and give
    it back when the job ends, so nested and neighbouring builds share the cores.
    https://www.gnu.org/software/make/manual/html_node/POSIX-Jobserver.html
    """

    def __init__(self, path: Path, cores: int) -> None:
        self.path = path
        self.cores = cores
        self._pipe = -1

    def __enter__(self) -> Jobserver:
        os.mkfifo(self.path, 0o600)
        # Open for both: a pipe with no writer at some moment would read as ended.
        self._pipe = os.open(self.path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self.put(self.cores - 1)
        return self

    def __exit__(self, *_: object) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        self.path.unlink(missing_ok=True)

    @property
    def makeflags(self) -> str:
        """What MAKEFLAGS has to be for a client to find the pool."""
        return f" -j{self.cores} --jobserver-auth=fifo:{self.path}"

    def put(self, count: int = 1) -> None:
        """Let clients start this many jobs more."""
        if count > 0:
            os.write(self._pipe, _TOKEN * count)

    def take(self) -> bool:
        """Take one job slot out of the pool, if one is free now."""
        try:
            return bool(os.read(self._pipe, 1))
        except BlockingIOError:
            return False


_ATTEMPTS = 3
_RAISE = 1.5
# Two compiles of one file differ by a few percent, by where memory happens to lie.
_SPARE = 1.1
_TICK = 0.25
_TICK_FOR_TOKEN = 0.05
_STALE = 0.05
# A hit in the compiler cache takes this much at most; a compiler takes more.
_CACHE_ANSWER = 64 * MIB
# Sleeping launchers cost about 5 MB each, so not all of a build may be one.
_MOST_LENT = 64
_GRACE = 5.0
# Seconds from the order to run until the launcher has named its process.
_NAMING_TIME = 1.0
_UNASKED = Estimate(0, "not asked yet")

Options = Callable[[Compile], Sequence[str]]


def no_options(_: Compile) -> Sequence[str]:
    """Nothing is added to a compiler's command."""
    return ()


@dataclass(slots=True)
class _Job:
    number: int
    link: socket.socket
    pid: int
    group: int
    buffer: bytearray = field(default_factory=bytearray)
    unit: Compile | None = None
    estimate: Estimate = _UNASKED
    attempt: int = 1
    seen_peak: int = 0
    announced: bool = False
    compiler: Process | None = None
    # Its launcher may run the compiler and has not named the process yet.
    unnamed: bool = False


class AdmissionServer:
    """Serves launchers on a Unix socket until stopped; `serve` runs in a thread of its own.

    `options` are added to a compiler's command; `spare_options` too, where memory is to spare.
    """

    def __init__(
        self,
        place: Path,
        admission: Admission,
        jobserver: Jobserver,
        book: MemoryBook,
        *,
        listener: Listener | None = None,
        roots: Sequence[str] = (),
        options: Options = no_options,
        spare_options: Options = no_options,
    ) -> None:
        self._admission = admission
        self._jobserver = jobserver
        self._book = book
        self._pressure_file = _pressure_file()
        self._listener = listener
        self._roots = roots
        self._options = options
        self._spare_options = spare_options
        self._jobs: dict[int, _Job] = {}
        self._count = 0
        self._lent = 0
        self._token_wanted = False
        self._read_at = 0.0
        self._room = Room()
        self._began = time.monotonic()
        self.listener_error: Exception | None = None
        self._selector = selectors.DefaultSelector()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.bind(str(place))
        self._socket.listen(1024)
        self._socket.setblocking(False)
        self._wake_end, self._wake_start = socket.socketpair()
        self._selector.register(self._socket, selectors.EVENT_READ, None)
        self._selector.register(self._wake_end, selectors.EVENT_READ, None)

    def stop(self) -> None:
        """Make `serve` return soon; called from another thread."""
        self._wake_start.send(b"x")

    def serve(self) -> None:
        """Answer until stopped, then end what still runs."""
        try:
            while self._turn():
                pass
            self._end_compiles()
        finally:
            for job in self._jobs.values():
                job.link.close()
            self._selector.close()
            for each in (self._socket, self._wake_end, self._wake_start):
                each.close()

    def _turn(self) -> bool:
        wait = _TICK_FOR_TOKEN if self._token_wanted else _TICK
        for key, _ in self._selector.select(wait if self._jobs else None):
            if key.fileobj is self._wake_end:
                return False
            if key.fileobj is self._socket:
                self._accept()
            else:
                self._receive(key.data)
        self._measure()
        self._admit()
        return True

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError):
            link, _ = self._socket.accept()
            link.setblocking(True)
            credentials = link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            self._count += 1
            pid = struct.unpack("3i", credentials)[0]
            job = _Job(self._count, link, pid, own_group(pid))
            self._jobs[job.number] = job
            self._selector.register(link, selectors.EVENT_READ, job)

    def _receive(self, job: _Job) -> None:
        try:
            chunk = job.link.recv(1 << 16)
        except ConnectionError:
            chunk = b""
        if not chunk:
            self._forget(job)
            return
        job.buffer += chunk
        while len(job.buffer) >= 4:
            end = 4 + int.from_bytes(job.buffer[:4], "big")
            if len(job.buffer) < end:
                return
            fields = bytes(job.buffer[4:end]).split(b"\0")
            del job.buffer[:end]
            if fields[0] == b"ask":
                self._take_request(job, [os.fsdecode(each) for each in fields[1:]])
            elif fields[0] == b"pid":
                # None if its launcher was killed meanwhile.
                job.compiler = find_child(job.pid, int(fields[1]))
                job.unnamed = job.compiler is None
            elif fields[0] == b"done":
                job.compiler, job.unnamed = None, False
                self._ended(job, fields[1:])
            elif fields[0] == b"files":
                done, total = int(fields[1]), int(fields[2])
                self._report(FilesDone(self._now(), os.fsdecode(fields[3]), done, total))

    def _forget(self, job: _Job) -> None:
        if job.compiler and job.compiler.alive:
            # Its launcher was killed: nobody waits for the object file any more.
            end(job.compiler.pid)
        elif job.unnamed and job.group:
            # Killed before its compiler was known: nothing else is in its group.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(job.group, signal.SIGTERM)
        self._admission.leave(job.number)
        self._jobs.pop(job.number, None)
        self._selector.unregister(job.link)
        job.link.close()

    def _take_request(self, job: _Job, words: list[str]) -> None:
        job.unit = read_compile(words[0], words[1:], self._roots)
        job.estimate = self._book.estimate(job.unit)
        spare = _SPARE if job.estimate.basis == "this file" else 1.0
        self._admission.arrive(job.number, int(job.estimate.bytes * spare))

    def _ended(self, job: _Job, fields: list[bytes]) -> None:
        status, kib = int(fields[0]), int(fields[1])
        cpu, wall = float(fields[2]), float(fields[3])
        peak = max(kib * 1024, job.seen_peak)
        unit = job.unit
        assert unit is not None
        self._admission.leave(job.number)
        if status and killed_for_memory(status, b"\0".join(fields[4:])):
            self._killed(job, unit, peak)
            return
        if status:
            _answer(job, b"end")
        elif not (unit.cached and peak < max(_CACHE_ANSWER, (self._book.known(unit) or 0) // 2)):
            self._book.record(unit, peak, cpu, wall)
        names = (unit.file, unit.output)
        self._report(Finished(self._now(), job.number, *names, status, peak, cpu, wall))

    def _killed(self, job: _Job, unit: Compile, peak: int) -> None:
        self._book.record_killed(unit, peak)
        # Half an object file must not be taken for one by a later build; /dev/null may stay.
        if unit.output and Path(unit.output).is_file():
            with contextlib.suppress(OSError):
                Path(unit.output).unlink()
        if job.attempt >= _ATTEMPTS:
            allowed = self._admission.budget
            failure = GaveUp(self._now(), job.number, unit.file, peak, job.attempt, allowed)
            _answer(job, b"fail", f"torchsmith: {failure.cause}\n{failure.cure}\n".encode())
            self._report(failure)
            return
        job.attempt += 1
        raised = int(max(peak, job.estimate.bytes) * _RAISE)
        job.estimate = Estimate(raised, "killed before")
        self._report(Retried(self._now(), job.number, unit.file, peak, job.attempt))
        self._admission.arrive(job.number, raised, alone=True)

    def _measure(self) -> None:
        now = time.monotonic()
        if now - self._read_at < _STALE:
            return
        for number in self._admission.running:
            job = self._jobs[number]
            resident = sum(map(_resident, process_tree(job.pid)))
            job.seen_peak = max(job.seen_peak, resident)
            self._admission.measure(number, resident)
        self._room = Room(read_memory()[1], _pressure(self._pressure_file))
        self._read_at = time.monotonic()

    def _admit(self) -> None:
        self._token_wanted = False
        while (number := self._admission.candidate(self._room)) is not None:
            if not self._slot():
                self._token_wanted = True
                break
            self._start(self._jobs[number])
        while self._lent > self._admission.waiting and self._jobserver.take():
            self._lent -= 1
        if self._token_wanted or len(self._admission.running) >= self._admission.cores:
            return
        for job in [job for job in self._jobs.values() if job.unit and not job.announced]:
            if job.number not in self._admission.running:
                self._announce(job, job.unit)
        if not self._admission.solitary:
            most = min(_MOST_LENT, self._admission.waiting)
            self._jobserver.put(most - self._lent)
            self._lent = max(self._lent, most)

    def _slot(self) -> bool:
        """Get a core for a compile that may start: its own slot, unless that is lent out."""
        if self._admission.waiting > self._lent or not self._admission.running:
            return True
        if self._jobserver.take():
            self._lent -= 1
            return True
        return False

    def _start(self, job: _Job) -> None:
        alone = self._admission.solitary
        self._admission.start(job.number)
        job.announced = True
        job.seen_peak = 0
        assert job.unit is not None
        # Reported first: the compile may end, and others start, before the listener returns.
        self._report(
            Started(
                self._now(),
                job.number,
                job.unit.file,
                job.estimate.bytes,
                job.estimate.basis,
                job.attempt,
                alone,
                len(self._admission.running),
                self._admission.reserved,
            )
        )
        # One that was killed gets nothing that could take more memory.
        spare = self._spare_options(job.unit) if job.attempt == 1 else ()
        options = (*self._options(job.unit), *spare)
        job.unnamed = True
        _answer(job, b"run", *(os.fsencode(word) for word in options))

    def _announce(self, job: _Job, unit: Compile | None) -> None:
        job.announced = True
        if unit is not None:
            estimate = job.estimate
            self._report(
                WaitingForMemory(self._now(), job.number, unit.file, estimate.bytes, estimate.basis)
            )

    def _report(self, event: Event) -> None:
        if self._listener is None:
            return
        try:
            self._listener(event)
        except Exception as error:
            # A broken display must not break the build; the error is raised at the end.
            self.listener_error = self.listener_error or error

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _end_compiles(self) -> None:
        """End the compiles still running: nothing may outlive the governor.

        Their launchers reap them and end; those that wait end as the socket closes.
        """
        # A launcher whose compiler is known is not signalled: it reports how the compiler ended.
        self._receive_until(
            lambda: not any(job.unnamed for job in self._jobs.values()), _NAMING_TIME
        )
        for kind in (signal.SIGTERM, signal.SIGKILL):
            for number in self._admission.running:
                job = self._jobs[number]
                end(job.compiler.pid if job.compiler else job.pid, kind)
            self._receive_until(lambda: not self._admission.running, _GRACE)

    def _receive_until(self, reached: Callable[[], bool], seconds: float) -> None:
        until = time.monotonic() + seconds
        while not reached() and time.monotonic() < until:
            for key, _ in self._selector.select(0.05):
                if isinstance(key.data, _Job):
                    self._receive(key.data)


def _answer(job: _Job, *fields: bytes) -> None:
    body = b"\0".join(fields)
    # A launcher that has gone is noticed when its side of the socket is read.
    with contextlib.suppress(OSError):
        job.link.sendall(len(body).to_bytes(4, "big") + body)
