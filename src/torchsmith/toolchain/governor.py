"""Compiling within a memory budget: the variables a build gets, and what it learns.

    with Governor(book=MemoryBook(path, "torch"), roots=[source, build]) as governor:
        environment = {**os.environ, **governor.environment()}
        subprocess.run(["cmake", "-G", "Ninja", ...], env=environment)
        subprocess.run(["ninja"], env=environment)      # without -j, which ends the sharing

Every compile goes through a launcher that waits until there is memory for it. Light files use
every core, and heavy ones start only where their peak fits. A compile that the kernel kills all the
same runs again, alone.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

from torchsmith.host.limits import read_cores, read_memory
from torchsmith.host.probe import ask
from torchsmith.temporary import make_temporary, remove_temporary
from torchsmith.toolchain.admission import Admission
from torchsmith.toolchain.admission_server import (
    AdmissionServer,
    Jobserver,
    Options,
    no_options,
)
from torchsmith.toolchain.build_paths import ROOM_FOR_LATE_COLLECTION, collect_late
from torchsmith.toolchain.governor_events import Listener
from torchsmith.toolchain.memory_book import MIB, MemoryBook

_HERE = Path(__file__).parent
# Programs found before others of the same names.
SHIMS = _HERE / "shims"
# The path of a Unix socket has to fit into 108 bytes with the zero at its end.
_LONGEST = 107
_SOCKET = "governor"
# Where nothing tells how much memory there is.
_UNKNOWN = 4096 * MIB
_COMPILERS = tuple(f"CMAKE_{name}_COMPILER_LAUNCHER" for name in ("C", "CXX", "CUDA"))
_LINKERS = tuple(name.replace("COMPILER", "LINKER") for name in _COMPILERS)
# What these name, CMake writes into a build folder.
KEPT_BY_CMAKE = frozenset([*_COMPILERS, *_LINKERS, "TORCHSMITH_SHIMS"])


def launcher() -> tuple[str, ...]:
    """Return the words to put before a compiler's command.

    The same in every run: Ninja compiles a file again when its command changes. Where the
    governor is, is in the environment only.
    """
    return (sys.executable, "-I", "-S", str(_HERE / "launch.py"))


class Governor:
    """Keeps the compiles of a build within `budget` bytes and `cores`.

    Without a budget it is all the memory this process may use, less a margin. Either way, what
    is free at each moment counts as well, so other programs on the machine keep theirs.
    With `late_collection`, gcc is made quicker where there is memory to spare; `options` gives
    the words to add to each compiler's command.
    """

    def __init__(
        self,
        *,
        budget: int | None = None,
        cores: int | None = None,
        book: MemoryBook | None = None,
        roots: Sequence[Path] = (),
        listener: Listener | None = None,
        late_collection: bool = False,
        options: Options = no_options,
    ) -> None:
        total = read_memory()[0] or _UNKNOWN
        self.margin = min(512 * MIB, total // 20)
        self.budget = total - self.margin if budget is None else budget
        self.cores = read_cores() if cores is None else cores
        self._book = book or MemoryBook()
        self._roots = [str(root.absolute()) for root in roots]
        self._listener = listener
        plenty = self.budget >= ROOM_FOR_LATE_COLLECTION * self.cores
        self._options = options
        self._spare_options = collect_late if late_collection and plenty else no_options
        self._open = contextlib.ExitStack()
        self._server: AdmissionServer | None = None
        self._makeflags = ""
        self._place = Path()

    def __enter__(self) -> Governor:
        with contextlib.ExitStack() as stack:
            stack.enter_context(_signals_unwind())
            folder = _private_folder()
            stack.callback(remove_temporary, folder)
            jobserver = stack.enter_context(Jobserver(folder / "jobs", self.cores))
            self._makeflags = jobserver.makeflags
            self._place = folder / _SOCKET
            self._server = AdmissionServer(
                self._place,
                Admission(self.budget, self.cores, margin=self.margin),
                jobserver,
                self._book,
                listener=self._listener,
                roots=self._roots,
                options=self._options,
                spare_options=self._spare_options,
            )
            thread = threading.Thread(target=self._server.serve, name="memory governor")
            thread.daemon = True
            thread.start()
            stack.callback(thread.join)
            stack.callback(self._server.stop)
            self._open = stack.pop_all()
        return self

    def __exit__(self, _: object, error: BaseException | None, *more: object) -> None:
        self._open.close()
        if error is None and self._server is not None and self._server.listener_error:
            raise self._server.listener_error

    def environment(self, cache: Sequence[str] = ()) -> dict[str, str]:
        """Return the variables to add for cmake, ninja and make.

        `cache` is a compiler cache's command (`["ccache"]`), which goes behind the launcher.
        """
        words = ";".join((*launcher(), *cache))
        variables = {
            "TORCHSMITH_GOVERNOR": str(self._place),
            "MAKEFLAGS": self._makeflags,
            # CMake takes these over when it first configures a build folder.
            **dict.fromkeys(_COMPILERS, words),
            **dict.fromkeys(_LINKERS, ";".join(launcher())),
            # PyTorch would put a ccache it finds in the launcher's place, not behind it.
            "USE_CCACHE": "0",
        }
        if _make_is_old():
            variables["PATH"] = f"{SHIMS}{os.pathsep}{os.environ.get('PATH', '')}"
        return variables

    @property
    def folder(self) -> Path:
        """The folder of its socket and the pipe of job slots: containers must see it."""
        return self._place.parent


def _private_folder() -> Path:
    folder = make_temporary("jobs")
    if len(os.fsencode(folder / _SOCKET)) <= _LONGEST:
        return folder
    remove_temporary(folder)
    return make_temporary("jobs", Path("/tmp"))


def _make_is_old() -> bool:
    answer = ask(["make", "--version"])
    found = re.match(r"GNU Make (\d+)\.(\d+)", answer.out) if answer else None
    return found is not None and (int(found[1]), int(found[2])) < (4, 4)


@contextlib.contextmanager
def _signals_unwind() -> Iterator[None]:
    """Make a signal that would end this process at once leave it through its `with` blocks."""
    changed: list[signal.Signals] = []

    def unwind(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is threading.main_thread():
        for kind in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(kind) == signal.SIG_DFL:
                signal.signal(kind, unwind)
                changed.append(kind)
    try:
        yield
    finally:
        for kind in changed:
            signal.signal(kind, signal.SIG_DFL)
