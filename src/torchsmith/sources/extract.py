"""Unpacking archives that nobody has looked at.

An archive is a list of instructions from a stranger. Names may climb out of the folder,
links may lead out of it and later members be written through them, a kilobyte may unfold to
a terabyte. Nothing is written except new files and folders below the destination; links are
made last, so that nothing can be written through one.
"""

from __future__ import annotations

import bz2
import calendar
import contextlib
import errno
import gzip
import lzma
import os
import posixpath
import shutil
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import zstandard

from torchsmith.errors import SourceError
from torchsmith.sources.download import emptied
from torchsmith.sources.tree import Progress, check_links, quiet
from torchsmith.sources.unfolding import Member, Metered

_PIECE = 1 << 20
# The year 2242: later than any honest date, and every file system can hold it.
_LATEST = float(2**33)


@dataclass(frozen=True, slots=True)
class Limits:
    """How far an archive may unfold before it is taken for a bomb.

    Source text packs 4 to 20 times; PyTorch's whole tree with submodules is about 2 GiB.
    """

    total_bytes: int = 20 << 30
    ratio: int = 200
    # Below this size a ratio proves nothing: a small archive of zeros harms nobody.
    ratio_from_bytes: int = 256 << 20
    members: int = 2_000_000


LIMITS = Limits()


class _BombError(SourceError):
    """An archive that unfolds past its limits."""


class _Destination:
    """The one place members are written, each checked first."""

    def __init__(self, root: Path, archive: str, packed: int, limits: Limits, only: str) -> None:
        self.root, self.archive, self.limits = root, archive, limits
        self.most = min(max(limits.ratio_from_bytes, limits.ratio * packed), limits.total_bytes)
        self.only = f"{only}/" if only else ""
        self.links: dict[str, str] = {}
        self.made = {""}
        self.bytes = 0
        self.members = 0

    @property
    def bomb(self) -> SourceError:
        """The error for an archive that unfolds too far."""
        return _BombError(
            f"{self.archive} unfolds to more than its size allows",
            "It looks made to fill the disk; if it is honest, unpack it by hand and use"
            " source.kind = 'folder'.",
        )

    def refuse(self, member: str, why: str) -> SourceError:
        """The error for one member."""
        return SourceError(
            f"{self.archive}: member {member!r} {why}",
            "The archive is broken or hostile; nothing of it was kept.",
        )

    def place(self, name: str) -> str:
        """Where a member goes, "" for the root itself; refused if that is anywhere else."""
        self.members += 1
        if self.members > self.limits.members:
            raise _BombError(f"{self.archive} has more than {self.limits.members} members")
        if name.startswith("/"):
            raise self.refuse(name, "has an absolute path")
        if "\0" in name:
            raise self.refuse(name, "has a zero byte in its name")
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise self.refuse(name, "climbs out of the folder")
        path = "/".join(parts)
        for length in range(1, len(parts) + 1) if self.links else ():
            above = "/".join(parts[:length])
            if above in self.links:
                through = "appears twice" if above == path else f"lies behind the link {above!r}"
                raise self.refuse(name, through)
        return path

    def make_folder(self, path: str) -> None:
        """Make a folder and those above it, asking the disk once for each."""
        if path not in self.made:
            (self.root / path).mkdir(parents=True, exist_ok=True)
            self.made.add(path)

    def folder(self, name: str) -> None:
        """Make a folder, unless it is there."""
        try:
            self.make_folder(self.place(name))
        except (FileExistsError, NotADirectoryError):
            raise self.refuse(name, "has the name of a file that is there") from None

    def file(self, name: str, content: IO[bytes], mode: int, mtime: float) -> None:
        """Write a new file; setuid and every other special bit stay behind."""
        path = self.place(name)
        if not path:
            raise self.refuse(name, "has no name")
        where = self.root / path
        try:
            self.make_folder(path.rpartition("/")[0])
        except (FileExistsError, NotADirectoryError):
            raise self.refuse(name, "lies below a file") from None
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            # Group and others' rights depend on who packed it; the executable bit is content.
            handle = os.open(where, flags, 0o755 if mode & stat.S_IXUSR else 0o644)
        except FileExistsError:
            raise self.refuse(name, "appears twice") from None
        with os.fdopen(handle, "wb") as file:
            while piece := content.read(_PIECE):
                self.bytes += len(piece)
                # What was read is metered too; a hard link writes again without being read.
                if self.bytes > self.most:
                    raise self.bomb
                file.write(piece)
        # Build tools compare dates: generated files must stay newer than what they came from.
        when = min(max(0.0, mtime), _LATEST)
        os.utime(where, (when, when))

    def link(self, name: str, target: str) -> None:
        """Remember a symbolic link; where it ends is judged when all are known."""
        path = self.place(name)
        if not path or not target or "\0" in target or target.startswith("/"):
            raise self.refuse(name, f"is a link to {target!r}, out of the tree")
        climbed = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
        if climbed == ".." or climbed.startswith("../"):
            raise self.refuse(name, f"is a link to {target!r}, out of the tree")
        if os.path.lexists(self.root / path):
            raise self.refuse(name, "appears twice")
        self.links[path] = target

    def copy(self, name: str, target: str, mode: int, mtime: float) -> None:
        """A hard link becomes a copy of the member it names."""
        self.members -= 1
        source = self.place(target)
        original = self.root / source
        if original.is_symlink() or not original.is_file():
            raise self.refuse(
                name, f"is a hard link to {target!r}, no file of the archive before it"
            )
        with original.open("rb") as content:
            self.file(name, content, mode, mtime)

    def finish(self) -> None:
        """Make the links."""
        for path, target in self.links.items():
            where = self.root / path
            try:
                where.parent.mkdir(parents=True, exist_ok=True)
                where.symlink_to(target)
            except (FileExistsError, NotADirectoryError):
                raise self.refuse(path, "appears twice") from None


