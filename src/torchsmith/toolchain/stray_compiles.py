"""Compiles that bypass the launcher, found among the processes of a build.

A compiler that is linked statically loads no library of ours, and a build may give its compilers
another environment. Those run without asking the governor. They are looked for ten times a second,
so a very short one may go unseen.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from pathlib import Path, PurePath

from torchsmith.toolchain.governor import launcher
from torchsmith.toolchain.processes import children, find_process

_EVERY = 0.2
_DRIVER = re.compile(
    r"(.*-)?(cc|c\+\+|gcc|g\+\+|clang|clang\+\+|nvcc|gfortran|icx|icpx|amdclang|amdclang\+\+)"
    r"[-.0-9]*"
)
# What drivers start: if one of these runs, its driver has really begun to compile.
_PROPER = frozenset(["cc1", "cc1plus", "cc1obj", "lto1", "f951", "cicc", "ptxas", "cudafe++"])
_MAKES = frozenset(["-c", "-S", "-o", "-dc", "-dw", "-dlink", "--compile", "--device-c"])
_ASKS = frozenset(["-E", "-M", "-MM", "-###", "--preprocess", "--dryrun", "-dryrun"])
_Key = tuple[int, int]


class StrayCompiles:
    """Looks, in a thread of its own, at what a process and all under it run.

    `found` has the command of each compile that was seen past the launchers.
    """

    def __init__(self, root: int) -> None:
        self._root = root
        self._launcher = launcher()[-1].encode()
        self._begun: dict[_Key, str] = {}
        self._found: dict[_Key, str] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="stray compiles", daemon=True)

    def __enter__(self) -> StrayCompiles:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def found(self) -> list[str]:
        """The commands of the compiles that were seen."""
        return list(self._found.values())

    def _watch(self) -> None:
        while not self._over.wait(_EVERY):
            self.look()

    def look(self) -> None:
        """Look once."""
        begun: dict[_Key, str] = {}
        pending: list[tuple[int, _Key | None]] = [(self._root, None)]
        for pid, driver in pending:
            words = _words(pid)
            if self._launcher in words:
                continue
            name = PurePath(words[0].decode(errors="replace")).name if words else ""
            text = [word.decode(errors="replace") for word in words]
            process = find_process(pid) if name in _PROPER or _compiles(name, text) else None
            if process is not None:
                key = driver or (pid, process.born)
                begun.setdefault(key, " ".join(text))
                # One that has only just begun may be about to start again through a launcher.
                if key in self._begun or (name in _PROPER and "-E" not in text):
                    self._found.setdefault(key, begun[key])
                driver = key
            pending += [(child, driver) for child in children(pid)]
        self._begun = begun


def _words(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
    except OSError:
        return []


def _compiles(name: str, words: Sequence[str]) -> bool:
    makes = not _MAKES.isdisjoint(words) and _ASKS.isdisjoint(words)
    return makes and _DRIVER.fullmatch(name) is not None
