"""A conda channel as a folder: linux-64/, noarch/ …, each with packages and what lists them.

A subdir's repodata.json is the record of its packages; every other page is made from those.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from torchsmith.errors import OutputError, UsageError
from torchsmith.foreign import decode
from torchsmith.ship.conda_package import Record, read_record, stem
from torchsmith.ship.folder import (
    Action,
    Change,
    Changes,
    Say,
    changing,
    check_folder,
    file_hash,
    refuse_other_bytes,
)

_REPODATA = "repodata.json"
_ZSTD_LEVEL = 19


class Subdir(Struct):
    """What one folder of a channel holds: packages by file name, and those taken back."""

    packages: dict[str, Record]
    removed: set[str]


Subdirs = dict[str, Subdir]


class _Repodata(Struct, frozen=True, rename={"packages_conda": "packages.conda"}):
    """What is read of a repodata.json; other programs that write one leave out what is empty."""

    packages: dict[str, Record] = {}
    packages_conda: dict[str, Record] = {}
    removed: tuple[str, ...] = ()


class _Listed(Struct, frozen=True):
    """What the pages of a channel need of a record."""

    name: str
    version: str
    sha256: str = ""
    run_exports: dict[str, object] = {}


class _Package(Struct, frozen=True):
    source: Path
    subdir: str
    record: Record

    @property
    def target(self) -> str:
        return f"{self.subdir}/{self.source.name}"

    @property
    def sha256(self) -> str:
        return str(self.record["sha256"])


def published_packages(root: Path) -> Subdirs:
    """What a channel holds, by subdir."""
    found = {"noarch": Subdir({}, set())}
    for page in sorted(root.glob(f"*/{_REPODATA}")):
        try:
            table = decode(page.read_bytes(), _Repodata)
            listed = table.packages | table.packages_conda
            for file, record in listed.items():
                stem(file)
                msgspec.convert(record, _Listed)
            found[page.parent.name] = Subdir(listed, set(table.removed))
        except (msgspec.MsgspecError, UnicodeError, RecursionError, UsageError, OSError) as error:
            raise OutputError(
                f"{page} does not list packages: {error}",
                "Put back the one that was there, or begin a new channel.",
            ) from None
    return found


def publish_packages(
    root: Path,
    packages: Sequence[Path],
    *,
    dry_run: bool = False,
    say: Say = lambda _: None,
) -> list[Change]:
    """Add packages to a channel, all or none; those that are there already stay as they are."""
    check_folder(root, "channel")
    if dry_run:
        return [change for change, _ in _sorted_out(root, packages, published_packages(root))]
    with changing(root, "channel", say=say) as changes:
        subdirs = published_packages(root)
        decided = _sorted_out(root, packages, subdirs)
        coming = [package for change, package in decided if change.action == "added"]
        changes.make_room(sum(package.source.stat().st_size for package in coming))
        for package in coming:
            if not (root / package.target).exists():
                changes.bring(package.source, package.target, package.sha256)
            subdir = subdirs.setdefault(package.subdir, Subdir({}, set()))
            subdir.packages[package.source.name] = package.record
        _write_pages(changes, subdirs)
    return [change for change, _ in decided]


def _sorted_out(
    root: Path, packages: Iterable[Path], subdirs: Subdirs
) -> list[tuple[Change, _Package]]:
    """Which packages are new; one that is new must be a good one."""
    decided: list[tuple[Change, _Package]] = []
    taken: dict[str, str] = {}
    for path in packages:
        package = _published(root, path, subdirs)
        same = package is not None
        if package is None:
            record = read_record(path)
            package = _Package(path, str(record["subdir"]), record)
            same = package.target in taken
            subdir = subdirs.get(package.subdir, Subdir({}, set()))
            there = root / package.target
            listed = subdir.packages.get(path.name)
            had = taken.get(package.target) or (str(listed.get("sha256", "")) if listed else None)
            if had is None and there.exists():
                # Yanked, or left by a publication that was killed before any page named it.
                had = file_hash(there)
                same = path.name in subdir.removed
            if had not in (None, package.sha256):
                raise refuse_other_bytes(path.name, root)
        taken[package.target] = package.sha256
        action: Action = "same" if same else "added"
        decided.append((Change(action, package.target, package.sha256), package))
    return decided


def _published(root: Path, path: Path, subdirs: Subdirs) -> _Package | None:
    """The package as it is listed, if just this one is: it need not be unpacked again."""
    stem(path.name)
    sha256 = file_hash(path)
    for name, subdir in subdirs.items():
        record = subdir.packages.get(path.name, {})
        if record.get("sha256") == sha256 and (root / name / path.name).exists():
            return _Package(path, name, record)
    return None


def _write_pages(changes: Changes, subdirs: Subdirs) -> None:
    """Every page of the channel, so that one a killed publication left behind is mended too."""
    for name, subdir in subdirs.items():
        repodata = _json(
            {
                "info": {"subdir": name},
                **_by_form(subdir.packages),
                "removed": sorted(subdir.removed),
                "repodata_version": 1,
            }
        )
        exports = {
            file: {"run_exports": record.get("run_exports", {})}
            for file, record in subdir.packages.items()
        }
        run_exports = _json({"info": {"subdir": name, "version": 1}, **_by_form(exports)})
        changes.write(f"{name}/{_REPODATA}", repodata)
        changes.write(f"{name}/{_REPODATA}.zst", _zst(repodata))
        # A smaller one with the newest only is allowed, not asked for.
        changes.write(f"{name}/current_{_REPODATA}", repodata)
        changes.write(f"{name}/run_exports.json", run_exports)
        changes.write(f"{name}/run_exports.json.zst", _zst(run_exports))
    changes.write("channeldata.json", _json(_channeldata(subdirs)))


def _by_form(packages: dict[str, Record]) -> dict[str, dict[str, Record]]:
    """The older form of package is listed apart: programs of before 2019 know no other."""
    older = {name: record for name, record in packages.items() if name.endswith(".tar.bz2")}
    newer = {name: record for name, record in packages.items() if name not in older}
    return {"packages": older, "packages.conda": newer}


def _channeldata(subdirs: Subdirs) -> dict[str, object]:
    newest: dict[str, tuple[str, Record]] = {}
    homes: dict[str, set[str]] = {}
    for subdir, contents in subdirs.items():
        for file, record in sorted(contents.packages.items()):
            name = str(record["name"])
            homes.setdefault(name, set()).add(subdir)
            if name not in newest or _age(record) >= _age(newest[name][1]):
                newest[name] = (f"{subdir}/{file}", record)
    packages = {
        name: {
            "license": record.get("license"),
            "reference_package": file,
            "run_exports": {str(record["version"]): record.get("run_exports", {})},
            "subdirs": sorted(homes[name]),
            "timestamp": record.get("timestamp", 0),
            "version": record["version"],
        }
        for name, (file, record) in newest.items()
    }
    return {"channeldata_version": 1, "packages": packages, "subdirs": sorted(subdirs)}


def _age(record: Record) -> int:
    timestamp = record.get("timestamp")
    return timestamp if isinstance(timestamp, int) else 0


def _json(table: dict[str, object]) -> bytes:
    return json.dumps(table, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _zst(content: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(content)


def _named(root: Path, subdirs: Subdirs, what: str) -> list[tuple[str, str]]:
    """The packages, listed or taken back, that NAME==VERSION or a file's name stand for."""
    name, exact, version = what.partition("==")
    wanted = f"{name.strip()}-{version.strip()}" if exact else None
    files = [
        (subdir, file)
        for subdir, contents in subdirs.items()
        for file in sorted({*contents.packages, *contents.removed})
    ]
    found = [
        (subdir, file)
        for subdir, file in files
        if what in (file, f"{subdir}/{file}") or stem(file).rpartition("-")[0] == wanted
    ]
    if not found:
        contents = ", ".join(file for _, file in files[:8]) or "nothing"
        raise UsageError(f"{what} is not in {root}", f"It has {contents}.")
    return found


