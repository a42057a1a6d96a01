"""Having every compiler of a build ask the governor, however it is started.

`compiler_hook.c` says how: a small library that all programs of the build load. It also has each
Python search `setuptools_hook` first, where setuptools is taught to compile files side by side.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from pathlib import Path

from torchsmith.host.probe import ask
from torchsmith.toolchain.cache import keep_newest
from torchsmith.toolchain.governor import launcher
from torchsmith.toolchain.preload import preloaded

_HERE = Path(__file__).parent
_SOURCE = _HERE / "compiler_hook.c"
LOADED = "LD_PRELOAD"
# A program checked by gcc's AddressSanitizer refuses to run behind another preloaded library.
_SANITIZER = ("ASAN_OPTIONS", "verify_asan_link_order=0")
# Of what setuptools compiled, the files that each object was made of.
_MOST_NOTES = 500_000_000


def compiler_hook(store: Path, cache: str = "") -> dict[str, str]:
    """The variables that have compilers ask; none where this machine cannot make the library.

    `cache` is a compiler cache's program.
    """
    library = next(filter(None, (preloaded(store, _SOURCE, each) for each in _compilers())), None)
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


if __name__ == "__main__":
    print(json.dumps(compiler_hook(Path(sys.argv[1]), *sys.argv[2:3])))
