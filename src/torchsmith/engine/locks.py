"""Locks between processes, and between hosts that share a folder.

A lock is a `flock` on a file, so it dies with its holder. The file is removed when the lock is
released. A process that waited then holds a lock on a file that nobody else can find: so it checks
the name again once it holds the lock.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import fcntl
import json
import os
import platform
import stat
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from torchsmith.engine.disk import write_whole
from torchsmith.foreign import MalformedError, decode
from torchsmith.owners import make_folder


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a lock: 0 if unknown; `host` only where it may be another."""

    pid: int
    host: str = ""

    def __str__(self) -> str:
        return f"pid {self.pid} on {self.host}" if self.host else f"pid {self.pid}"


class Lock:
    """One lock, held by at most one holder at a time, threads of one process included."""

    poll = 0.1

    def __init__(self, path: Path) -> None:
        self.path = path
        self._descriptor: int | None = None

    @property
    def descriptor(self) -> int:
        """The open file; a child that inherits it keeps the lock held."""
        if self._descriptor is None:
            raise RuntimeError(f"{self.path} is not held")
        return self._descriptor

    def try_acquire(self) -> bool:
        """Take the lock if nobody has it."""
        make_folder(self.path.parent)
        while True:
            descriptor = self._open()
            if descriptor is None:
                continue
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return False
            except BaseException:
                os.close(descriptor)
                raise
            if self._is_current(descriptor):
                # The number only informs those who wait: it may be missing on a full disk.
                with contextlib.suppress(OSError):
                    os.ftruncate(descriptor, 0)
                    os.pwrite(descriptor, str(os.getpid()).encode(), 0)
                self._descriptor = descriptor
                return True
            os.close(descriptor)

    def _open(self) -> int | None:
        """Open the lock's file; None if it was a link or a second name, which is removed."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            descriptor = os.open(self.path, flags, 0o644)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENXIO):
                raise
            self.path.unlink(missing_ok=True)
            return None
        status = os.fstat(descriptor)
        # No name at all: its holder released it just now, which is checked later.
        if stat.S_ISREG(status.st_mode) and status.st_nlink < 2:
            return descriptor
        os.close(descriptor)
        self.path.unlink(missing_ok=True)
        return None

    def acquire(
        self,
        on_wait: Callable[[Holder], None] | None = None,
        stopped: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Wait for the lock; `on_wait` gets its holder, once. False if `stopped`."""
        reported = False
        while not self.try_acquire():
            if stopped():
                return False
            if not reported and on_wait is not None:
                on_wait(self.holder())
                reported = True
            time.sleep(self.poll)
        return True

    def holder(self) -> Holder:
        """Its holder."""
        try:
            return Holder(int(self.path.read_text() or 0))
        except (OSError, ValueError):
            return Holder(0)

    def release(self) -> None:
        """Release it; the file is removed first, while nobody else can hold it."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                self.path.unlink()
            os.close(self._descriptor)
            self._descriptor = None

    def _is_current(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(os.fstat(descriptor), self.path.stat())
        except FileNotFoundError:
            return False

    def __enter__(self) -> Lock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


BEAT_S = 5.0
# A holder is dead if its count stands still for so many looks, a beat or more apart. Looks, not
# seconds: while the file server is away nobody counts, and nobody looks either.
_LOOKS = 4
_POLL_S = 0.5


def boot() -> str:
    """The boot of this kernel: containers of one host share it, two hosts do not."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"{platform.node()}-{uuid.getnode():x}"


@dataclass(frozen=True, slots=True)
class _Claim:
    """The content of a lease: which process holds it, and the file of its pulse."""

    host: str
    pid: int
    boot: str
    pulse: str
    number: str