@contextlib.contextmanager
def _opened(file: IO[bytes]) -> Iterator[IO[bytes]]:
    """The tar inside, whatever it is packed with; told by its first bytes, not its name."""
    head = file.read(6)
    file.seek(0)
    with contextlib.ExitStack() as stack:
        if head.startswith(b"\x1f\x8b"):
            yield cast(IO[bytes], stack.enter_context(gzip.GzipFile(fileobj=file)))
        elif head.startswith(b"BZh"):
            yield cast(IO[bytes], stack.enter_context(bz2.open(file)))
        elif head.startswith((b"\xfd7zXZ\x00", b"\x5d\x00\x00")):
            yield cast(IO[bytes], stack.enter_context(lzma.open(file)))
        elif head.startswith(b"\x28\xb5\x2f\xfd"):
            reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
            yield cast(IO[bytes], stack.enter_context(reader))
        elif head == _AR[:6]:
            data = stack.enter_context(_package_data(file))
            yield stack.enter_context(_opened(data))
        else:
            yield file


_AR = b"!<arch>\n"


def _package_data(file: IO[bytes]) -> IO[bytes]:
    """The tar in a Debian package that holds what it installs: deb(5)."""
    file.seek(len(_AR))
    while len(header := file.read(60)) == 60:
        size = int(header[48:58])
        if header.startswith(b"data.tar"):
            data = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
            while size > 0 and (piece := file.read(min(size, _PIECE))):
                data.write(piece)
                size -= len(piece)
            data.seek(0)
            return data
        # Members begin at even places.
        file.seek(size + size % 2, os.SEEK_CUR)
    raise ValueError("it holds no data.tar")


def _from_tar(stream: IO[bytes], into: _Destination) -> None:
    with tarfile.open(fileobj=stream, mode="r|", errorlevel=2, tarinfo=Member) as tar:
        for member in tar:
            if not member.name.startswith(into.only):
                continue
            if member.isdir():
                into.folder(member.name)
            elif member.issym():
                into.link(member.name, member.linkname)
            elif member.islnk():
                into.copy(member.name, member.linkname, member.mode, member.mtime)
            elif member.issparse():
                raise into.refuse(member.name, "is a sparse file, which may claim any size")
            elif member.isreg():
                content = tar.extractfile(member)
                assert content is not None
                with content:
                    into.file(member.name, content, member.mode, member.mtime)
            else:
                raise into.refuse(member.name, "is a device or another special file")
    # To the very end: only there does the packer's checksum tell of a truncated file.
    while stream.read(_PIECE):
        pass


