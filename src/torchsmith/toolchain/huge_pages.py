"""Compilers that work on huge pages, and with a faster allocator where the machine has one.

`huge_pages.c` says how; it is compiled for the machine once, and kept in the store. What a compiler
makes is the same, and it makes it in less time.
"""

from __future__ import annotations

import ctypes.util
import json
import os
import shutil
import sys
from pathlib import Path

from torchsmith.host.limits import HUGE_PAGES, read_huge_pages
from torchsmith.host.probe import ask, read_text
from torchsmith.toolchain.preload import preloaded

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
    library = preloaded(store, _SOURCE, compiler)
    if library is None:
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


if __name__ == "__main__":
    print(json.dumps(huge_pages(Path(sys.argv[1]))))
