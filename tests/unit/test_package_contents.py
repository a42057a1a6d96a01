"""Looking into artifacts of every kind, and into what only pretends to be one."""

from __future__ import annotations

import bz2
import io
import json
import os
import random
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from tests.unit.conftest import Run

from torchsmith.errors import UsageError, VerificationError
from torchsmith.package.contents import read_contents
from torchsmith.package.inspection import lowest_tag
from torchsmith.verify.binary import Library

pytestmark = pytest.mark.unit

METADATA = "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0+lab\nRequires-Dist: numpy>=1\n\n"
INDEX = {
    "name": "tiny",
    "version": "1.0",
    "build": "py311_0",
    "subdir": "linux-64",
    "depends": ["numpy >=1", "python 3.11.*"],
}
# Not to be compressed: a cut must hit it.
NOISE = random.Random(1).randbytes(100_000)


def wheel(folder: Path, **more: bytes) -> Path:
    path = folder / "tiny-1.0+lab-cp311-cp311-linux_x86_64.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("tiny-1.0+lab.dist-info/METADATA", METADATA)
        archive.writestr("tiny-1.0+lab.dist-info/WHEEL", "Tag: cp311-cp311-linux_x86_64\n")
        archive.writestr("tiny/noise.bin", NOISE)
        for name, content in more.items():
            archive.writestr(name, content)
    return path


def tar(files: dict[str, bytes]) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w") as archive:
        for name, content in files.items():
            item = tarfile.TarInfo(name)
            item.size = len(content)
            archive.addfile(item, io.BytesIO(content))
    return held.getvalue()


def conda(folder: Path) -> Path:
    path = folder / "tiny-1.0-py311_0.conda"
    zstd = zstandard.ZstdCompressor()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata.json", '{"conda_pkg_format_version": 2}')
        info = tar({"info/index.json": json.dumps(INDEX).encode()})
        archive.writestr("pkg-tiny-1.0-py311_0.tar.zst", zstd.compress(tar({"lib/x": NOISE})))
        archive.writestr("info-tiny-1.0-py311_0.tar.zst", zstd.compress(info))
    return path


def old_conda(folder: Path) -> Path:
    path = folder / "tiny-1.0-py311_0.tar.bz2"
    with tarfile.open(path, "w:bz2") as archive:
        for name, content in (("info/index.json", json.dumps(INDEX).encode()), ("lib/x", NOISE)):
            item = tarfile.TarInfo(name)
            item.size = len(content)
            archive.addfile(item, io.BytesIO(content))
    return path


def libtorch(folder: Path, name: str = "libtorch/lib/x") -> Path:
    path = folder / "libtorch-2.6.0-linux-x86_64.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for member, content in (("libtorch/build-version", b"2.6.0+cpu\n"), (name, NOISE)):
            item = tarfile.TarInfo(member)
            item.size = len(content)
            archive.addfile(item, io.BytesIO(content))
    return path


def test_each_kind_says_what_it_is(tmp_path: Path) -> None:
    found = read_contents(wheel(tmp_path))
    assert (found.kind, found.name, found.version) == ("wheel", "tiny", "1.0+lab")
    assert (found.label, found.requires) == ("lab", ("numpy>=1",))
    assert found.files == 3
    for path in (conda(tmp_path), old_conda(tmp_path)):
        found = read_contents(path)
        assert (found.kind, found.name, found.version) == ("conda package", "tiny", "1.0")
        assert (found.build, found.subdir) == ("py311_0", "linux-64")
        assert found.requires == ("numpy >=1", "python 3.11.*")
    found = read_contents(libtorch(tmp_path))
    assert (found.kind, found.name, found.version) == ("libtorch archive", "libtorch", "2.6.0+cpu")


def test_each_kind_is_described_for_scripts(tmp_path: Path, run: Run) -> None:
    for path, python in (
        (wheel(tmp_path), "3.11"),
        (conda(tmp_path), "3.11"),
        (libtorch(tmp_path), ""),
    ):
        code, out, _ = run("inspect", "--json", str(path))
        assert code == 0
        told = json.loads(out)["artifact"]
        assert told["python"] == python
        assert told["signature"]["state"] == "unsigned"
        assert told["libraries"]["count"] == 0


