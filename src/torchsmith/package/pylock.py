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

import msgspec
from packaging.markers import Marker
from packaging.pylock import Package, PackageSdist, PackageWheel, Pylock
from packaging.utils import canonicalize_name
from packaging.version import Version

from torchsmith.errors import HostError
from torchsmith.plan.packages import Together
from torchsmith.recipe.toml import toml_lines
from torchsmith.sources.tree import file_hash
from torchsmith.tasks import run_task
from torchsmith.temporary import temporary_folder

# What a wheel is chosen by: https://peps.python.org/pep-0508/#environment-markers
_MARKERS = ("sys_platform", "platform_machine", "python_version")


def write_lock(stack: Together) -> int:
    """Resolve what is to be installed together, and write down every file; how many there are."""
    output = Path(stack.output)
    report = _resolved(stack)
    place = output.parent.resolve()
    environment = report["environment"]
    lock = Pylock(
        lock_version=Version("1.0"),
        created_by="torchsmith",
        environments=[
            Marker(" and ".join(f"{name} == '{environment[name]}'" for name in _MARKERS))
        ],
        packages=sorted(
            (_package(item, place) for item in report["install"]), key=lambda item: item.name
        ),
    )
    lock.validate()
    output.write_text(_toml(lock.to_dict()), encoding="utf-8")
    return len(lock.packages)


def _resolved(stack: Together) -> dict[str, Any]:
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
        found: dict[str, Any] = msgspec.json.decode(report.read_bytes())
        return found


def _package(item: Mapping[str, Any], place: Path) -> Package:
    about, origin = item["metadata"], item["download_info"]
    url = urllib.parse.urlsplit(origin["url"])
    name = urllib.parse.unquote(url.path.rpartition("/")[2])
    where: dict[str, Any] = {"url": origin["url"]}
    archive = origin.get("archive_info", {})
    hashes = archive.get("hashes") or dict(
        [archive["hash"].split("=")] if "hash" in archive else []
    )
    if url.scheme == "file":
        file = Path(urllib.parse.unquote(url.path))
        hashes = {"sha256": file_hash(file)}
        where = {"path": name if file.parent == place else str(file)}
    if not hashes:
        raise HostError(
            f"pip reports no hash of {about['name']} {about['version']}",
            "Take it from an index or as a file, not from a repository or a folder.",
        )
    kept = {"name": name, "hashes": hashes, **where}
    built = name.endswith(".whl")
    return Package(
        name=canonicalize_name(about["name"]),
        version=Version(about["version"]),
        wheels=[PackageWheel(**kept)] if built else None,
        sdist=None if built else PackageSdist(**kept),
    )


def _toml(table: Mapping[str, Any]) -> str:
    """The lock as a file: one table a package, its files on a line each."""
    lines = toml_lines({key: value for key, value in table.items() if key != "packages"})
    for package in table["packages"]:
        lines += ["", "[[packages]]", *toml_lines(package)]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    run_task(Together, lambda stack: print(f"{write_lock(stack)} packages"))