def yank_packages(root: Path, what: str, *, undo: bool = False) -> list[Change]:
    """Take packages out of the list that solvers read; the files stay for those who locked them."""
    check_folder(root, "channel", exists=True)
    made: list[Change] = []
    with changing(root, "channel") as changes:
        subdirs = published_packages(root)
        for name, file in _named(root, subdirs, what):
            subdir = subdirs[name]
            target = f"{name}/{file}"
            if undo == (file in subdir.packages):
                made.append(Change("same", target))
            elif undo:
                subdir.packages[file] = read_record(root / target)
                subdir.removed.remove(file)
                made.append(Change("restored", target))
            else:
                del subdir.packages[file]
                subdir.removed.add(file)
                made.append(Change("yanked", target))
        _write_pages(changes, subdirs)
    return made


def remove_package(root: Path, name: str) -> list[Change]:
    """Take a file away for good; lock files that name it will not install any more."""
    check_folder(root, "channel", exists=True)
    stem(name)
    with changing(root, "channel") as changes:
        subdirs = published_packages(root)
        left = sorted(path.name for path in root.iterdir() if (path / name).is_file())
        homes = left or [subdir for subdir, _ in _named(root, subdirs, name)]
        for home in homes:
            contents = subdirs.setdefault(home, Subdir({}, set()))
            contents.packages.pop(name, None)
            contents.removed.discard(name)
            changes.drop(f"{home}/{name}")
        _write_pages(changes, subdirs)
    return [Change("removed", f"{home}/{name}") for home in homes]
