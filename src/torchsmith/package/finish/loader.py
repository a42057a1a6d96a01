"""Finding a library on this machine, as its loader would."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from torchsmith.package.finish.outside import Find
from torchsmith.verify.binary import Library, read_library


def read(path: Path) -> Library | None:
    """Read a library of this machine; None if there is none."""
    try:
        with path.open("rb") as stream:
            return read_library(str(path), stream, path.stat().st_size)
    except OSError:
        return None


@cache
def folders() -> tuple[Path, ...]:
    """Where the loader looks: LD_LIBRARY_PATH, /etc/ld.so.conf, its own."""
    from auditwheel.lddtree import load_ld_paths
    from auditwheel.libc import Libc

    known = load_ld_paths(Libc.GLIBC)
    return tuple(dict.fromkeys(Path(name) for part in ("env", "conf") for name in known[part]))


def finder(machine: str) -> Find:
    """What finds libraries for one machine; those for others are passed over."""

    def find(name: str, first: Sequence[Path]) -> Path | None:
        for folder in (*first, *folders()):
            library = read(folder / name)
            if library is not None and library.dynamic and library.machine == machine:
                return folder / name
        return None

    return find
