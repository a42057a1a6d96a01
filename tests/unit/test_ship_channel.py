"""A conda channel: what its pages say, and what it refuses."""

from __future__ import annotations

import bz2
import io
import json
import tarfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from tests.tiny_packages import conda, tarred, wheel
from tests.unit.conftest import Run

from torchsmith.errors import OutputError, UsageError, VerificationError
from torchsmith.ship.channel import publish_packages, remove_packages, yank_packages
from torchsmith.ship.publish import Places, publish, yank

pytestmark = pytest.mark.unit


@pytest.fixture
def channel(tmp_path: Path) -> Path:
    return tmp_path / "channel"


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return tmp_path / "made"


def tree(root: Path) -> dict[str, bytes]:
    files = (path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def table(channel: Path, name: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads((channel / name).read_bytes())
    return read


def test_both_forms_of_package_are_listed_where_each_belongs(channel: Path, made: Path) -> None:
    newer = conda(made, "tiny", "1.0", subdir="linux-64", arch="x86_64", platform="linux")
    older = conda(made, "tiny", "0.9", subdir="linux-64", form=".tar.bz2")
    publish_packages(channel, [newer, older])
    repodata = table(channel, "linux-64/repodata.json")
    assert list(repodata["packages"]) == ["tiny-0.9-0.tar.bz2"]
    assert list(repodata["packages.conda"]) == ["tiny-1.0-0.conda"]
    assert repodata["info"] == {"subdir": "linux-64"}


def test_noarch_is_always_there(channel: Path, made: Path) -> None:
    publish_packages(channel, [conda(made, "tiny", "1.0", subdir="linux-aarch64")])
    assert table(channel, "noarch/repodata.json")["packages.conda"] == {}
    assert table(channel, "channeldata.json")["subdirs"] == ["linux-aarch64", "noarch"]


def test_every_page_is_made_from_the_same_records(channel: Path, made: Path) -> None:
    exports = {"weak": ["tiny >=1.0"]}
    publish_packages(channel, [conda(made, "tiny", "1.0", run_exports=exports)])
    for name in ("repodata.json", "run_exports.json"):
        plain = (channel / "noarch" / name).read_bytes()
        packed = (channel / f"noarch/{name}.zst").read_bytes()
        assert zstandard.ZstdDecompressor().decompress(packed) == plain
    assert (channel / "noarch/current_repodata.json").read_bytes() == (
        channel / "noarch/repodata.json"
    ).read_bytes()
    exported = table(channel, "noarch/run_exports.json")["packages.conda"]
    assert exported == {"tiny-1.0-0.conda": {"run_exports": exports}}
    assert table(channel, "channeldata.json")["packages"] == {
        "tiny": {
            "license": "BSD-3-Clause",
            "reference_package": "noarch/tiny-1.0-0.conda",
            "run_exports": {"1.0": exports},
            "subdirs": ["noarch"],
            "timestamp": 1_700_000_000_000,
            "version": "1.0",
        }
    }


def test_the_order_of_publishing_does_not_show(tmp_path: Path, made: Path) -> None:
    packages = [conda(made, "tiny", "1.0"), conda(made, "tiny", "1.1"), conda(made, "other", "1")]
    publish_packages(tmp_path / "a", packages)
    for package in reversed(packages):
        publish_packages(tmp_path / "b", [package])
    assert tree(tmp_path / "a") == tree(tmp_path / "b")


def test_the_same_package_again_changes_nothing(channel: Path, made: Path) -> None:
    path = conda(made, "tiny", "1.0")
    assert [change.action for change in publish_packages(channel, [path])] == ["added"]
    before = {name: (channel / name).stat().st_mtime_ns for name in tree(channel)}
    assert [change.action for change in publish_packages(channel, [path])] == ["same"]
    assert {name: (channel / name).stat().st_mtime_ns for name in tree(channel)} == before


def test_one_name_in_two_subdirs_is_two_packages(channel: Path, made: Path) -> None:
    here = conda(made / "a", "tiny", "1.0", subdir="linux-64")
    there = conda(made / "b", "tiny", "1.0", subdir="linux-aarch64")
    changes = publish_packages(channel, [here, there])
    assert [change.action for change in changes] == ["added", "added"]


@pytest.mark.parametrize("yanked", [False, True])
def test_other_bytes_under_a_published_name_are_refused(
    yanked: bool, channel: Path, made: Path
) -> None:
    publish_packages(channel, [conda(made, "tiny", "1.0")])
    if yanked:
        yank_packages(channel, "tiny==1.0")
    before = tree(channel)
    with pytest.raises(OutputError, match="with other bytes"):
        publish_packages(channel, [conda(made, "tiny", "1.0", files={"share/tiny": b"new"})])
    assert tree(channel) == before


def _truncated(form: str) -> Callable[[Path], Path]:
    def make(made: Path) -> Path:
        path = conda(made, "bad", "1.0", form=form)
        path.write_bytes(path.read_bytes()[:-40])
        return path

    return make


def _flipped(made: Path) -> Path:
    path = conda(made, "bad", "1.0")
    content = bytearray(path.read_bytes())
    # In the middle of the compressed payload.
    content[content.index(b"pkg-bad-1.0-0.tar.zst") + 60] ^= 0xFF
    path.write_bytes(content)
    return path


def _renamed(made: Path) -> Path:
    return conda(made, "bad", "1.0", form=".tar.bz2").rename(made / "bad-2.0-0.tar.bz2")


def _elsewhere(made: Path) -> Path:
    return conda(made, "bad", "1.0", subdir="../../etc")


def _escaping(made: Path) -> Path:
    return conda(made, "bad", "1.0", files={"../../evil": b"x"})


def _text(made: Path) -> Path:
    path = conda(made, "bad", "1.0")
    path.write_bytes(b"<html>not found</html>")
    return path


def _saying(text: str) -> Callable[[Path], Path]:
    """A package whose index.json has this in place of its build number."""

    def make(made: Path) -> Path:
        return conda(made, "bad", "1.0", form=".tar.bz2", literally={"build_number": text})

    return make


def _called(**fields: object) -> Callable[[Path], Path]:
    return lambda made: conda(made, **{"name": "bad", "version": "1.0"} | fields)  # type: ignore[arg-type]


def _holding(*members: tarfile.TarInfo) -> Callable[[Path], Path]:
    def make(made: Path) -> Path:
        path = conda(made, "bad", "1.0", form=".tar.bz2")
        stream = io.BytesIO(bz2.decompress(path.read_bytes()))
        with tarfile.open(fileobj=stream, mode="a") as tar:
            for member in members:
                tar.addfile(member)
        path.write_bytes(bz2.compress(stream.getvalue()))
        return path

    return make


def _member(name: str, kind: bytes, target: str = "", **more: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.pax_headers = kind, target, more
    return member


BAD_VALUES = ("NaN", "Infinity", "-1", "1.5", "true", '"0"', "null", "[]", "1" * 40, "[" * 100_000)
BAD_TYPES: tuple[dict[str, object], ...] = (
    {"depends": "torch"},
    {"depends": {"torch": 1}},
    {"depends": [1]},
    {"depends": ["torch\n"]},
    {"depends": ["tоrch"]},
    {"constrains": [["a"]]},
    {"timestamp": "now"},
    {"license": {"a": 1}},
    {"license": "BSD\x1b[2J"},
    {"noarch": []},
    {"noarch": "evil"},
    {"purls": ["tiny"]},
    {"timestamp": 253_402_300_800_000},
    {"version": "1..0"},
    {"version": "1__0"},
    {"version": "1!2!3"},
    {"version": "1.0+a+b"},
    {"version": ""},
    {"version": "1.0 "},
    {"name": "tоrch"},
    {"track_features": {"x": 1}},
    {"run_exports": {"weak": "torch"}},
)
BAD_MEMBERS = (
    (_member("dev/null", tarfile.CHRTYPE),),
    (_member("", tarfile.REGTYPE),),
    (_member("./.", tarfile.REGTYPE),),
    (_member("share/a\nlib/b", tarfile.REGTYPE),),
    (_member("share/\x1b]0;x\x07", tarfile.REGTYPE),),
    (_member("fifo", tarfile.FIFOTYPE),),
    (_member("etc", tarfile.SYMTYPE, "/etc"),),
    (_member("etc", tarfile.SYMTYPE, "../etc"),),
    (_member("a/b/c", tarfile.SYMTYPE, "../.."), _member("d", tarfile.SYMTYPE, "a/b/c/../x")),
    (_member("a", tarfile.SYMTYPE, "share"), _member("a/b", tarfile.REGTYPE)),
    (_member("passwd", tarfile.LNKTYPE, "../../etc/passwd"),),
    (_member("a/b/c", tarfile.SYMTYPE, "../.."), _member("d", tarfile.LNKTYPE, "a/b/c")),
    (_member("d", tarfile.LNKTYPE, "nowhere"),),
    (_member("a", tarfile.REGTYPE), _member("./a", tarfile.REGTYPE)),
    (_member("info/index.json", tarfile.REGTYPE),),
    (_member("a", tarfile.REGTYPE), _member("a/b", tarfile.REGTYPE)),
    (_member("..\\x", tarfile.REGTYPE),),
    (_member("n" * 300, tarfile.REGTYPE),),
    (
        _member(
            "holes",
            tarfile.REGTYPE,
            **{"GNU.sparse.size": str(1 << 40), "GNU.sparse.map": f"0,0,{1 << 40},0"},
        ),
    ),
)


@pytest.mark.parametrize(
    "bad",
    [
        *map(_saying, BAD_VALUES),
        *(_called(**fields) for fields in BAD_TYPES),
        *(_holding(*members) for members in BAD_MEMBERS),
        _truncated(".conda"),
        _truncated(".tar.bz2"),
        _flipped,
        _renamed,
        _elsewhere,
        _escaping,
        _text,
    ],
)
def test_a_bad_package_is_refused_and_the_channel_stays_as_it_was(
    bad: Callable[[Path], Path], channel: Path, made: Path
) -> None:
    publish_packages(channel, [conda(made, "good", "1.0")])
    before = tree(channel)
    with pytest.raises(VerificationError, match="is not a conda package to publish"):
        publish_packages(channel, [conda(made, "good", "2.0"), bad(made)])
    assert tree(channel) == before


def _parts(made: Path, info: dict[str, bytes], *more: tuple[str, bytes]) -> Path:
    """A package with more in its first part, and more parts."""
    path = conda(made, "bad", "1.0")
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    name = "info-bad-1.0-0.tar.zst"
    with tarfile.open(fileobj=io.BytesIO(zstandard.decompress(parts[name]))) as tar:
        held = {item: tar.extractfile(item).read() for item in tar.getnames()}  # type: ignore[union-attr]
    parts[name] = zstandard.compress(tarred(held | info))
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w") as archive:
        warnings.simplefilter("ignore")
        for part, content in (*parts.items(), *more):
            archive.writestr(part, content)
    return path


@pytest.mark.parametrize(
    "bad",
    [
        # Which of two counts depends on who unpacks it; both parts go into one folder.
        lambda made: _parts(made, {"share/bad": b"other"}),
        lambda made: _parts(made, {"share": b"a file"}),
        lambda made: _parts(made, {}, ("pkg-bad-1.0-0.tar.zst", zstandard.compress(tarred({})))),
        lambda made: _parts(made, {}, ("pkg-evil-1.0-0.tar.zst", zstandard.compress(tarred({})))),
        lambda made: conda(made, "bad", "1.0", files={"info/about.json": b"{}"}),
    ],
)
def test_a_package_whose_parts_contradict_each_other_is_refused(
    bad: Callable[[Path], Path], channel: Path, made: Path
) -> None:
    with pytest.raises(VerificationError, match="is not a conda package to publish"):
        publish_packages(channel, [bad(made)])


def test_links_that_stay_inside_are_published(channel: Path, made: Path) -> None:
    good = _holding(
        _member("lib/libbad.so", tarfile.SYMTYPE, "libbad.so.1"),
        _member("lib/python/site", tarfile.SYMTYPE, "../../share"),
        _member("share/again", tarfile.LNKTYPE, "share/bad"),
    )(made)
    assert [change.action for change in publish_packages(channel, [good])] == ["added"]


def test_a_package_that_unfolds_too_far_is_refused_in_little_memory(
    channel: Path, made: Path
) -> None:
    bomb = conda(made, "bad", "1.0", files={"share/zeros": bytes(100 << 20)})
    assert bomb.stat().st_size < 1 << 16
    with pytest.raises(VerificationError, match="far more"):
        publish_packages(channel, [bomb])


@pytest.mark.parametrize(
    "page",
    [
        b"[]",
        b'{"packages": []}',
        b'{"packages": {"a-1-0.conda": 5}}',
        b'{"packages": {"a-1-0.conda": {}}}',
        b'{"packages": {"a-1-0.conda": {"name": "a", "version": 1}}}',
        b'{"packages": {"a-1-0.conda": {"name": "a", "version": "1", "build_number": NaN}}}',
        b'{"packages": {"a-1-0.conda": {"name": "a", "version": "1", "run_exports": 3}}}',
        b'{"packages": {"a": {"name": "a", "version": "1"}}}',
        b'{"packages": null}',
        b'{"removed": [5]}',
        b'{"info": ' + b"[" * 200_000,
        b"\xff\xfe",
    ],
)
@pytest.mark.parametrize("dry_run", [True, False])
def test_an_odd_page_is_not_guessed_at(
    page: bytes, dry_run: bool, channel: Path, made: Path
) -> None:
    publish_packages(channel, [conda(made, "good", "1.0")])
    (channel / "noarch" / "repodata.json").write_bytes(page)
    with pytest.raises(OutputError, match="does not list packages"):
        publish_packages(channel, [conda(made, "good", "2.0")], dry_run=dry_run)


def test_a_page_that_is_a_folder_is_not_guessed_at(channel: Path, made: Path) -> None:
    publish_packages(channel, [conda(made, "good", "1.0")])
    (channel / "linux-64" / "repodata.json").mkdir(parents=True)
    with pytest.raises(OutputError, match="does not list packages"):
        publish_packages(channel, [conda(made, "good", "2.0")])


def test_a_bad_package_keeps_the_wheels_beside_it_from_being_published(
    tmp_path: Path, made: Path
) -> None:
    places = Places(tmp_path / "index", tmp_path / "channel")
    with pytest.raises(VerificationError):
        publish([wheel(made, "tiny-lib", "1.0"), _text(made)], places)
    assert not (tmp_path / "index").exists()


def test_a_yanked_package_is_listed_as_removed_and_can_come_back(channel: Path, made: Path) -> None:
    publish_packages(channel, [conda(made, "tiny", "1.0"), conda(made, "tiny", "1.1")])
    before = tree(channel)
    (change,) = yank_packages(channel, "tiny==1.0")
    assert (change.action, change.path) == ("yanked", "noarch/tiny-1.0-0.conda")
    repodata = table(channel, "noarch/repodata.json")
    assert list(repodata["packages.conda"]) == ["tiny-1.1-0.conda"]
    assert repodata["removed"] == ["tiny-1.0-0.conda"]
    assert (channel / "noarch/tiny-1.0-0.conda").is_file()
    (again,) = publish_packages(channel, [made / "tiny-1.0-0.conda"])
    assert again.action == "same"
    yank_packages(channel, "tiny-1.0-0.conda", undo=True)
    assert tree(channel) == before


def test_a_reason_has_no_place_in_a_channel(channel: Path, made: Path) -> None:
    publish_packages(channel, [conda(made, "tiny", "1.0")])
    with pytest.raises(UsageError, match="no place for a reason"):
        yank("tiny==1.0", Places(channel=channel), reason="broken")


def test_a_removed_package_is_gone(channel: Path, made: Path) -> None:
    publish_packages(channel, [conda(made, "other", "1.0")])
    before = tree(channel)
    publish_packages(channel, [conda(made, "tiny", "1.0")])
    remove_packages(channel, "tiny-1.0-0.conda")
    assert tree(channel) == before
    with pytest.raises(UsageError, match="is not in"):
        remove_packages(channel, "tiny-1.0-0.conda")


def test_a_channel_that_another_program_indexed_is_read_all_the_same(
    channel: Path, made: Path
) -> None:
    publish_packages(channel, [conda(made, "tiny", "1.0")])
    before = tree(channel)
    listed = table(channel, "noarch/repodata.json")
    del listed["removed"], listed["packages"]
    (channel / "noarch/repodata.json").write_text(json.dumps(listed))
    publish_packages(channel, [made / "tiny-1.0-0.conda"])
    assert tree(channel) == before
    (channel / "noarch/repodata.json").write_text("[]")
    with pytest.raises(OutputError, match="does not list packages"):
        publish_packages(channel, [made / "tiny-1.0-0.conda"])


def test_an_index_is_not_a_channel(tmp_path: Path, made: Path) -> None:
    publish([wheel(made, "tiny-lib", "1.0")], Places(tmp_path / "index"))
    with pytest.raises(OutputError, match="neither empty nor a conda channel"):
        publish_packages(tmp_path / "index", [conda(made, "tiny", "1.0")])


def test_the_command_sorts_files_by_kind(run: Run, made: Path) -> None:
    files = [str(wheel(made, "tiny-lib", "1.0")), str(conda(made, "tiny", "1.0"))]
    code, out, _ = run("publish", *files, "--index", "idx", "--channel", "ch")
    assert code == 0
    assert out.split()[1::2] == [
        "simple/tiny-lib/tiny_lib-1.0-py3-none-any.whl",
        "noarch/tiny-1.0-0.conda",
    ]
