"""Conda archives: one tree is one file, whoever writes it; nothing half-written is left."""

from __future__ import annotations

import bz2
import contextlib
import io
import json
import os
import random
import resource
import signal
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from torchsmith.errors import DiskFullError, OutputError, UsageError
from torchsmith.package.conda.pack import PIECE, Bzip2Writer, pack
from torchsmith.package.conda.tree import PLACEHOLDER, read_tree
from torchsmith.plan.conda import CondaSpec

pytestmark = pytest.mark.unit

BUILD_PREFIX = "/opt/" + "env_" * 40
# More than one piece for any of the compressors.
LARGE = random.Random(1).randbytes(400_000).hex().encode()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path / "tree")


def make_tree(root: Path) -> Path:
    """A prefix with files of many kinds."""
    (root / "lib").mkdir(parents=True)
    (root / "bin").mkdir()
    (root / "lib/large.bin").write_bytes(LARGE)
    (root / "lib/é, b.txt").write_text("x")
    (root / "lib/empty").write_bytes(b"")
    (root / "bin/run").write_text(f"#!{BUILD_PREFIX}/bin/python\n")
    (root / "bin/run").chmod(0o700)
    (root / "lib/real.so").write_bytes(b"\0" + BUILD_PREFIX.encode() + b"/lib\0")
    (root / "lib/link.so").symlink_to("real.so")
    (root / "lib/absolute.so").symlink_to(f"{BUILD_PREFIX}/bin/run")
    (root / ("deep/" * 25)).mkdir(parents=True)
    (root / ("deep/" * 25) / "file").write_text("deep")
    return root


def spec(tree: Path, output: Path, archive: str = "conda") -> CondaSpec:
    return CondaSpec(
        output=str(output),
        name="some",
        version="1.0",
        build="h_0",
        subdir="linux-64",
        formats=(archive,),
        tree=str(tree),
        prefix=BUILD_PREFIX,
    )


def tar_of(package: Path) -> dict[str, tarfile.TarInfo]:
    """Every member of a package, both parts of it."""
    content = b""
    found: dict[str, tarfile.TarInfo] = {}
    if package.suffix == ".conda":
        with zipfile.ZipFile(package) as archive:
            first, *parts = archive.namelist()
            assert first == "metadata.json"
            assert json.loads(archive.read(first)) == {"conda_pkg_format_version": 2}
            streams = [
                zstandard.ZstdDecompressor().stream_reader(archive.read(name)).read()
                for name in parts
            ]
    else:
        content = package.read_bytes()
        streams = [bz2.decompress(content)]
    for stream in streams:
        with tarfile.open(fileobj=io.BytesIO(stream)) as tar:
            found |= {info.name: info for info in tar}
    return found


@pytest.mark.parametrize("archive", ["conda", "tar.bz2"])
def test_threads_umask_dates_and_order_change_no_byte(archive: str, tmp_path: Path) -> None:
    made = set()
    before = os.umask(0o022)
    try:
        for threads, umask in ((1, 0o022), (2, 0o077), (5, 0o002)):
            os.umask(umask)
            tree = make_tree(tmp_path / f"tree-{threads}")
            os.utime(tree / "lib/large.bin", (threads, threads))
            packed = pack(spec(tree, tmp_path / f"{threads}", archive), threads=threads)
            made.add(packed.files[0].read_bytes())
    finally:
        os.umask(before)
    assert len(made) == 1