class Pulse:
    """A file in which this process counts to show that it lives, and the leases that rest on it."""

    def __init__(self, folder: Path, beat: float = BEAT_S) -> None:
        self.folder = folder
        self.beat = beat
        self.boot = boot()
        self.name = f"{platform.node()}-{os.getpid()}-{uuid.uuid4().hex[:12]}"
        self.on_lost: Callable[[Path], None] = lambda _: None
        self._leases: dict[Path, Lease] = {}
        self._turn = threading.Lock()
        self._stop = threading.Event()
        self._count = 0
        self._thread: threading.Thread | None = None

    @property
    def path(self) -> Path:
        """The file that is counted up in."""
        return self.folder / self.name

    def hold(self, lease: Lease) -> None:
        """Watch a lease from now on."""
        with self._turn:
            self._leases[lease.path] = lease

    def let_go(self, lease: Lease) -> None:
        """Watch a lease no longer."""
        with self._turn:
            self._leases.pop(lease.path, None)

    def start(self) -> None:
        """Start to count, before the first lease names us."""
        with self._turn:
            if self._thread is not None:
                return
            self.folder.mkdir(parents=True, exist_ok=True)
            self._write()
            atexit.register(self.stop)
            self._thread = threading.Thread(target=self._go, name="pulse", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Stop counting, and remove the file."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        with contextlib.suppress(OSError):
            self.path.unlink()

    def _write(self) -> None:
        # Opened each time: only closing a file shows its content to other hosts. Always the same
        # number of bytes, which a full disk still takes.
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(descriptor, f"{self._count:012}".encode(), 0)
        finally:
            os.close(descriptor)

    def _go(self) -> None:
        while not self._stop.wait(self.beat):
            self._count += 1
            with contextlib.suppress(OSError):
                self._write()
            with self._turn:
                leases = list(self._leases.values())
            for lease in leases:
                if lease.is_lost():
                    self.let_go(lease)
                    self.on_lost(lease.path)


class Lease(Lock):
    """A lock that holds between hosts: a lease beside the `flock`.

    `flock` holds between hosts on some filesystems (NFSv4, CephFS) and not on others (BeeGFS,
    Lustre without its option, NFS with `local_lock`), and no program can tell which. So a holder
    also leaves a file that names it, made by link(2), which is atomic everywhere, and shows that
    it lives by counting up in a file of its own. A holder of another host whose count stands
    still has died: its lock is taken over. Counts are compared, never clocks, since hosts
    disagree on the time.

    A holder that was only cut off finds another's name in its lease when it is back, and stops. If
    both worked for a moment, the store is unharmed: results appear whole, under the same key.
    """

    poll = _POLL_S

    def __init__(self, path: Path, pulse: Pulse) -> None:
        super().__init__(path)
        self._pulse = pulse
        self._file = path.with_name(f"{path.name}.lease")
        self._mine: _Claim | None = None
        self._looked: tuple[_Claim, str, float, int] | None = None

    def try_acquire(self) -> bool:
        """Take the lock if nobody on any host holds it."""
        last, chain = self._chain()
        if last is not None and self._lives(last):
            return False
        if not super().try_acquire():
            return False
        try:
            taken = self._claim(chain[-1])
        except BaseException:
            super().release()
            raise
        if not taken:
            super().release()
        return taken

    def holder(self) -> Holder:
        """Its holder, on any host."""
        last, _ = self._chain()
        return super().holder() if last is None else Holder(last.pid, last.host)

    def release(self) -> None:
        """Release both; a lease that another host took over stays with that host."""
        if self._mine is not None:
            self._pulse.let_go(self)
            last, chain = self._chain()
            if last == self._mine:
                # The first file goes first: the others then lead to nobody.
                for path in chain:
                    path.unlink(missing_ok=True)
            self._mine = None
        super().release()

    def is_lost(self) -> bool:
        """Whether another host took us for dead."""
        return self._mine is not None and self._chain()[0] != self._mine

    def _chain(self) -> tuple[_Claim | None, list[Path]]:
        """The holder of the lease, and the files that lead to it; the last is for the next holder.

        A dead holder's file stays. Its successor makes a file named after it, which only one
        process can do.
        """
        path, last = self._file, None
        chain = [path]
        while (claim := _read(path)) is not None:
            last = claim
            path = self._file.with_name(f"{self._file.name}.{claim.number}")
            chain.append(path)
        return last, chain

    def _lives(self, claim: _Claim) -> bool:
        """Whether a holder on another host still counts; on this host the `flock` decides."""
        if claim.boot == self._pulse.boot:
            return False
        try:
            count = (self._pulse.folder / claim.pulse).read_text()
        except (FileNotFoundError, IsADirectoryError):
            # It has ended, and removed its file.
            return False
        except OSError:
            return True
        now = time.monotonic()
        if self._looked is None or self._looked[:2] != (claim, count):
            self._looked = (claim, count, now, 0)
            return True
        _, _, before, looks = self._looked
        if now - before >= self._pulse.beat:
            looks += 1
            self._looked = (claim, count, now, looks)
        return looks < _LOOKS

    def _claim(self, path: Path) -> bool:
        """Write our claim into a file, unless another process does so first."""
        pulse = self._pulse
        pulse.start()
        mine = _Claim(platform.node(), os.getpid(), pulse.boot, pulse.name, uuid.uuid4().hex)
        draft = self._file.with_name(f".{self._file.name}.{mine.number}")
        write_whole(draft, json.dumps(asdict(mine)).encode())
        try:
            with contextlib.suppress(FileExistsError):
                os.link(draft, path)
            # NFS may have made the link and lost the answer: the count of names tells.
            if draft.stat().st_nlink != 2:
                return False
        finally:
            draft.unlink(missing_ok=True)
        self._mine = mine
        pulse.hold(self)
        return True


def _read(path: Path) -> _Claim | None:
    try:
        return decode(path.read_bytes(), _Claim)
    except OSError:
        return None
    except MalformedError:
        # Claims appear whole, so a disk has damaged this one: it is nobody's.
        return _Claim("", 0, "", "", "unreadable")
