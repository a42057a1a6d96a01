"""The contents of an artifact: its metadata, and every shared library.

Nothing is unpacked to disk and nothing in it is believed: it may be cut short, lie about its
sizes or name files outside itself.
"""

from __future__ import annotations

import bz2
import contextlib
import gzip
import hashlib
import json
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from email.parser import HeaderParser
from pathlib import Path
from typing import IO, Literal, cast

import zstandard
from msgspec import Struct
from packaging.utils import InvalidWheelFilename, parse_wheel_filename

from torchsmith.errors import UsageError, VerificationError
from torchsmith.inputs import check_file
from torchsmith.sources.tree import file_hash
from torchsmith.sources.unfolding import (
    BombError,
    Member,
    Metered,
    check_member,
    check_zip,
    exhaust,
    most_bytes,
)
from torchsmith.verify.binary import MAGIC, Library, read_bytes

Kind = Literal["wheel", "conda package", "libtorch archive"]

_ENDS: Mapping[str, Kind] = {
    ".whl": "wheel",
    ".conda": "conda package",
    ".tar.bz2": "conda package",
    ".tar.gz": "libtorch archive",
    ".zip": "libtorch archive",
}
_CHUNK = 1 << 20
_LONGEST_TEXT = 16 << 20


class Packed(Struct, frozen=True):
    """A shared library as it lies in an artifact."""

    library: Library
    sha256: str


class Contents(Struct, frozen=True):
    """An artifact as it describes itself, and what is in it."""

    path: Path
    kind: Kind
    name: str
    version: str
    size: int
    sha256: str
    files: int
    unpacked: int
    libraries: tuple[Packed, ...]
    tags: tuple[str, ...] = ()
    # Of a conda package: its build string and the platform it is for.
    build: str = ""
    subdir: str = ""
    requires: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """The local part of its version: cu126."""
        return self.version.partition("+")[2]


def kind_of(path: Path) -> Kind:
    """What a file is, by its name."""
    for end, kind in _ENDS.items():
        if path.name.endswith(end):
            return kind
    raise UsageError(
        f"{path.name} is not an artifact",
        "Name a wheel (.whl), a conda package (.conda, .tar.bz2) or a libtorch archive (.tar.gz, "
        ".zip).",
    )


def read_contents(path: Path) -> Contents:
    """Read all of an artifact once."""
    check_file(path, "Name a wheel, a conda package or a libtorch archive.")
    kind = kind_of(path)
    try:
        size = path.stat().st_size
        digest = file_hash(path)
        seen = _Seen(size)
        for name, stream, claimed in _members(path):
            seen.add(name, stream, claimed)
    except OSError as error:
        raise _damaged(path, error.strerror or str(error)) from None
    except (*_BROKEN, ValueError, RecursionError) as error:
        raise _damaged(path, str(error) or type(error).__name__) from None
    with contextlib.suppress(KeyError, ValueError, TypeError, AttributeError, RecursionError):
        described = {"wheel": _wheel, "conda package": _conda}.get(kind, _libtorch)(path, seen)
        return Contents(
            path=path,
            kind=kind,
            size=size,
            sha256=digest,
            files=seen.files,
            unpacked=seen.bytes,
            libraries=tuple(sorted(seen.libraries, key=lambda item: item.library.path)),
            **described,  # type: ignore[arg-type]
        )
    raise _damaged(path, f"it does not describe itself as a {kind} does")


# RuntimeError is zipfile's word for what is encrypted, or compressed in a way it does not know.
_BROKEN = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    zstandard.ZstdError,
    EOFError,
    RuntimeError,
)


def _damaged(path: Path, why: str) -> VerificationError:
    return VerificationError(
        f"{path.name} cannot be read as a {kind_of(path)}: {why}",
        "It was cut short or damaged, or is not what its name says: build or download it again.",
    )


