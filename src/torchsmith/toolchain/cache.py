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

from torchsmith.owners import who_else_writes
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
        """The compiles found in the cache and those not found, since this object was made."""
        counts = _counts(self.log)
        return sum(counts[name] for name in _HITS), counts["cache_miss"]

    def parts_used(self) -> tuple[int, int]:
        """The same for nvcc's steps, of compiles that were not found as a whole."""
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

    `program` is its name in a container, which is known to have it. Names are taken relative to
    `base`, or to the work folder. The caller's own settings, such as a remote storage for a team,
    stay in force. A store is `shared` if several hosts build into it.
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
        # When gcc collects garbage depends on the machine, and the names of folders depend on
        # the folder; what gcc makes depends on neither. In a build that is not ours such options
        # may be meant.
        settings["CCACHE_IGNOREOPTIONS"] = " ".join((f"{COLLECTION}*", *IGNORED))
    if shared and (own := _own_temporary()) is not None:
        # What is not yet complete need not cross the network (ccache's manual, on NFS).
        settings["CCACHE_TEMPDIR"] = str(own)
    # ccache takes a space for the end of a program's name.
    if without_a_cache() and " " not in str(ON_A_MISS):
        parts = store / "cuda-parts"
        keep_newest(parts, _MOST_PARTS)
        settings |= {
            "CCACHE_PREFIX": str(ON_A_MISS),
            # With precompiled headers gcc may inline another of two equally good functions: such
            # results are kept apart.
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


def _own_temporary() -> Path | None:
    """This user's folder for ccache on this machine; None where others could write to it."""
    folder = Path(tempfile.gettempdir()) / f"ccache-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        return None if who_else_writes(folder) else folder
    except OSError:
        return None


def _new_log(work: Path, name: str) -> Path:
    log = work / ".torchsmith" / name
    # If it cannot be written there is no count, and the build goes on.
    with contextlib.suppress(OSError):
        log.parent.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)
    return log


def keep_newest(folder: Path, most: int) -> None:
    """Remove the least recently used files of a folder until at most so many bytes remain."""
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
