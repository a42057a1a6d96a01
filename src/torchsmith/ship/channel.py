"""A conda channel as a folder: linux-64/, noarch/ …, each with packages and what lists them.

A subdir's repodata.json is the record of its packages; every other page is made from those. A
package is a .tar.bz2 of everything, or a .conda, which is a zip of two .tar.zst:
https://docs.conda.io/projects/conda-build/en/latest/resources/package-spec.html
"""

from __future__ import annotations

import bz2
import hashlib
import json
import posixpath
import re
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Annotated, Literal, cast

import msgspec
from msgspec import Meta, Struct

from torchsmith.errors import OutputError, UsageError, VerificationError
from torchsmith.foreign import decode
from torchsmith.ship.folder import (
    CHUNK,
    Action,
    Change,
    Changes,
    Say,
    changing,
    check_folder,
    escapes,
    file_hash,
    refuse_other_bytes,
)
from torchsmith.sources.unfolding import (
    BombError,
    Member,
    Metered,
    check_member,
    exhaust,
    most_bytes,
)

ENDINGS = (".conda", ".tar.bz2")

_SUBDIR = re.compile(r"noarch|[a-z0-9]+-[a-z0-9_]+")
# Honest ones have some kilobytes.
_LONGEST = 16 << 20
_WANTED = ("info/index.json", "info/run_exports.json")

# A line of a channel's repodata.json.
Record = dict[str, object]

# Solvers read a whole channel or none of it: one value of another type spoils it for everybody.
# Names are plain ASCII, or two packages could look the same.
_Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.-]+\Z", max_length=200)]
# An epoch, parts, a local part (https://docs.conda.io/projects/conda-build/en/latest/resources/
# package-spec.html); an underscore may end it, as in 1.1.1_. rattler reads nothing else.
_Version = Annotated[
    str,
    Meta(
        pattern=r"^([0-9]+!)?[A-Za-z0-9]+([._-][A-Za-z0-9]+)*_?(\+[A-Za-z0-9]+([._-][A-Za-z0-9]+)*)?\Z",
        max_length=200,
    ),
]
_Build = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_.!+*-]+\Z", max_length=200)]
_Purl = Annotated[str, Meta(pattern=r"^pkg:[a-z][a-z0-9.+-]*/[!-~]+\Z", max_length=2000)]
# The last millisecond of the year 9999.
_Moment = Annotated[int, Meta(ge=0, le=253_402_300_799_999)]
_Line = Annotated[str, Meta(pattern=r"^[ -~]*\Z", max_length=2000)]
_Text = Annotated[str, Meta(pattern=r"^[^\x00-\x1f\x7f-\x9f]*\Z", max_length=2000)]
_Count = Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]


_Exports = dict[_Line, tuple[_Line, ...]]


class _Index(Struct, omit_defaults=True):
    """Every field of index.json that a channel's record has; others are of no use to a solver."""

    name: _Name
    version: _Version
    build: _Build
    subdir: _Line
    build_number: _Count = 0
    depends: tuple[_Line, ...] = ()
    constrains: tuple[_Line, ...] | None = None
    extra_depends: dict[_Line, tuple[_Line, ...]] | None = None
    arch: _Line | None = None
    platform: _Line | None = None
    noarch: Literal["python", "generic"] | bool | None = None
    features: _Line | None = None
    track_features: _Line | tuple[_Line, ...] | None = None
    flags: tuple[_Line, ...] | None = None
    license: _Text | None = None
    license_family: _Text | None = None
    preferred_env: _Line | None = None
    purls: tuple[_Purl, ...] | None = None
    python_site_packages_path: _Line | None = None
    timestamp: _Moment | None = None


def stem(name: str) -> str:
    """NAME-VERSION-BUILD of a package's file."""
    for ending in ENDINGS:
        if name.endswith(ending):
            return name.removesuffix(ending)
    raise UsageError(
        f"{name} is not the name of a conda package", "They end in .conda or .tar.bz2."
    )


def read_record(path: Path) -> Record:
    """Read all of a package; return its line for the channel, or refuse it."""
    from zstandard import ZstdError

    try:
        found = _read_through(path)
        index = decode(found["info/index.json"], _Index)
        exports = decode(found.get("info/run_exports.json", b"{}"), _Exports)
    except KeyError:
        raise _bad(path, "it has no info/index.json") from None
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, ZstdError, EOFError) as error:
        raise _bad(path, f"it cannot be unpacked: {error}") from None
    except OSError as error:
        raise _bad(path, f"it cannot be read: {error}") from None
    except msgspec.MsgspecError as error:
        raise _bad(path, f"its info/index.json or run_exports.json: {error}") from None
    except RecursionError:
        raise _bad(path, "its info/index.json is nested too deep") from None
    except ValueError as error:
        raise _bad(path, str(error)) from None
    name = f"{index.name}-{index.version}-{index.build}"
    if name != stem(path.name):
        raise _bad(path, f"it calls itself {name}")
    if not _SUBDIR.fullmatch(index.subdir):
        raise _bad(path, f"its subdir is {index.subdir!r}")
    record: Record = {
        "depends": [],
        "build_number": 0,
        **{key: value for key, value in msgspec.to_builtins(index).items() if value is not None},
    }
    if exports:
        record["run_exports"] = exports
    return record | _marks(path)


