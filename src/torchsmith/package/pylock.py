"""Locking a stack: a pylock.toml (PEP 751) of everything an installer takes.

pip resolves the whole set in a dry run, and refuses in its own words where two packages do not go
together. Wheels that were built here are named by their file, which lies beside the lock; the
others by their address.
"""

from __future__ import annotations

import subprocess
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, to_builtins
from packaging.markers import Marker
from packaging.pylock import (
    Package,
    PackageSdist,
    PackageWheel,
    Pylock,
    PylockValidationError,
)
from packaging.utils import canonicalize_name
from packaging.version import Version

from torchsmith.errors import HostError
from torchsmith.foreign import MalformedError, decode
from torchsmith.plan.packages import Together
from torchsmith.recipe.toml import toml_lines
from torchsmith.sources.tree import file_hash
from torchsmith.tasks import run_task
from torchsmith.temporary import temporary_folder


class _Environment(Struct, frozen=True):
    """What a wheel is chosen by: https://peps.python.org/pep-0508/#environment-markers"""

    sys_platform: str
    platform_machine: str
    python_version: str


class _Archive(Struct, frozen=True):
    hashes: dict[str, str] = {}
    # As pip before 22.2 writes it: sha256=…
    hash: str = ""


class _Origin(Struct, frozen=True):
    url: str
    archive_info: _Archive = _Archive()


class _Metadata(Struct, frozen=True):
    name: str
    version: str


class _Item(Struct, frozen=True):
    metadata: _Metadata
    download_info: _Origin


class _Report(Struct, frozen=True):
    """What pip would install: https://pip.pypa.io/en/stable/reference/installation-report/"""

    environment: _Environment
    install: tuple[_Item, ...]


def write_lock(stack: Together) -> int:
    """Resolve what is to be installed together, and write down every file; how many there are."""
    output = Path(stack.output)
    lock = read_report(_resolved(stack), output.parent.resolve())
    output.write_text(_toml(lock.to_dict()), encoding="utf-8")
    return len(lock.packages)


def read_report(content: bytes, place: Path) -> Pylock:
    """The lock that pip's report of an installation makes; files in `place` go by their names."""
    try:
        report = decode(content, _Report)
        environment = to_builtins(report.environment)
        lock = Pylock(
            lock_version=Version("1.0"),
            created_by="torchsmith",
            environments=[
                Marker(" and ".join(f"{name} == {value!r}" for name, value in environment.items()))
            ],
            packages=sorted(
                (_package(item, place) for item in report.install), key=lambda item: item.name
            ),
        )
        lock.validate()
    except (MalformedError, PylockValidationError, ValueError, OSError) as error:
        raise HostError(
            f"pip's report of what it would install cannot be used: {error}",
            'Use another pip: build.pip = ["pip==…"] in the recipe.',
        ) from None
    return lock


def _resolved(stack: Together) -> bytes:
    """pip's own report of what it would install."""
    wheels = [str(path.resolve()) for name in stack.wheels for path in sorted(Path().glob(name))]
    with temporary_folder("pylock") as folder:
        report = folder / "report.json"
        # Not --quiet: with it pip does not say which two of them collide.
        words = [f"{stack.environment}/bin/python", "-m", "pip", "install", "--dry-run"]
        words += ["--disable-pip-version-check", "--report", str(report), *stack.words, *wheels]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, check=False)
        if done.returncode:
            raise HostError(
                "pip finds no set of files that go together: its own words are above",
                "Leave out one of those it names, or name another release of it in [stack].",
            )
        return report.read_bytes()


def _package(item: _Item, place: Path) -> Package:
    about, origin = item.metadata, item.download_info
    url = urllib.parse.urlsplit(origin.url)
    name = urllib.parse.unquote(url.path.rpartition("/")[2])
    where: dict[str, Any] = {"url": origin.url}
    kind, _, digest = origin.archive_info.hash.partition("=")
    hashes = origin.archive_info.hashes or ({kind: digest} if digest else {})
    if url.scheme == "file":
        file = Path(urllib.parse.unquote(url.path))
        hashes = {"sha256": file_hash(file)}
        where = {"path": name if file.parent == place else str(file)}
    if not hashes:
        raise HostError(
            f"pip reports no hash of {about.name} {about.version}",
            "Take it from an index or as a file, not from a repository or a folder.",
        )
    kept = {"name": name, "hashes": hashes, **where}
    built = name.endswith(".whl")
    return Package(
        name=canonicalize_name(about.name, validate=True),
        version=Version(about.version),
        wheels=[PackageWheel(**kept)] if built else None,
        sdist=None if built else PackageSdist(**kept),
    )


def _toml(table: Mapping[str, Any]) -> str:
    """The lock as a file: one table a package, its files on a line each."""
    packages = table.get("packages", ())
    lines = toml_lines({key: value for key, value in table.items() if key != "packages"})
    lines += [] if packages else ["packages = []"]
    for package in packages:
        lines += ["", "[[packages]]", *toml_lines(package)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    run_task(Together, lambda stack: print(f"{write_lock(stack)} packages"))
