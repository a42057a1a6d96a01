"""The system's libraries that an artifact is linked with, and the packages they belong to.

dpkg is asked here and nowhere else; on a system without it, libraries have no owner.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct

from torchsmith.host.probe import run
from torchsmith.verify.loader import library_places

# It reads the lists of all packages: on a busy machine that takes a while.
_PATIENCE = 60.0


class Owner(Struct, frozen=True, order=True):
    """An installed package of the system."""

    name: str
    version: str
    architecture: str
    # Of the source it was built from, where that has another name.
    source: str = ""


def owners(libraries: Iterable[str]) -> Mapping[str, Owner | None]:
    """The package each library belongs to, by the name it is loaded by."""
    # The first place wins, as it does in the loader.
    places = dict(reversed(library_places()))
    return {name: _owner(places.get(name, "")) for name in sorted(set(libraries))}


def _owner(path: str) -> Owner | None:
    if not path:
        return None
    real = str(Path(path).resolve())
    # Since /lib became a link to /usr/lib, dpkg may know a file by either name.
    names = dict.fromkeys([real, path, real.removeprefix("/usr"), f"/usr{path}"])
    for name in names:
        said = run(["dpkg-query", "--search", name], timeout=_PATIENCE)
        package, colon, _ = (said or "").partition(": ")
        if colon and not package.startswith("diversion"):
            return _package(package.split(",")[0])
    return None


def _package(name: str) -> Owner | None:
    form = "${Package}\\t${Version}\\t${Architecture}\\t${source:Package}"
    said = run(["dpkg-query", "--show", f"--showformat={form}", name], timeout=_PATIENCE)
    fields = (said or "").split("\t")
    return Owner(*fields) if len(fields) == 4 else None