class _Seen:
    """Members as they go by."""

    def __init__(self, size: int) -> None:
        self.files = 0
        self.bytes = 0
        self.texts: dict[str, str] = {}
        self.libraries: list[Packed] = []
        self._most = most_bytes(size)

    def add(self, name: str, stream: IO[bytes], claimed: int) -> None:
        """Take in one file."""
        if name.startswith("/") or ".." in name.split("/") or "\\" in name or "\0" in name:
            raise ValueError(f"it holds a file that leads out of it, {name!r}")
        if not name.strip("/."):
            raise ValueError("it holds a file without a name")
        if claimed + self.bytes > self._most:
            raise BombError
        self.files += 1
        first = stream.read(_CHUNK)
        if first[:4] == MAGIC:
            content = first + stream.read()
            self.bytes += len(content)
            if (library := read_bytes(name, content)) is not None:
                self.libraries.append(Packed(library, hashlib.sha256(content).hexdigest()))
        elif _describes(name) and claimed <= _LONGEST_TEXT:
            content = first + stream.read()
            self.bytes += len(content)
            self.texts[name] = content.decode("utf-8", "replace")
        else:
            # To the end: only there does an archive show that it is whole.
            while first:
                self.bytes += len(first)
                first = stream.read(_CHUNK)


def _describes(name: str) -> bool:
    folder, _, last = name.partition("/")
    return (folder.endswith(".dist-info") and last in ("METADATA", "WHEEL")) or name in (
        "info/index.json",
        "libtorch/build-version",
    )


def _members(path: Path) -> Iterator[tuple[str, IO[bytes], int]]:
    if path.name.endswith((".whl", ".zip")):
        yield from _zipped(path)
    elif path.name.endswith(".conda"):
        yield from _in_conda(path)
    else:
        opener = bz2.open if path.name.endswith(".bz2") else gzip.open
        with opener(path) as plain:
            yield from _tarred(cast("IO[bytes]", plain), path)


def _zipped(path: Path) -> Iterator[tuple[str, IO[bytes], int]]:
    with zipfile.ZipFile(path) as archive:
        check_zip(archive, path.stat().st_size)
        for info in archive.infolist():
            # zipfile asks for the last letter of a name.
            if not info.filename:
                raise ValueError("it holds a file without a name")
            if not info.is_dir():
                with archive.open(info) as stream:
                    yield info.filename, stream, info.file_size


def _tarred(plain: IO[bytes], path: Path) -> Iterator[tuple[str, IO[bytes], int]]:
    metered = Metered(plain, 2 * most_bytes(path.stat().st_size), BombError())
    with tarfile.open(fileobj=cast("IO[bytes]", metered), mode="r|", tarinfo=Member) as archive:
        for item in archive:
            check_member(item)
            stream = archive.extractfile(item) if item.isreg() else None
            if stream is not None:
                yield item.name.removeprefix("./"), stream, item.size
    exhaust(cast("IO[bytes]", metered))


def _in_conda(path: Path) -> Iterator[tuple[str, IO[bytes], int]]:
    """Two compressed archives in a zip: https://docs.conda.io/projects/conda/en/latest/"""
    with zipfile.ZipFile(path) as archive:
        inner = [name for name in archive.namelist() if name.endswith(".tar.zst")]
        for name in inner:
            with (
                archive.open(name) as packed,
                zstandard.ZstdDecompressor().stream_reader(
                    packed, read_across_frames=True
                ) as plain,
            ):
                yield from _tarred(cast("IO[bytes]", plain), path)


def _wheel(path: Path, seen: _Seen) -> dict[str, object]:
    try:
        name, version, _, tags = parse_wheel_filename(path.name)
    except InvalidWheelFilename as error:
        raise ValueError from error
    (metadata,) = [text for name, text in seen.texts.items() if name.endswith("/METADATA")]
    fields = HeaderParser().parsestr(metadata)
    return {
        "name": str(name),
        "version": str(version),
        "tags": tuple(sorted(map(str, tags))),
        "requires": tuple(fields.get_all("Requires-Dist") or ()),
    }


def _conda(path: Path, seen: _Seen) -> dict[str, object]:
    index = json.loads(seen.texts["info/index.json"])
    return {
        "name": str(index["name"]),
        "version": str(index["version"]),
        "build": str(index["build"]),
        "subdir": str(index.get("subdir", "")),
        "requires": tuple(map(str, index.get("depends", ()))),
    }


def _libtorch(path: Path, seen: _Seen) -> dict[str, object]:
    # Upstream's archives have the same file.
    return {"name": "libtorch", "version": seen.texts["libtorch/build-version"].strip()}