def test_threads_change_no_byte_of_what_keeps_several_of_them_busy(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    # zstd hands out 32 MiB at a time.
    (tree / "large").write_bytes(LARGE * 100)
    made = {
        pack(spec(tree, tmp_path / f"{threads}"), threads=threads).files[0].read_bytes()
        for threads in (1, 3)
    }
    assert len(made) == 1


@pytest.mark.parametrize("archive", ["conda", "tar.bz2"])
def test_members_are_normal_and_every_file_is_there(
    tree: Path, tmp_path: Path, archive: str
) -> None:
    (package,) = pack(spec(tree, tmp_path / "out", archive)).files
    members = tar_of(package)
    files = {name for name in members if not name.startswith("info/")}
    there = {
        path.relative_to(tree).as_posix()
        for path in tree.rglob("*")
        if path.is_symlink() or path.is_file()
    }
    assert files == there
    assert {info.mtime for info in members.values()} == {315532800}
    assert {(info.uid, info.gid, info.uname) for info in members.values()} == {(0, 0, "")}
    assert {info.mode for name, info in members.items() if name == "bin/run"} == {0o755}
    assert members["lib/link.so"].linkname == "real.so"
    assert members["lib/absolute.so"].linkname == "../bin/run"
    about = {name for name in members if name.startswith("info/")}
    wanted = {"index.json", "paths.json", "about.json", "files", "has_prefix", "hash_input.json"}
    assert about == {f"info/{name}" for name in wanted}


def test_a_prefix_is_named_in_text_and_in_binaries(tree: Path) -> None:
    found = {entry.path: entry for entry in read_tree(tree, prefix=BUILD_PREFIX)}
    run, library = found["bin/run"], found["lib/real.so"]
    assert (run.mode, run.placeholder) == ("text", PLACEHOLDER)
    assert run.content == f"#!{PLACEHOLDER}/bin/python\n".encode()
    assert (library.mode, library.placeholder) == ("binary", BUILD_PREFIX)
    assert found["lib/large.bin"].mode == ""
    ignored = {
        entry.path: entry for entry in read_tree(tree, prefix=BUILD_PREFIX, ignore=["lib/*"])
    }
    assert ignored["lib/real.so"].mode == ""


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"x",
        LARGE[:PIECE],
        LARGE[: PIECE + 1],
        LARGE * 2,
        # Runs of four are what bzip2 makes five bytes of: they are all that fits into a block.
        b"".join(bytes([number % 251] * 4) for number in range(PIECE // 4 + 9)),
    ],
    ids=len,
)
def test_bzip2_on_many_threads_is_one_stream(data: bytes) -> None:
    file = io.BytesIO()
    writer = Bzip2Writer(file, 3)
    for start in range(0, len(data), 300_000):
        writer.write(data[start : start + 300_000])
    writer.close()
    # One decompressor reads one stream, and leaves nothing.
    reader = bz2.BZ2Decompressor()
    assert reader.decompress(file.getvalue()) == data
    assert reader.eof
    assert reader.unused_data == b""


# ------------------------------------------------------------------------------ bad input


def refused(tree: Path, tmp_path: Path, prefix: str = BUILD_PREFIX) -> UsageError:
    import msgspec

    with pytest.raises(UsageError) as told:
        pack(msgspec.structs.replace(spec(tree, tmp_path / "out"), prefix=prefix))
    assert list(tmp_path.glob("out/**/*.conda")) == []
    assert list(tmp_path.glob("out/**/.*")) == []
    assert told.value.hint
    return told.value


def test_a_name_that_is_not_utf_8_is_refused(tree: Path, tmp_path: Path) -> None:
    (tree / os.fsdecode(b"caf\xe9")).write_text("x")
    assert "not UTF-8" in refused(tree, tmp_path).message


@pytest.mark.parametrize("target", ["/etc/passwd", "../../outside", "../info/index.json"])
def test_a_link_out_of_the_tree_is_refused(tree: Path, tmp_path: Path, target: str) -> None:
    (tree / "lib/out").symlink_to(target)
    assert refused(tree, tmp_path).message


def test_a_folder_that_is_condas_own_is_refused(tree: Path, tmp_path: Path) -> None:
    (tree / "info").mkdir()
    (tree / "info/index.json").write_text("{}")
    assert "records" in refused(tree, tmp_path).message


def test_a_pipe_is_refused(tree: Path, tmp_path: Path) -> None:
    os.mkfifo(tree / "lib/pipe")
    assert "neither a file nor a link" in refused(tree, tmp_path).message


@pytest.mark.parametrize(
    ("prefix", "said"),
    [("/opt/" + "x" * 300, "255"), ("/opt/env", "none that is longer")],
    ids=["long", "short"],
)
def test_a_prefix_in_a_binary_that_could_not_be_replaced_is_refused(
    tree: Path, tmp_path: Path, prefix: str, said: str
) -> None:
    (tree / "lib/absolute.so").unlink()
    (tree / "lib/other.so").write_bytes(b"\0" + prefix.encode() + b"/lib\0")
    assert said in refused(tree, tmp_path, prefix).message


@pytest.mark.parametrize("prefix", ["/", "relative", "/opt/"])
def test_what_is_no_prefix_is_refused(tree: Path, tmp_path: Path, prefix: str) -> None:
    assert "not a prefix" in refused(tree, tmp_path, prefix).message


def test_a_folder_that_is_a_file_is_told(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(OutputError):
        pack(spec(tree, tmp_path / "out"))


@contextlib.contextmanager
def small_files() -> Iterator[None]:
    """No file may grow past 100 kB, which is what a full disk does to one.

    Not for longer than it takes: the log that pytest writes to may be larger.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("archive", ["conda", "tar.bz2"])
def test_a_disk_that_fills_leaves_nothing(tree: Path, tmp_path: Path, archive: str) -> None:
    with small_files(), pytest.raises((OutputError, DiskFullError)):
        pack(spec(tree, tmp_path / "out", archive))
    assert [path for path in (tmp_path / "out").rglob("*") if path.is_file()] == []


def test_an_older_package_stays_where_a_new_one_fails(tree: Path, tmp_path: Path) -> None:
    (package,) = pack(spec(tree, tmp_path / "out")).files
    before = package.read_bytes()
    (tree / "lib/large.bin").unlink()
    (tree / "lib/large.bin").symlink_to("/etc/passwd")
    with pytest.raises(UsageError):
        pack(spec(tree, tmp_path / "out"))
    assert package.read_bytes() == before
