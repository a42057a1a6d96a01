"""Compilers that work on huge pages, and with a faster allocator where the machine has one.

`huge_pages.c` says how; it is compiled for the machine once, and kept in the store. What a compiler
makes is the same, and it makes it in less time.
"""

from __future__ import annotations

import ctypes.util
import hashlib
import json
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path

from torchsmith.host.limits import HUGE_PAGES, read_huge_pages
from torchsmith.host.probe import ask, read_text
from torchsmith.owners import make_folder, who_else_writes

# What is preloaded into compilers; named so that nothing else is touched by it.
PRELOAD = "TORCHSMITH_PRELOAD"
# Debian's package of the allocator.
ALLOCATOR = "libjemalloc2"
_SOURCE = Path(__file__).with_name("huge_pages.c")
# The source is written for these.
_PAGE, _HUGE_PAGE = 4096, 2 << 20
# The first program is the driver; the compiler proper, which is what matters, it starts itself.
_EMPTY = ("-x", "c", "-S", "-o", os.devnull, os.devnull)


def huge_pages(store: Path) -> dict[str, str]:
    """The variable that has compilers work on huge pages; none where they cannot."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not _given():
        return {}
    library = _library((store / "tools").absolute(), compiler)
    # The loader takes a space or a colon for the end of a name.
    if library is None or not {" ", ":"}.isdisjoint(str(library)):
        return {}
    allocator = ctypes.util.find_library("jemalloc")
    for names in ([library, allocator], [library]):
        preload = " ".join(str(name) for name in names if name)
        tried = ask([compiler, *_EMPTY], {**os.environ, "LD_PRELOAD": preload}, timeout=30)
        if tried and tried.code == 0 and not tried.err:
            return {PRELOAD: preload}
    return {}


def _given() -> bool:
    """Whether the kernel gives huge pages, of the size we know, to who asks."""
    size = (read_text(Path("/") / HUGE_PAGES / "hpage_pmd_size") or "").strip()
    return (
        read_huge_pages() in ("always", "madvise")
        and size == str(_HUGE_PAGE)
        and os.sysconf("SC_PAGE_SIZE") == _PAGE
    )


def _library(folder: Path, compiler: str) -> Path | None:
    """The library, compiled if it is not there; None if that cannot be."""
    # A library made on one distribution may want a newer C library than another has.
    system = (read_text(Path("/etc/os-release")) or "").encode()
    told = platform.machine().encode() + system + _SOURCE.read_bytes()
    library = folder / f"huge-pages-{hashlib.sha256(told).hexdigest()[:16]}.so"
    try:
        make_folder(folder)
        # Every compiler runs what is in it: another user's is replaced, or left alone.
        if who_else_writes(folder):
            return None
        if library.is_file() and not who_else_writes(library):
            return library
        with tempfile.TemporaryDirectory(dir=folder) as place:
            made = Path(place) / library.name
            command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(made), str(_SOURCE)]
            done = ask(command, timeout=60)
            if done is None or done.code:
                return None
            made.chmod(0o755)
            made.replace(library)
    except OSError:
        return None
    return library


if __name__ == "__main__":
    print(json.dumps(huge_pages(Path(sys.argv[1]))))
