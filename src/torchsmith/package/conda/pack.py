"""From a wheel or a prefix to conda packages: all is read and described before any is written.

A package is a .conda or a .tar.bz2, written whole or not at all. Members are sorted, with normal
modes and owners and one date, so that one tree is one archive.
https://docs.conda.io/projects/conda/en/stable/user-guide/concepts/packages.html
As a program it packs for one step of a plan, in its work folder.
"""

from __future__ import annotations

import bz2
import glob
import json
import re
import tarfile
import tempfile
import zipfile
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from torchsmith.errors import UsageError
from torchsmith.files import whole_file
from torchsmith.host.limits import read_cores
from torchsmith.inputs import one_file
from torchsmith.package.conda.describe import (
    Description,
    describe_tree,
    describe_wheel,
    info_files,
    layout_of,
)
from torchsmith.package.conda.tree import PLACEHOLDER, Entry, entry_of, read_tree
from torchsmith.package.conda.wheel import Contents, lay_out, read_contents
from torchsmith.package.pack import writing
from torchsmith.plan.conda import CondaSpec
from torchsmith.sources.tree import EARLIEST
from torchsmith.tasks import run_task

_PREFIX = "@PREFIX@"
_LICENSE_FILE = re.compile(r"(?:licenses/.*|(?:LICEN[CS]E|COPYING|NOTICE)[^/]*)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Packed:
    """A package, described, and the files it was written to."""

    described: Description
    files: tuple[Path, ...]


def pack(
    spec: CondaSpec,
    *,
    threads: int | None = None,
    ignore: Sequence[str] = (),
    write: bool = True,
) -> Packed:
    """Pack what a spec describes; without `write`, only say what it would be."""
    if bool(spec.wheel) == bool(spec.tree):
        raise UsageError("a conda package is made of one wheel or one folder", "Name one of them.")
    cores = threads or read_cores()
    output = Path(spec.output)
    if spec.tree:
        described = describe_tree(spec)
        files = _targets(spec, described)
        if write:
            entries = read_tree(Path(spec.tree), prefix=spec.prefix, ignore=ignore, threads=cores)
            _write(spec, described, entries, {}, files, cores)
        return Packed(described, files)
    wheel = one_file(spec.wheel) if glob.has_magic(spec.wheel) else Path(spec.wheel)
    contents = read_contents(wheel)
    layout = layout_of(spec, contents)
    described = describe_wheel(spec, contents, layout)
    files = _targets(spec, described)
    if write:
        with writing(output):
            output.mkdir(parents=True, exist_ok=True)
            # Beside the result, where there has to be room anyway.
            with tempfile.TemporaryDirectory(dir=output, prefix=".conda-") as folder:
                root = Path(folder)
                lay_out(contents, layout, root, prefix=spec.prefix, threads=cores)
                entries = read_tree(root, prefix=spec.prefix, ignore=ignore, threads=cores)
                _write(spec, described, entries, _licenses(contents), files, cores)
    return Packed(described, files)


def _targets(spec: CondaSpec, described: Description) -> tuple[Path, ...]:
    if not re.fullmatch(r"[a-z0-9_.-]+", described.name):
        raise UsageError(
            f"{described.name!r} is not the name of a conda package",
            "Use a-z, 0-9, '_', '.' and '-'.",
        )
    for title, text in (("version", described.version), ("build string", described.build)):
        if not re.fullmatch(r"[A-Za-z0-9_.!+]+", text):
            raise UsageError(
                f"{text!r} is not the {title} of a conda package",
                "Use letters, digits, '_' and '.'.",
            )
    folder = Path(spec.output) / described.subdir
    return tuple(folder / f"{described.stem}.{form}" for form in spec.formats)


def _write(
    spec: CondaSpec,
    described: Description,
    entries: Sequence[Entry],
    licenses: dict[str, bytes],
    files: Sequence[Path],
    threads: int,
) -> None:
    texts = [
        entry_of(path, text.replace(_PREFIX, PLACEHOLDER).encode()) for path, text in spec.texts
    ]
    listed = {entry.path: entry for entry in (*entries, *texts)}
    ordered = [listed[path] for path in sorted(listed)]
    info = info_files(described, ordered)
    info |= {f"recipe/{name}": text.encode() for name, text in spec.record}
    info |= {f"licenses/{name}": content for name, content in licenses.items()}
    for file in files:
        write_package(ordered, info, file, date=described.date or EARLIEST, threads=threads)


def _licenses(contents: Contents) -> dict[str, bytes]:
    start = f"{contents.folder}/"
    with zipfile.ZipFile(contents.wheel.path) as archive:
        return {
            rest.removeprefix("licenses/"): archive.read(name)
            for name in contents.wheel.files
            if name.startswith(start) and _LICENSE_FILE.fullmatch(rest := name.removeprefix(start))
        }


def drop_others(described: Description, file: Path) -> None:
    """Remove what an earlier run packed under the same name and build, of another version."""
    for other in file.parent.glob(f"{described.name}-*-{described.build}.*"):
        same = other.name.rsplit("-", 2)[0] == described.name
        if same and not other.name.startswith(f"{described.stem}."):
            other.unlink()


def _pack(spec: CondaSpec) -> None:
    made = pack(spec)
    for file in made.files:
        drop_others(made.described, file)
        print(f"{file}: {file.stat().st_size / 1e6:,.1f} MB")


_LEVEL = 9
_HEADER = f"BZh{_LEVEL}".encode()
_END = 0x177245385090
_END_BITS, _SUM_BITS = 48, 32
_SUM_MASK = (1 << _SUM_BITS) - 1
# A block holds 900,000 - 19 bytes after runs were counted, which makes 5 bytes of every 4 at worst.
PIECE = (900_000 - 19) * 4 // 5 - 1


class Bzip2Writer:
    """bzip2 on every core, as one stream; the bytes are the same for any number of threads.

    Python's own runs on one core, and not every conda client reads a stream for each piece, as
    pbzip2 writes. A stream is its blocks one after the other, bit by bit, and the sum of their
    checksums: pieces of one block each are compressed side by side and put together here.
    https://github.com/dsnet/compress/blob/master/doc/bzip2-format.pdf
    """

    def __init__(self, file: IO[bytes], threads: int) -> None:
        self._file = file
        self._pool = ThreadPoolExecutor(max(1, threads))
        self._ahead = 2 * max(1, threads)
        self._running: deque[Future[bytes]] = deque()
        self._piece = bytearray()
        self._sum = 0
        # Bits that do not fill a byte yet.
        self._rest, self._rest_bits = 0, 0
        file.write(_HEADER)

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Take more to compress."""
        self._piece += data
        while len(self._piece) >= PIECE:
            self._start(bytes(self._piece[:PIECE]))
            del self._piece[:PIECE]
        return len(data)

    def _start(self, piece: bytes) -> None:
        self._running.append(self._pool.submit(bz2.compress, piece, _LEVEL))
        if len(self._running) > self._ahead:
            self._take()

    def _take(self) -> None:
        block, bits, checksum = _block(self._running.popleft().result())
        self._sum = (self._sum << 1 | self._sum >> _SUM_BITS - 1) & _SUM_MASK ^ checksum
        self._bits(block, bits)

    def _bits(self, value: int, bits: int) -> None:
        value |= self._rest << bits
        bits += self._rest_bits
        self._rest_bits = bits % 8
        self._rest = value & (1 << self._rest_bits) - 1
        self._file.write((value >> self._rest_bits).to_bytes(bits // 8, "big"))

    def close(self) -> None:
        """Write what is left and the end."""
        try:
            if self._piece:
                self._start(bytes(self._piece))
            while self._running:
                self._take()
            self._bits(_END << _SUM_BITS | self._sum, _END_BITS + _SUM_BITS)
            if self._rest_bits:
                self._file.write(bytes([self._rest << 8 - self._rest_bits]))
        finally:
            self.stop()

    def stop(self) -> None:
        """End its threads."""
        self._pool.shutdown(cancel_futures=True)


def _block(stream: bytes) -> tuple[int, int, int]:
    """The one block of a stream: its bits, how many, and its checksum."""
    value = int.from_bytes(stream[len(_HEADER) :], "big")
    bits = 8 * (len(stream) - len(_HEADER))
    tail = _END_BITS + _SUM_BITS
    last = int.from_bytes(stream[-12:], "big")
    for padding in range(8):
        if (last >> padding + _SUM_BITS) & (1 << _END_BITS) - 1 == _END:
            checksum = (last >> padding) & _SUM_MASK
            return value >> padding + tail, bits - padding - tail, checksum
    raise AssertionError("a bzip2 stream without an end")


# A torch of 588 MB: level 9 leaves a seventh less than 3; 19 another sixth, at 17 times the work.
LEVEL = 9
_CHUNK = 1 << 20
_LARGE = 1 << 31


def write_package(
    entries: Sequence[Entry],
    info: Mapping[str, bytes],
    target: Path,
    *,
    date: int = EARLIEST,
    threads: int = 1,
) -> None:
    """Write a package in the format its name ends with; `info` is by path below info/."""
    # Never unpacked into a prefix: nothing asks for their hashes.
    about = [
        Entry(f"info/{name}", len(content), "", content=content)
        for name, content in sorted(info.items())
    ]
    with writing(target.parent), whole_file(target) as file:
        if target.name.endswith(".conda"):
            _write_conda(entries, about, file, target.name.removesuffix(".conda"), date, threads)
        elif target.name.endswith(".tar.bz2"):
            packed = Bzip2Writer(file, threads)
            try:
                # First, so that a reader need not unpack the rest.
                _write_tar([*about, *entries], packed, date)
                packed.close()
            finally:
                packed.stop()
        else:
            raise UsageError(
                f"{target.name} is not the name of a conda package",
                "It ends with .conda or .tar.bz2.",
            )


def _write_conda(
    entries: Sequence[Entry],
    about: Sequence[Entry],
    file: IO[bytes],
    stem: str,
    date: int,
    threads: int,
) -> None:
    import zstandard

    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:

        def member(name: str, size: int) -> IO[bytes]:
            info = zipfile.ZipInfo(name)
            info.external_attr = 0o100644 << 16
            info.create_system = 3
            return archive.open(info, "w", force_zip64=size >= _LARGE)

        with member("metadata.json", 0) as part:
            part.write(json.dumps({"conda_pkg_format_version": 2}).encode())
        for kind, listed in (("pkg", entries), ("info", about)):
            # With one worker or more the bytes are the same; with none they are others.
            compressor = zstandard.ZstdCompressor(level=LEVEL, threads=max(1, threads))
            size = sum(entry.size for entry in listed)
            with (
                member(f"{kind}-{stem}.tar.zst", size) as part,
                compressor.stream_writer(part, closefd=False) as packed,
            ):
                _write_tar(listed, packed, date)


class _Sink(Protocol):
    def write(self, data: bytes, /) -> int: ...


def _write_tar(entries: Sequence[Entry], into: _Sink, date: int) -> None:
    """Write a tar archive; TarFile itself copies what it gathers again with every write."""
    for entry in entries:
        info = tarfile.TarInfo(entry.path)
        info.mtime = date
        if entry.target:
            info.type, info.linkname, info.mode = tarfile.SYMTYPE, entry.target, 0o777
        else:
            info.size = entry.size
            info.mode = 0o755 if entry.executable else 0o644
        into.write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict"))
        if info.size:
            _write_content(entry, into)
            into.write(bytes(-info.size % tarfile.BLOCKSIZE))
    # Two empty blocks are the end.
    into.write(bytes(2 * tarfile.BLOCKSIZE))


def _write_content(entry: Entry, into: _Sink) -> None:
    if entry.content is not None:
        into.write(entry.content)
        return
    assert entry.source is not None, entry.path
    written = 0
    with entry.source.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            into.write(chunk)
            written += len(chunk)
    if written != entry.size:
        raise UsageError(
            f"{entry.source} was changed while it was packed",
            "Pack it again when nothing writes to it.",
        )


if __name__ == "__main__":
    run_task(CondaSpec, _pack)