@pytest.mark.parametrize("make", [wheel, conda, old_conda, libtorch])
def test_what_was_cut_short_is_refused(
    tmp_path: Path, run: Run, make: Callable[[Path], Path]
) -> None:
    path = make(tmp_path)
    whole = path.read_bytes()
    for share in (0, 1, 7, 50, 90, 99):
        path.write_bytes(whole[: len(whole) * share // 100])
        with pytest.raises(VerificationError, match="cannot be read"):
            read_contents(path)
    code, out, err = run("inspect", str(path))
    assert (code, out) == (9, "")
    assert "cut short or damaged" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("make", [wheel, conda, old_conda, libtorch])
def test_what_was_damaged_is_refused_or_read_and_never_ends_in_a_bug(
    tmp_path: Path, make: Callable[[Path], Path]
) -> None:
    path = make(tmp_path)
    whole = path.read_bytes()
    chance = random.Random(7)
    refused = 0
    for _ in range(60):
        content = bytearray(whole)
        for _ in range(chance.choice((1, 3, 20))):
            content[chance.randrange(len(content))] = chance.randrange(256)
        path.write_bytes(content)
        try:
            read_contents(path)
        except VerificationError:
            refused += 1
    assert refused


def test_a_name_that_leads_out_is_refused(tmp_path: Path) -> None:
    with pytest.raises(VerificationError, match="leads out of it"):
        read_contents(wheel(tmp_path, **{"../../etc/passwd": b"x"}))
    with pytest.raises(VerificationError, match="leads out of it"):
        read_contents(libtorch(tmp_path, "/etc/passwd"))


@pytest.mark.parametrize("name", ["", "."])
def test_a_file_without_a_name_is_refused(tmp_path: Path, name: str) -> None:
    path = wheel(tmp_path)
    with zipfile.ZipFile(path, "a") as archive:
        info = zipfile.ZipInfo("x")
        info.filename = name
        archive.writestr(info, "x")
    with pytest.raises(VerificationError):
        read_contents(path)


def test_a_description_nested_without_end_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiny-1.0-py311_0.tar.bz2"
    deep = b"[" * 500_000
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        info = tarfile.TarInfo("info/index.json")
        info.size = len(deep)
        archive.addfile(info, io.BytesIO(deep))
    path.write_bytes(bz2.compress(tar.getvalue()))
    with pytest.raises(VerificationError, match="does not describe itself"):
        read_contents(path)


def test_a_hostile_library_is_called_damaged_and_writes_to_no_terminal(
    tmp_path: Path, run: Run
) -> None:
    # A header of a 64-bit library whose segments begin where no file does.
    header = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00\x3e\x00\x01\x00\x00\x00"
    sizes = b"\x40\x00\x38\x00\x09\x00\x40\x00\x09\x00\x00\x00"
    header += bytes(8) + b"\xff" * 16 + bytes(4) + sizes
    path = wheel(tmp_path, **{"tiny/\x1b[2Jodd.so": header})
    (packed,) = read_contents(path).libraries
    assert packed.library.broken
    code, out, _ = run("inspect", str(path))
    assert code == 0
    assert "damaged" in out
    assert "\x1b" not in out


def test_a_bomb_is_refused_before_it_goes_off(tmp_path: Path) -> None:
    path = tmp_path / "libtorch-9-linux-x86_64.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("libtorch/build-version", "9")
        archive.writestr("libtorch/lib/zeros", bytes(100 << 20))
    with pytest.raises(VerificationError, match="far more"):
        read_contents(path)


@pytest.mark.parametrize("name", ["tiny-1.0-0.tar.bz2", "tiny-1.0-0.conda"])
def test_a_packed_header_that_unfolds_too_far_is_refused(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchsmith.sources.unfolding._FREE_BYTES", 1 << 16)
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        # Before its content, tarfile reads a member's long name into memory.
        archive.addfile(tarfile.TarInfo("a" * (1 << 20)))
    path = tmp_path / name
    if name.endswith(".conda"):
        with zipfile.ZipFile(path, "w") as outer:
            outer.writestr("info-tiny.tar.zst", zstandard.compress(tar.getvalue()))
    else:
        path.write_bytes(bz2.compress(tar.getvalue(), 1))
    with pytest.raises(VerificationError, match=r"far more|a name or an attribute"):
        read_contents(path)


def test_a_sparse_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "libtorch-9-linux-x86_64.tar.gz"
    member = tarfile.TarInfo("libtorch/holes")
    member.pax_headers = {"GNU.sparse.size": str(1 << 24), "GNU.sparse.map": f"0,0,{1 << 24},0"}
    with tarfile.open(path, "w:gz") as archive:
        archive.addfile(member)
    with pytest.raises(VerificationError, match="sparse"):
        read_contents(path)


def test_what_does_not_describe_itself_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny.py", "")
    with pytest.raises(VerificationError, match="does not describe itself"):
        read_contents(path)
    (tmp_path / "notes.txt").write_text("x", encoding="utf-8")
    with pytest.raises(UsageError, match="not an artifact"):
        read_contents(tmp_path / "notes.txt")
    os.mkfifo(tmp_path / "endless-1-py3-none-any.whl")
    with pytest.raises(UsageError, match="is not a file"):
        read_contents(tmp_path / "endless-1-py3-none-any.whl")
    with pytest.raises(UsageError, match="does not exist"):
        read_contents(tmp_path / "none.whl")


def needing(glibc: str, libstdcxx: str = "") -> list[Library]:
    families = {"GLIBC": glibc, "GLIBCXX": libstdcxx}
    return [Library("x.so", versions={name: text for name, text in families.items() if text})]


def test_the_lowest_tag_is_the_first_that_has_all_that_is_needed() -> None:
    assert lowest_tag(needing("2.17"), "x86_64") == "manylinux_2_17_x86_64"
    assert lowest_tag(needing("2.2.5"), "x86_64") == "manylinux_2_5_x86_64"
    # Nothing older than 2014's is for other machines.
    assert lowest_tag(needing("2.2.5"), "aarch64") == "manylinux_2_17_aarch64"
    # The C++ library is what asks for more.
    assert lowest_tag(needing("2.17", "3.4.28"), "x86_64") == "manylinux_2_31_x86_64"
    assert lowest_tag(needing("2.29"), "x86_64") == "manylinux_2_29_x86_64"
    assert lowest_tag(needing("2.41"), "x86_64") == "manylinux_2_41_x86_64"
    assert lowest_tag(needing("2.17", "3.4.99"), "x86_64") == ""
