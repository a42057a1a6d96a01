"""Small libraries of ours that programs of a build load first; compiled once, kept in the store.

`huge_pages.c` has compilers work on huge pages, and with a faster allocator where the machine has
one: they make the same in less time. `compiler_hook.c` has every compiler ask the governor, however
it is started, and each Python search `setuptools_hook` first, where setuptools is taught to compile
files side by side.

    python -m torchsmith.toolchain.preload huge_pages STORE
    python -m torchsmith.toolchain.preload compiler_hook STORE [CACHE]

print the variables as JSON: in a container only its own compiler can make the libraries.
"""

from __future__ import annotations

import ctypes.util
import hashlib
import json
import os
import platform
import shlex
import shutil
import sys
import tempfile
from pathlib import Path

from torchsmith.host.limits import HUGE_PAGES, read_huge_pages
from torchsmith.host.probe import ask, read_text
from torchsmith.owners import make_folder, who_else_writes
from torchsmith.toolchain.cache import keep_newest
from torchsmith.toolchain.governor import launcher

_HERE = Path(__file__).parent
PAGES_SOURCE = _HERE / "huge_pages.c"
HOOK_SOURCE = _HERE / "compiler_hook.c"
LOADED = "LD_PRELOAD"
# A program checked by gcc's AddressSanitizer refuses to run behind another preloaded library.
_SANITIZER = ("ASAN_OPTIONS", "verify_asan_link_order=0")
# Of what setuptools compiled, the files that each object was made of.
_MOST_NOTES = 500_000_000
# What is preloaded into compilers; named so that nothing else is touched by it.
PRELOAD = "TORCHSMITH_PRELOAD"
# Debian's package of the allocator.
ALLOCATOR = "libjemalloc2"
# The source is written for these.
_PAGE, _HUGE_PAGE = 4096, 2 << 20
# The first program is the driver; the compiler proper, which is what matters, it starts itself.
_EMPTY = ("-x", "c", "-S", "-o", os.devnull, os.devnull)
# The loader takes these for the end of a name.
_SEPARATORS = {" ", ":"}


def huge_pages(store: Path) -> dict[str, str]:
    """The variable that has compilers work on huge pages; none where they cannot."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or not _kernel_has_huge_pages():
        return {}
    library = preloaded(store, PAGES_SOURCE, compiler)
    if library is None:
        return {}
    allocator = ctypes.util.find_library("jemalloc")
    for names in ([library, allocator], [library]):
        preload = " ".join(str(name) for name in names if name)
        tried = ask([compiler, *_EMPTY], {**os.environ, LOADED: preload}, timeout=30)
        if tried and tried.code == 0 and not tried.err:
            return {PRELOAD: preload}
    return {}


def _kernel_has_huge_pages() -> bool:
    """Whether the kernel gives huge pages, of the size we know, to programs that ask."""
    size = (read_text(Path("/") / HUGE_PAGES / "hpage_pmd_size") or "").strip()
    return (
        read_huge_pages() in ("always", "madvise")
        and size == str(_HUGE_PAGE)
        and os.sysconf("SC_PAGE_SIZE") == _PAGE
    )


def compiler_hook(store: Path, cache: str = "") -> dict[str, str]:
    """The variables that have compilers ask; none where this machine cannot make the library.

    `cache` is a compiler cache's program.
    """
    library = next(
        filter(None, (preloaded(store, HOOK_SOURCE, each) for each in _compilers())), None
    )
    if library is None:
        return {}
    others = os.environ.get(LOADED, "").replace(":", " ").split()
    preload = " ".join(dict.fromkeys([str(library), *others]))
    tried = ask([sys.executable, "-I", "-S", "-c", ""], {**os.environ, LOADED: preload})
    if tried is None or tried.code or "cannot be preloaded" in tried.err:
        return {}
    notes = store / "objects"
    keep_newest(notes, _MOST_NOTES)
    name, setting = _SANITIZER
    return {
        LOADED: preload,
        name: ":".join(filter(None, [os.environ.get(name, ""), setting])),
        "TORCHSMITH_LAUNCH": "\n".join(launcher()),
        "TORCHSMITH_CACHE": cache,
        "TORCHSMITH_HOOK_PATH": str(_HERE / "setuptools_hook"),
        "TORCHSMITH_OBJECTS": str(notes),
    }


def _compilers() -> list[str]:
    """C compilers to make the library with; the caller's own may be for another machine."""
    own = shlex.split(os.environ.get("CC", ""))
    # It may be `ccache gcc`, or have options.
    names = ["cc", "gcc", "clang", *own[-1:], *own[:1]]
    return [found for name in dict.fromkeys(names) if (found := shutil.which(name))]


def preloaded(store: Path, source: Path, compiler: str) -> Path | None:
    """The library of a C file, compiled if it is not there; None if that cannot be."""
    folder = (store / "tools").absolute()
    # A library made on one distribution may want a newer C library than another has.
    system = (read_text(Path("/etc/os-release")) or "").encode()
    identity = platform.machine().encode() + system + source.read_bytes()
    name = f"{source.stem.replace('_', '-')}-{hashlib.sha256(identity).hexdigest()[:16]}.so"
    library = folder / name
    if not _SEPARATORS.isdisjoint(str(library)):
        return None
    try:
        make_folder(folder)
        # Every compiler runs what is in it: another user's is replaced, or left alone.
        if who_else_writes(folder):
            return None
        if library.is_file() and not who_else_writes(library):
            return library
        with tempfile.TemporaryDirectory(dir=folder) as place:
            made = Path(place) / library.name
            command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(made), str(source)]
            done = ask(command, timeout=60)
            if done is None or done.code:
                return None
            made.chmod(0o755)
            made.replace(library)
    except OSError:
        return None
    return library


if __name__ == "__main__":
    variables = {"huge_pages": huge_pages, "compiler_hook": compiler_hook}[sys.argv[1]]
    print(json.dumps(variables(Path(sys.argv[2]), *sys.argv[3:])))