def _from_zip(file: IO[bytes], into: _Destination) -> None:
    with zipfile.ZipFile(file) as archive:
        claimed = sum(item.file_size for item in archive.infolist())
        if claimed > into.most:
            raise into.bomb
        for item in archive.infolist():
            mode = item.external_attr >> 16
            kind = stat.S_IFMT(mode)
            if not item.filename.startswith(into.only):
                continue
            if item.flag_bits & 1:
                raise into.refuse(item.filename, "is encrypted")
            if item.is_dir():
                into.folder(item.filename)
            elif kind == stat.S_IFLNK:
                if item.file_size > 4096:
                    raise into.refuse(item.filename, "is a link with no sensible target")
                into.link(item.filename, os.fsdecode(archive.read(item)))
            elif kind in (0, stat.S_IFREG):
                with archive.open(item) as content:
                    when = float(calendar.timegm((*item.date_time, 0, 0, 0)))
                    into.file(item.filename, content, mode, when)
            else:
                raise into.refuse(item.filename, "is a device or another special file")


def extract(
    archive: Path,
    destination: Path,
    *,
    name: str = "",
    strip: bool = True,
    only: str = "",
    root: Path | None = None,
    limits: Limits = LIMITS,
    progress: Progress = quiet,
) -> None:
    """Unpack a tar (plain, gz, bz2, xz, zst), zip or Debian package into an empty folder.

    `name` is for people.

    A single top folder is taken off; with `only`, the members below that folder are taken and
    it is taken off. Links must stay in `root`, the destination unless it is
    part of a larger tree. Whatever goes wrong, the destination is empty again.
    """
    name = name or archive.name
    progress(f"unpacking {name}", None, None)
    packed = archive.stat().st_size
    inside = Path(tempfile.mkdtemp(dir=destination, prefix=".unpack-"))
    into = _Destination(inside, name, packed, limits, only)
    try:
        with archive.open("rb") as file:
            if file.read(4) in (b"PK\x03\x04", b"PK\x05\x06"):
                _from_zip(file, into)
            else:
                file.seek(0)
                with _opened(file) as stream:
                    # Headers and padding take room beside the content.
                    metered = Metered(stream, 2 * into.most, into.bomb)
                    _from_tar(cast(IO[bytes], metered), into)
        into.finish()
        _lift(inside, destination, only, strip)
        check_links(root or destination, name)
    except SourceError:
        emptied(destination)
        raise
    except (
        tarfile.TarError,
        zipfile.BadZipFile,
        EOFError,
        lzma.LZMAError,
        zlib.error,
        zstandard.ZstdError,
        gzip.BadGzipFile,
        # Python's readers let these through for headers that make no sense.
        ValueError,
        ArithmeticError,
        LookupError,
        RuntimeError,
        struct.error,
    ) as error:
        emptied(destination)
        raise SourceError(
            f"{name} cannot be unpacked: {error}",
            "It is truncated, or not a tar or zip archive.",
        ) from None
    except OSError as error:
        emptied(destination)
        # bz2 calls broken data an OSError without a number, zipfile seeks to places before the
        # file; any other is the disk's.
        if error.errno not in (None, errno.EINVAL, errno.ENAMETOOLONG):
            raise
        raise SourceError(f"{name} cannot be unpacked: {error}") from None
    except BaseException:
        emptied(destination)
        raise


def _lift(inside: Path, destination: Path, only: str, strip: bool) -> None:
    """Move what was unpacked to the top, without the folder it is all in."""
    top = list((inside / only).iterdir()) if (inside / only).is_dir() else []
    if not only and strip and len(top) == 1 and top[0].is_dir() and not top[0].is_symlink():
        top = list(top[0].iterdir())
    for entry in top:
        entry.rename(destination / entry.name)
    shutil.rmtree(inside)
