"""Packing wheels: what comes out is read by others, and is the same on any number of cores."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import random
import stat
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import pytest

from torchsmith.errors import UsageError
from torchsmith.package import UNCOMPRESSED, pack
from torchsmith.package.pack import EARLIEST, compress_wheel, pack_folder

pytestmark = pytest.mark.unit

RECORD = "some-1.0.dist-info/RECORD"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """An unpacked wheel of files of many kinds."""
    folder = tmp_path / "tree"
    (folder / "some/lib").mkdir(parents=True)
    (folder / "some-1.0.dist-info").mkdir()
    chance = random.Random(1)
    (folder / "some/lib/a.so").write_bytes(bytes(chance.choices(b"abcd", k=200_000)))
    (folder / "some/noise.bin").write_bytes(chance.randbytes(50_000))
    (folder / "some/empty.py").write_bytes(b"")
    (folder / "some/a, b é.py").write_text("x = 1\n")
    (folder / "some/run").write_text("#!/bin/sh\n")
    (folder / "some/run").chmod(0o775)
    (folder / "some-1.0.dist-info/METADATA").write_text("Name: some\nVersion: 1.0\n")
    (folder / RECORD).write_text("out of date\n")
    return folder


def contents(wheel: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(wheel) as opened:
        assert opened.testzip() is None
        return {name: opened.read(name) for name in opened.namelist()}


def test_a_reader_finds_every_file_and_the_record_is_true(tree: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "some-1.0-py3-none-any.whl"
    pack_folder(tree, wheel)
    found = contents(wheel)
    files = {path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file()}
    assert set(found) == files
    for name in files - {RECORD}:
        assert found[name] == (tree / name).read_bytes()
    rows = {row[0]: row[1:] for row in csv.reader(io.StringIO(found[RECORD].decode()))}
    assert set(rows) == files
    assert rows[RECORD] == ["", ""]
    for name in files - {RECORD}:
        digest = base64.urlsafe_b64encode(hashlib.sha256(found[name]).digest())
        assert rows[name] == [f"sha256={digest.rstrip(b'=').decode()}", str(len(found[name]))]
    # https://packaging.python.org/en/latest/specifications/binary-distribution-format/
    assert list(found)[-2:] == ["some-1.0.dist-info/METADATA", RECORD]


def test_modes_are_normal_and_noise_is_stored(tree: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "some.whl"
    pack_folder(tree, wheel)
    with zipfile.ZipFile(wheel) as opened:
        modes = {info.filename: info.external_attr >> 16 for info in opened.infolist()}
        kinds = {info.filename: info.compress_type for info in opened.infolist()}
    assert modes["some/run"] == stat.S_IFREG | 0o755
    assert modes["some/lib/a.so"] == stat.S_IFREG | 0o644
    assert kinds["some/noise.bin"] == zipfile.ZIP_STORED
    assert kinds["some/lib/a.so"] == zipfile.ZIP_DEFLATED


def test_the_bytes_do_not_depend_on_threads_or_dates(tree: Path, tmp_path: Path) -> None:
    made = []
    for threads in (1, 2, 7):
        wheel = tmp_path / f"{threads}.whl"
        for path in tree.rglob("*"):
            os.utime(path, (threads * 10**9, threads * 10**9))
        pack_folder(tree, wheel, threads=threads)
        made.append(wheel.read_bytes())
    assert made[0] == made[1] == made[2]


def stored(tree: Path, wheel: Path, kind: int) -> None:
    with zipfile.ZipFile(wheel, "w", kind) as opened:
        for path in sorted(tree.rglob("*")):
            if path.is_file():
                info = zipfile.ZipInfo(path.relative_to(tree).as_posix(), (2025, 1, 29, 18, 7, 2))
                info.external_attr = path.stat().st_mode << 16
                info.compress_type = kind
                opened.writestr(info, path.read_bytes())


def test_a_wheel_packed_without_compression_is_compressed(tree: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "some.whl"
    stored(tree, wheel, zipfile.ZIP_STORED)
    before, large = contents(wheel), wheel.stat().st_size
    assert compress_wheel(wheel)
    after = contents(wheel)
    assert {**before, RECORD: b""} == {**after, RECORD: b""}
    assert wheel.stat().st_size < large
    with zipfile.ZipFile(wheel) as opened:
        assert {info.date_time for info in opened.infolist()} == {(2025, 1, 29, 18, 7, 2)}


def test_a_compressed_wheel_stays_as_it_is(tree: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "some.whl"
    stored(tree, wheel, zipfile.ZIP_DEFLATED)
    before = wheel.read_bytes()
    assert not compress_wheel(wheel)
    assert wheel.read_bytes() == before


def test_a_wheel_that_tells_when_and_by_whom_it_was_packed_is_packed_anew(
    tree: Path, tmp_path: Path
) -> None:
    digests = set()
    for mode in (0o600, 0o664):
        (tree / "some/lib/a.so").chmod(mode)
        wheel = tmp_path / f"some-{mode}.whl"
        stored(tree, wheel, zipfile.ZIP_DEFLATED)
        assert compress_wheel(wheel, latest=(2024, 1, 1, 0, 0, 0))
        assert not compress_wheel(wheel, latest=(2024, 1, 1, 0, 0, 0))
        digests.add(hashlib.sha256(wheel.read_bytes()).hexdigest())
    assert len(digests) == 1


def test_what_is_no_wheel_is_refused_and_nothing_is_left(tree: Path, tmp_path: Path) -> None:
    (tree / RECORD).unlink()
    with pytest.raises(UsageError, match="0 files named"):
        pack_folder(tree, tmp_path / "some.whl")
    assert {path.name for path in tmp_path.iterdir()} == {"tree"}


def test_a_failure_half_way_leaves_what_was_there(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "some.whl"
    wheel.write_bytes(b"the one before")

    def fail(self: Path) -> bytes:
        raise OSError("gone")

    monkeypatch.setattr(Path, "read_bytes", fail)
    with pytest.raises(OSError, match="gone"):
        pack_folder(tree, wheel)
    monkeypatch.undo()
    assert wheel.read_bytes() == b"the one before"
    assert {path.name for path in tmp_path.iterdir()} == {"tree", "some.whl"}


def test_many_members_are_counted_with_64_bits(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack, "_LIMIT_16", 3)
    wheel = tmp_path / "some.whl"
    pack_folder(tree, wheel)
    assert b"PK\6\6" in wheel.read_bytes()
    assert len(contents(wheel)) == 7


def test_members_beyond_four_gigabytes_are_found(tmp_path: Path) -> None:
    place = tmp_path / "large.zip"
    with place.open("wb") as file:
        # As if that much were written: a hole, which takes no room.
        file.seek(5 << 30)
        writer = pack.ZipWriter(file, EARLIEST)
        writer._offset = 5 << 30
        for name in ("a", "b"):
            data = name.encode() * 100
            writer.add(pack.Packed(name, 0o100644, zlib.crc32(data), 100, data, False))
        writer.close()
    assert contents(place) == {"a": b"a" * 100, "b": b"b" * 100}


def test_setuptools_leaves_the_compressing_to_us(tmp_path: Path) -> None:
    (tmp_path / "some.py").write_text("x = 1\n" * 1000)
    setup = "from setuptools import setup; setup(name='some', version='1.0', py_modules=['some'])"
    (tmp_path / "setup.py").write_text(setup)
    subprocess.run(
        [sys.executable, "-W", "ignore", "setup.py", "--quiet", "bdist_wheel"],
        cwd=tmp_path,
        env={**os.environ, "DIST_EXTRA_CONFIG": str(UNCOMPRESSED)},
        check=True,
        capture_output=True,
    )
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    large, before = wheel.stat().st_size, contents(wheel)
    assert compress_wheel(wheel)
    assert wheel.stat().st_size < large / 2
    # RECORD has the same lines, in the order of the archive.
    after = contents(wheel)
    assert sorted(before.pop(RECORD).split()) == sorted(after.pop(RECORD).split())
    assert before == after
