"""The compiler cache: ccache, where the machine has it, behind the memory governor's launcher."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchsmith.toolchain.build_paths import COLLECTION, IGNORED
from torchsmith.toolchain.nvcc_parts import COMPILED, FOUND, LOG, PARTS

_MOST = "20G"
# For what nvcc's steps made, which is kept apart.
_MOST_PARTS = 10 << 30
# Before a compiler's command where ccache has nothing.
ON_A_MISS = Path(__file__).parent / "compile_miss.sh"
# As ccache counts: found by the headers' contents, or by what the preprocessor made of them.
_HITS = ("direct_cache_hit", "preprocessed_cache_hit")


@dataclass(frozen=True, slots=True)
class CompilerCache:
    """The words before a compiler's command, and the variables it runs under."""

    command: tuple[str, ...] = ()
    environment: Mapping[str, str] | None = None
    log: Path | None = None
    parts_log: Path | None = None

    def used(self) -> tuple[int, int]:
        """How many compiles were there already, and how many were not, since it was asked for."""
        counts = _counts(self.log)
        return sum(counts[name] for name in _HITS), counts["cache_miss"]

    def parts_used(self) -> tuple[int, int]:
        """The same of nvcc's steps, in compiles that were not there as a whole."""
        counts = _counts(self.parts_log)
        return counts[FOUND], counts[COMPILED]


def _counts(log: Path | None) -> Counter[str]:
    try:
        text = log.read_text(encoding="utf-8", errors="replace") if log else ""
    except OSError:
        text = ""
    return Counter(text.splitlines())


def compiler_cache(
    store: Path, work: Path, *, shared: bool = False, program: str = "", base: Path | None = None
) -> CompilerCache:
    """ccache with its files in the store; nothing where there is no ccache.

    `program` is what it is called in a container, where it is known to be. `base` is the folder
    below which names are taken relative, if it is not the work folder.

    The caller's own settings, of a remote storage for a team say, stay in force. A store is
    `shared` where several hosts build into it.
    """
    program = program or shutil.which("ccache") or ""
    if not program:
        return CompilerCache()
    log = _new_log(work, "compiler-cache.log")
    settings = {
        "CCACHE_STATSLOG": str(log),
        "CCACHE_DIR": str(store / "compiler-cache"),
        "CCACHE_MAXSIZE": _MOST,
        # Names below it are taken relative to where the compiler runs: two folders share what is
        # equal.
        "CCACHE_BASEDIR": str(base or work),
        "CCACHE_NOHASHDIR": "1",
        # The compiler's own list of headers says what to look at: no run of the preprocessor.
        "CCACHE_DEPEND": "1",
        # A compiler that was updated in place is another one, whatever its date says.
        "CCACHE_COMPILERCHECK": "content",
    }
    if base is None:
        # When gcc looks for garbage depends on the machine, and how a folder is left out of
        # what it makes on the folder; what it makes depends on neither. These are ours; a build
        # that is not may mean them.
        settings["CCACHE_IGNOREOPTIONS"] = " ".join((f"{COLLECTION}*", *IGNORED))
    if shared:
        # What is not yet complete need not cross the network (ccache's manual, on NFS).
        settings["CCACHE_TEMPDIR"] = str(Path(tempfile.gettempdir()) / f"ccache-{os.getuid()}")
    # ccache takes a space for the end of a program's name.
    if without_a_cache() and " " not in str(ON_A_MISS):
        parts = store / "cuda-parts"
        keep_newest(parts, _MOST_PARTS)
        settings |= {
            "CCACHE_PREFIX": str(ON_A_MISS),
            # Headers that are read once for many files can change which of two functions of the
            # same worth is inlined: what is compiled so is kept apart.
            "CCACHE_NAMESPACE": "torchsmith-headers",
            f"{PARTS}_PYTHON": sys.executable,
            PARTS: str(parts),
            LOG: str(_new_log(work, "cuda-parts.log")),
        }
    chosen = {name: os.environ.get(name, value) for name, value in settings.items()}
    parts_log = Path(chosen[LOG]) if LOG in chosen else None
    return CompilerCache((program,), chosen, Path(chosen["CCACHE_STATSLOG"]), parts_log)


def without_a_cache() -> tuple[str, ...]:
    """The words before a compiler's command where there is no ccache to start them."""
    return (str(ON_A_MISS),) if os.access(ON_A_MISS, os.X_OK) else ()


def _new_log(work: Path, name: str) -> Path:
    log = work / ".torchsmith" / name
    # Where it cannot be written there is no count, and the build goes on.
    with contextlib.suppress(OSError):
        log.parent.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)
    return log


def keep_newest(folder: Path, most: int) -> None:
    """Remove the files of a folder that were not used for longest, until it has at most so much."""
    found: list[tuple[float, int, Path]] = []
    for file in folder.glob("*/*"):
        with contextlib.suppress(OSError):
            seen = file.stat()
            found.append((seen.st_mtime, seen.st_size, file))
    total = sum(size for _, size, _ in found)
    for _, size, file in sorted(found):
        if total <= most:
            return
        with contextlib.suppress(OSError):
            file.unlink()
        total -= size
