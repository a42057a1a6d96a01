"""The compiler cache: ccache, where the machine has it, behind the memory governor's launcher."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchsmith.toolchain.accel import PREFIX
from torchsmith.toolchain.build_paths import IGNORED
from torchsmith.toolchain.collection import COLLECTION

_MOST = "20G"
NAMESPACE = "torchsmith-headers"
# As ccache counts: found by the headers' contents, or by what the preprocessor made of them.
_HITS = ("direct_cache_hit", "preprocessed_cache_hit")


@dataclass(frozen=True, slots=True)
class CompilerCache:
    """The words before a compiler's command, and the variables it runs under."""

    command: tuple[str, ...] = ()
    environment: Mapping[str, str] | None = None
    log: Path | None = None

    def used(self) -> tuple[int, int]:
        """How many compiles were there already, and how many were not, since it was asked for."""
        try:
            text = self.log.read_text(encoding="utf-8", errors="replace") if self.log else ""
        except OSError:
            text = ""
        counts = Counter(text.splitlines())
        return sum(counts[name] for name in _HITS), counts["cache_miss"]


def compiler_cache(store: Path, work: Path, *, shared: bool = False) -> CompilerCache:
    """ccache with its files in the store; nothing where there is no ccache.

    The caller's own settings, of a remote storage for a team say, stay in force. A store is
    `shared` where several hosts build into it.
    """
    program = shutil.which("ccache")
    if program is None:
        return CompilerCache()
    log = work / ".torchsmith" / "compiler-cache.log"
    # Where it cannot be written there is no count, and the build goes on.
    with contextlib.suppress(OSError):
        log.parent.mkdir(parents=True, exist_ok=True)
        log.unlink(missing_ok=True)
    settings = {
        "CCACHE_STATSLOG": str(log),
        "CCACHE_DIR": str(store / "compiler-cache"),
        "CCACHE_MAXSIZE": _MOST,
        # Names below the work folder are taken relative to it: two folders share what is equal.
        "CCACHE_BASEDIR": str(work),
        "CCACHE_NOHASHDIR": "1",
        # The compiler's own list of headers says what to look at: no run of the preprocessor.
        "CCACHE_DEPEND": "1",
        # A compiler that was updated in place is another one, whatever its date says.
        "CCACHE_COMPILERCHECK": "content",
        # When gcc looks for garbage depends on the machine, and how a folder is left out of
        # what it makes on the folder; what it makes depends on neither.
        "CCACHE_IGNOREOPTIONS": " ".join((f"{COLLECTION}*", *IGNORED)),
    }
    if " " not in str(PREFIX):
        # What it has not is compiled with headers ready. That can change which of two functions
        # of the same worth is inlined: it is kept apart from what is compiled otherwise.
        settings |= {"CCACHE_PREFIX": str(PREFIX), "CCACHE_NAMESPACE": NAMESPACE}
    if shared:
        # What is not yet complete need not cross the network (ccache's manual, on NFS).
        settings["CCACHE_TEMPDIR"] = str(Path(tempfile.gettempdir()) / f"ccache-{os.getuid()}")
    chosen = {name: os.environ.get(name, value) for name, value in settings.items()}
    return CompilerCache((program,), chosen, Path(chosen["CCACHE_STATSLOG"]))
