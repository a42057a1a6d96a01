"""Reading a conda package: what it says of itself, and whether it is whole.

Both forms: a .tar.bz2 of everything, and a .conda, which is a zip of two .tar.zst.
https://docs.conda.io/projects/conda-build/en/latest/resources/package-spec.html
"""

from __future__ import annotations

import bz2
import hashlib
import posixpath
import re
import tarfile
import zipfile
import zlib
from pathlib import Path
from typing import IO, Annotated, Literal, cast

import msgspec
from msgspec import Meta, Struct

from torchsmith.errors import UsageError, VerificationError
from torchsmith.foreign import decode
from torchsmith.ship.folder import CHUNK, escapes
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
            return _wanted(path, cast("IO[bytes]", stream))
    import zstandard

    found: dict[str, bytes] = {}
    with zipfile.ZipFile(path) as archive:
        for part in ("info", "pkg"):
            name = f"{part}-{stem(path.name)}.tar.zst"
            if name not in archive.namelist():
                raise _bad(path, f"it has no {name}")
            with archive.open(name) as compressed:
                reader = zstandard.ZstdDecompressor().stream_reader(compressed, closefd=False)
                with reader as stream:
                    found |= _wanted(path, cast("IO[bytes]", stream))
                # To its very end, where zip's own checksum is compared.
                exhaust(compressed)
    return found


def _wanted(path: Path, packed: IO[bytes]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    seen: dict[str, tarfile.TarInfo] = {}
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
    if escapes(member.name) or any(item in seen and seen[item].issym() for item in above):
        raise _bad(path, f"{member.name!r} leaves the folder it is unpacked in")
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