def _bad(path: Path, why: str) -> VerificationError:
    return VerificationError(
        f"{path.name} is not a conda package to publish: {why}", "Build or download it again."
    )


def _marks(path: Path) -> Record:
    sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            sha256.update(chunk)
            md5.update(chunk)
    return {"sha256": sha256.hexdigest(), "md5": md5.hexdigest(), "size": path.stat().st_size}


def _read_through(path: Path) -> dict[str, bytes]:
    """Unpack everything, to know that it can be; keep the two small files that are wanted."""
    if path.name.endswith(".tar.bz2"):
        with bz2.open(path) as stream:
            return _wanted(path, cast("IO[bytes]", stream), {})
    import zstandard

    found: dict[str, dict[str, bytes]] = {}
    # Both are unpacked into one folder.
    seen: dict[str, tarfile.TarInfo] = {}
    with zipfile.ZipFile(path) as archive:
        for part in ("info", "pkg"):
            name = f"{part}-{stem(path.name)}.tar.zst"
            named = [item for item in archive.namelist() if item.startswith(f"{part}-")]
            if named != [name]:
                raise _bad(path, f"it has {', '.join(named) or 'nothing'} where {name} should be")
            with archive.open(name) as compressed:
                reader = zstandard.ZstdDecompressor().stream_reader(
                    compressed, closefd=False, read_across_frames=True
                )
                with reader as stream:
                    found[part] = _wanted(path, cast("IO[bytes]", stream), seen)
                # To its very end, where zip's own checksum is compared.
                exhaust(compressed)
    return found["info"]


def _wanted(path: Path, packed: IO[bytes], seen: dict[str, tarfile.TarInfo]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    most = most_bytes(path.stat().st_size)
    stream = cast("IO[bytes]", Metered(packed, most, BombError()))
    with tarfile.open(fileobj=stream, mode="r|", tarinfo=Member) as tar:
        for member in tar:
            _check_member(path, member, seen)
            content = tar.extractfile(member) if member.isreg() else None
            if content is not None and member.name in _WANTED:
                if member.size > _LONGEST:
                    raise _bad(path, f"its {member.name} is {member.size} bytes long")
                found[member.name] = content.read()
            elif content is not None:
                exhaust(content)
    exhaust(stream)
    return found


def _check_member(path: Path, member: tarfile.TarInfo, seen: dict[str, tarfile.TarInfo]) -> None:
    """Refuse what an installer could be led out of its folder with, or stopped by."""
    name = posixpath.normpath(member.name)
    above = [name[: found.start()] for found in re.finditer("/", name)]
    if escapes(member.name) or any(item in seen and not seen[item].isdir() for item in above):
        raise _bad(path, f"{member.name!r} leaves the folder it is unpacked in")
    odd = re.search(r"[\x00-\x1f\x7f]", name) or max(map(len, name.split("/"))) > 255
    if (name == "." and not member.isdir()) or odd:
        # A line of info/files, and of what a client prints, is one name.
        raise _bad(path, f"it has a file without a name that can be written: {member.name!r}")
    if name in seen and not (member.isdir() and seen[name].isdir()):
        # Which of the two counts depends on who unpacks it.
        raise _bad(path, f"it has {member.name!r} twice")
    seen[name] = member
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        raise _bad(path, f"{member.name!r} is a device or another special file")
    check_member(member)
    if member.islnk():
        # A second name of a symbolic link would lead elsewhere than the first.
        target = seen.get(posixpath.normpath(member.linkname))
        if target is None or not target.isreg():
            raise _bad(path, f"the link {member.name!r} is of no file in it")
        seen[name] = target
    if member.issym():
        up = len(re.match(r"(?:\.\.(?:/|$))*", member.linkname)[0]) // 3  # type: ignore[index]
        down = re.sub(r"^(?:\.\.(?:/|$))*", "", member.linkname)
        # Up first, then down: a way up behind another link may lead anywhere.
        if escapes(down) or up > name.count("/"):
            raise _bad(path, f"the link {member.name!r} leaves the folder it is unpacked in")


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


def remove_packages(root: Path, what: str) -> list[Change]:
    """Take NAME==VERSION or a file away for good; locks that name it will not install any more."""
    check_folder(root, "channel", exists=True)
    with changing(root, "channel") as changes:
        subdirs = published_packages(root)
        if "==" in what:
            found = _named(root, subdirs, what)
        else:
            stem(what)
            # One that no page names was left by a publication or a removal that was killed.
            left = sorted(path.name for path in root.iterdir() if (path / what).is_file())
            found = [(home, what) for home in left] or _named(root, subdirs, what)
        for home, name in found:
            contents = subdirs.setdefault(home, Subdir({}, set()))
            contents.packages.pop(name, None)
            contents.removed.discard(name)
            changes.drop(f"{home}/{name}")
        _write_pages(changes, subdirs)
    return [Change("removed", f"{home}/{name}") for home, name in found]
