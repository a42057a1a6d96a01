"""Archives made to do harm do none, and honest ones come out whole."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import lzma
import os
import random
import stat
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard

from torchsmith.errors import SourceError
from torchsmith.resolve.models import SourceChoice
from torchsmith.sources.extract import Limits, extract
from torchsmith.sources.fetch import fetch

pytestmark = pytest.mark.unit

PACKERS = (bytes, gzip.compress, bz2.compress, lzma.compress, zstandard.compress)


def member(name: str, content: bytes = b"", **fields: object) -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info, content


def folder(name: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.DIRTYPE, mode=0o755)


def link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.SYMTYPE, linkname=target)


def hard(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return member(name, type=tarfile.LNKTYPE, linkname=target)


def tar_bytes(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for info, content in members:
            tar.addfile(info, io.BytesIO(content))
    return file.getvalue()


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def unpacked(archive: Path, **options: object) -> Path:
    destination = archive.parent / "tree"
    destination.mkdir()
    extract(archive, destination, **options)  # type: ignore[arg-type]
    return destination


HONEST = (
    folder("pkg-1.0"),
    folder("pkg-1.0/empty"),
    member("pkg-1.0/a.txt", b"alpha", mtime=1_000_000_000),
    member("pkg-1.0/sub/run", b"#!/bin/sh\n", mode=0o755),
    link("pkg-1.0/sub/up", "../a.txt"),
    hard("pkg-1.0/again", "pkg-1.0/a.txt"),
)


@pytest.mark.parametrize("pack", PACKERS)
def test_every_packing_comes_out_whole_without_its_top_folder(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    tree = unpacked(written(tmp_path / "any.name", pack(tar_bytes(*HONEST))))
    assert names(tree) == ["a.txt", "again", "empty", "sub"]
    assert (tree / "a.txt").read_bytes() == b"alpha"
    assert (tree / "a.txt").stat().st_mtime == 1_000_000_000
    assert (tree / "sub/up").readlink() == Path("../a.txt")
    assert os.access(tree / "sub/run", os.X_OK)
    # A hard link would let a change of one file change the other.
    assert (tree / "again").read_bytes() == b"alpha"
    assert (tree / "again").stat().st_nlink == 1


def test_several_top_entries_are_kept(tmp_path: Path) -> None:
    tree = unpacked(written(tmp_path / "x.tar", tar_bytes(member("a", b"1"), member("b/c", b"2"))))
    assert names(tree) == ["a", "b"]


def test_a_top_folder_may_hold_a_folder_of_its_own_name(tmp_path: Path) -> None:
    tree = unpacked(written(tmp_path / "x.tar", tar_bytes(member("fmt/fmt/a", b"1"))))
    assert (tree / "fmt/a").read_bytes() == b"1"


def test_special_bits_stay_behind(tmp_path: Path) -> None:
    tree = unpacked(written(tmp_path / "x.tar", tar_bytes(member("p/su", b"x", mode=0o6777))))
    assert stat.S_IMODE((tree / "su").stat().st_mode) & 0o7022 == 0


HOSTILE_TARS = {
    "absolute": ([member("/tmp/evil", b"x")], "absolute"),
    "climbing": ([member("p/../../evil", b"x")], "climbs"),
    "absolute link": ([link("p/l", "/etc/passwd")], "out of the tree"),
    "climbing link": ([link("p/l", "../../evil")], "out of the tree"),
    "link out of the stripped folder": ([folder("p"), link("p/l", "../p/x")], "leads out"),
    "link through a link": (
        [link("p/a/b/up", "../.."), link("p/evil", "a/b/up/../.."), member("p/f", b"")],
        "leads out",
    ),
    "written through a link": ([link("p/d", "."), member("p/d/f", b"x")], "behind the link"),
    "link over a file": ([member("p/f", b"x"), link("p/f", "g")], "twice"),
    "file over a link": ([link("p/f", "g"), member("p/f", b"x")], "twice"),
    "twice": ([member("p/f", b"x"), member("p/f", b"y")], "twice"),
    "folder over a file": ([member("p/f", b"x"), folder("p/f")], "name of a file"),
    "below a file": ([member("p/f", b"x"), member("p/f/g", b"y")], "below a file"),
    "no name": ([member("./", b"x")], "no name"),
    "hard link out": ([hard("p/h", "/etc/passwd")], "absolute"),
    "hard link climbing": ([hard("p/h", "../../etc/passwd")], "climbs"),
    "hard link to nothing": ([hard("p/h", "p/none")], "hard link"),
    "hard link to a link": ([link("p/l", "f"), hard("p/h", "p/l")], "twice|hard link"),
    "device": ([member("p/null", type=tarfile.CHRTYPE)], "special file"),
    "pipe": ([member("p/pipe", type=tarfile.FIFOTYPE)], "special file"),
}


@pytest.mark.parametrize("case", HOSTILE_TARS)
def test_a_hostile_tar_is_refused_by_name_and_leaves_nothing(tmp_path: Path, case: str) -> None:
    members, message = HOSTILE_TARS[case]
    archive = written(tmp_path / "hostile.tar.gz", gzip.compress(tar_bytes(*members)))
    destination = tmp_path / "tree"
    destination.mkdir()
    with pytest.raises(SourceError, match=message) as caught:
        extract(archive, destination)
    assert "hostile.tar.gz" in caught.value.message
    assert not any(destination.iterdir())
    assert names(tmp_path) == ["hostile.tar.gz", "tree"]


def zip_bytes(*members: tuple[str, bytes, int]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content, mode in members:
            info = zipfile.ZipInfo(name, (2020, 1, 2, 3, 4, 6))
            info.external_attr = mode << 16
            archive.writestr(info, content, zipfile.ZIP_DEFLATED)
    return file.getvalue()


def test_a_zip_comes_out_whole(tmp_path: Path) -> None:
    content = zip_bytes(
        ("p/", b"", 0o40755),
        ("p/run", b"#!/bin/sh\n", 0o104755),
        ("p/plain", b"x", 0),
        ("p/l", b"plain", stat.S_IFLNK | 0o777),
    )
    tree = unpacked(written(tmp_path / "x.zip", content))
    assert stat.S_IMODE((tree / "run").stat().st_mode) & 0o7111 == 0o111
    assert (tree / "l").read_bytes() == b"x"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (zip_bytes(("../evil", b"x", 0o644)), "climbs"),
        (zip_bytes(("/evil", b"x", 0o644)), "absolute"),
        (zip_bytes(("p/l", b"/etc", stat.S_IFLNK | 0o777)), "out of the tree"),
        (zip_bytes(("p/l", b".", stat.S_IFLNK), ("p/l/f", b"x", 0)), "behind the link"),
        (zip_bytes(("p/dev", b"", stat.S_IFCHR | 0o644)), "special file"),
        (zip_bytes(("p/f", b"x" * 100, 0o644))[:-30], "cannot be unpacked"),
    ],
)
def test_a_hostile_zip_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    archive = written(tmp_path / "x.zip", content)
    destination = tmp_path / "tree"
    destination.mkdir()
    with pytest.raises(SourceError, match=message):
        extract(archive, destination)
    assert not any(destination.iterdir())


def test_a_sparse_file_is_refused_before_it_is_written(tmp_path: Path) -> None:
    holes = {"GNU.sparse.size": str(1 << 30), "GNU.sparse.map": f"0,0,{1 << 30},0"}
    archive = gzip.compress(tar_bytes(member("p/holes", pax_headers=holes)))
    destination = tmp_path / "tree"
    destination.mkdir()
    with pytest.raises(SourceError, match="sparse"):
        extract(written(tmp_path / "bomb", archive), destination)
    assert not any(destination.iterdir())


SMALL = Limits(total_bytes=1 << 20, ratio=10, ratio_from_bytes=1 << 16, members=50)


@pytest.mark.parametrize(
    "content",
    [
        gzip.compress(tar_bytes(member("p/zeros", bytes(900_000)))),
        tar_bytes(member("p/big", os.urandom(1 << 21))),
        gzip.compress(tar_bytes(*(member(f"p/{n}") for n in range(60)))),
        zip_bytes(("p/zeros", bytes(900_000), 0o644)),
        # A hard link is a few bytes and a whole file.
        tar_bytes(member("p/a", os.urandom(400_000)), *(hard(f"p/{n}", "p/a") for n in range(4))),
        # The same within the limit on the total, but far past what so small an archive holds.
        gzip.compress(
            tar_bytes(member("p/a", bytes(30_000)), *(hard(f"p/{n}", "p/a") for n in range(20)))
        ),
        # Past the archive's end, where no member tells of it.
        gzip.compress(tar_bytes(member("p/a", b"x")) + bytes(4 << 20)),
    ],
)
def test_a_bomb_is_stopped(tmp_path: Path, content: bytes) -> None:
    destination = tmp_path / "tree"
    destination.mkdir()
    with pytest.raises(SourceError, match=r"unfolds|members"):
        extract(written(tmp_path / "bomb", content), destination, limits=SMALL)
    assert not any(destination.iterdir())


@pytest.mark.parametrize("pack", PACKERS)
def test_a_truncated_archive_is_refused(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    content = pack(
        tar_bytes(member("p/a", os.urandom(100_000)), member("p/b", os.urandom(100_000)))
    )
    destination = tmp_path / "tree"
    destination.mkdir()
    with pytest.raises(SourceError, match="cannot be unpacked"):
        extract(written(tmp_path / "short", content[: len(content) * 2 // 3]), destination)
    assert not any(destination.iterdir())


@pytest.mark.parametrize("original", [tar_bytes(*HONEST), zip_bytes(("p/f", b"x" * 99, 0o644))])
def test_damage_anywhere_is_refused_or_harmless(tmp_path: Path, original: bytes) -> None:
    chance = random.Random(1)
    for attempt in range(300):
        content = bytearray(original)
        for _ in range(chance.randint(1, 8)):
            content[chance.randrange(min(len(content), 4096))] = chance.choice(b"\0\xff/.0179xgKL")
        destination = tmp_path / str(attempt)
        destination.mkdir()
        try:
            extract(written(tmp_path / "damaged", bytes(content)), destination)
        except SourceError:
            assert not any(destination.iterdir())
    outside = {path.name for path in tmp_path.iterdir()} - {str(n) for n in range(300)}
    assert outside == {"damaged"}


def test_a_date_beyond_all_reason_does_no_harm(tmp_path: Path) -> None:
    for name, mtime in (("inf", "inf"), ("nan", "nan"), ("old", "-1e30"), ("far", "1e300")):
        (tmp_path / name).mkdir()
        info, content = member("p/f", b"x")
        info.pax_headers = {"mtime": mtime}
        archive = written(tmp_path / f"{name}.tar", tar_bytes((info, content)))
        extract(archive, tmp_path / name)
        assert (tmp_path / name / "f").read_bytes() == b"x"


@pytest.mark.parametrize(
    "content", [b"", b"not an archive at all" * 100, b"\x1f\x8b rubbish", b"BZh9x"]
)
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes) -> None:
    destination = tmp_path / "tree"
    destination.mkdir()
    with pytest.raises(SourceError):
        extract(written(tmp_path / "thing", content), destination)
    assert not any(destination.iterdir())


def test_an_archive_on_disk_is_unpacked_only_if_its_hash_is_right(tmp_path: Path) -> None:
    archive = written(tmp_path / "x.tar.gz", gzip.compress(tar_bytes(*HONEST)))
    sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
    good = SourceChoice("archive", path=str(archive), sha256=sha256)
    brought = fetch(good, tmp_path / "good", cache=tmp_path / "cache")
    assert brought.evidence["sha256"] == sha256
    by_url = SourceChoice("archive", url=archive.as_uri(), sha256=sha256)
    assert fetch(by_url, tmp_path / "url", cache=tmp_path / "cache").evidence == brought.evidence
    wrong = SourceChoice("archive", path=str(archive), sha256="0" * 64)
    with pytest.raises(SourceError, match=sha256):
        fetch(wrong, tmp_path / "wrong", cache=tmp_path / "cache")
    assert not any((tmp_path / "wrong").iterdir())


def test_folders_of_git_in_an_archive_are_left_out(tmp_path: Path) -> None:
    # They would say which commit it is of, and their settings name programs that git runs.
    hidden = (".git/HEAD", ".git/config", "sub/.git", "sub/deep/.GIT/HEAD", ".gitignore")
    packed = tar_bytes(
        *(member(f"near/{name}", b"x") for name in hidden), link("near/l/.git", "..")
    )
    archive = written(tmp_path / "x.tar", packed)
    sha256 = hashlib.sha256(packed).hexdigest()
    fetch(
        SourceChoice("archive", path=str(archive), sha256=sha256),
        tmp_path / "tree",
        cache=tmp_path / "cache",
    )
    files = [path for path in (tmp_path / "tree").rglob("*") if path.name != ".gitignore"]
    assert not [path for path in files if path.name.lower() == ".git"]
    assert (tmp_path / "tree/.gitignore").is_file()


def test_an_archive_without_a_hash_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="sha256"):
        fetch(SourceChoice("archive", path="/x"), tmp_path / "tree", cache=tmp_path / "cache")


def test_a_debian_package_gives_what_it_installs(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as tar:
        member = tarfile.TarInfo("./usr/include/ideep.hpp")
        member.size = 3
        tar.addfile(member, io.BytesIO(b"hpp"))
    deb = tmp_path / "x.deb"
    with deb.open("wb") as file:
        file.write(b"!<arch>\n")
        for name, content in (
            ("debian-binary", b"2.0\n"),
            ("control.tar.xz", b"odd"),
            ("data.tar.xz", packed.getvalue()),
        ):
            file.write(f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(content):<10}`\n".encode())
            file.write(content + b"\n" * (len(content) % 2))
    (tmp_path / "tree").mkdir()
    extract(deb, tmp_path / "tree")
    assert (tmp_path / "tree/include/ideep.hpp").read_bytes() == b"hpp"
    deb.write_bytes(deb.read_bytes()[:90])
    (tmp_path / "cut").mkdir()
    with pytest.raises(SourceError, match="cannot be unpacked"):
        extract(deb, tmp_path / "cut")
    assert not any((tmp_path / "cut").iterdir())


@pytest.mark.parametrize(
    "kind", [tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE]
)
def test_a_name_without_end_is_not_read_into_memory(tmp_path: Path, kind: bytes) -> None:
    archive = tmp_path / "a.tar.gz"
    about = tarfile.TarInfo("about")
    about.type, about.size = kind, 60 << 20
    with gzip.open(archive, "wb") as file:
        file.write(about.tobuf(tarfile.GNU_FORMAT))
        for _ in range(60):
            file.write(b"a" * (1 << 20))
        file.write(tarfile.TarInfo("x").tobuf())
    (tmp_path / "out").mkdir()
    tracemalloc.start()
    try:
        with pytest.raises(SourceError, match=f"a name or an attribute of {60 << 20} bytes"):
            extract(archive, tmp_path / "out")
        assert tracemalloc.get_traced_memory()[1] < 20 << 20
    finally:
        tracemalloc.stop()
