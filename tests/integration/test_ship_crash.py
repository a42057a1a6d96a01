"""Published folders in bad times: killed, full, read-only, written to by several at once."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.integration.test_engine_disk_and_tools import SmallDisk
from tests.tiny_packages import conda, wheel

from torchsmith.errors import DiskFullError, OutputError
from torchsmith.ship.channel import publish_packages
from torchsmith.ship.index import publish_wheels, remove_wheels

pytestmark = pytest.mark.integration

NAME = "tiny_lib-1.0-py3-none-any.whl"


@pytest.fixture(autouse=True)
def _same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")


def tree(root: Path) -> dict[str, bytes]:
    files = (path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def killed_at(count: int, method: str, work: Callable[[], object], below: str = "") -> bool:
    """Do something in a process that is killed as it calls a method of Path once more than `count`.

    Only paths in a folder named `below` are counted, if one is named. Returns whether it was.
    """
    child = os.fork()
    if child == 0:
        real = getattr(Path, method)
        left = count

        def counted(path: Path, *arguments: object, **named: object) -> object:
            nonlocal left
            if not below or path.parent.name == below:
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return real(path, *arguments, **named)

        setattr(Path, method, counted)
        try:
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def index_is_true(index: Path) -> None:
    """What a reader sees: each page names only files that are there, whole."""
    for found in index.glob("simple/*/index.json"):
        for file in json.loads(found.read_bytes())["files"]:
            held = found.with_name(file["filename"]).read_bytes()
            assert hashlib.sha256(held).hexdigest() == file["hashes"]["sha256"]
            metadata = found.with_name(f"{file['filename']}.metadata").read_bytes()
            assert hashlib.sha256(metadata).hexdigest() == file["core-metadata"]["sha256"]
    for found in index.glob("simple/*/index.html"):
        names = re.findall(r">([^<]+\.whl)<", found.read_text())
        assert all(found.with_name(name).exists() for name in names)


def channel_is_true(channel: Path) -> None:
    for found in channel.glob("*/repodata.json"):
        table = json.loads(found.read_bytes())
        for name, record in (table["packages"] | table["packages.conda"]).items():
            held = found.with_name(name).read_bytes()
            assert hashlib.sha256(held).hexdigest() == record["sha256"]


def test_an_index_killed_anywhere_and_published_to_again_is_as_if_undisturbed(
    tmp_path: Path,
) -> None:
    made = tmp_path / "made"
    old = wheel(made, "tiny-lib", "1.0")
    new = [wheel(made, "tiny-lib", "1.1"), wheel(made, "other", "1.0")]
    undisturbed = tmp_path / "undisturbed"
    publish_wheels(undisturbed, [old])
    publish_wheels(undisturbed, new)
    for count in range(100):
        index = tmp_path / f"index-{count}"
        publish_wheels(index, [old])

        def work(index: Path = index) -> object:
            return publish_wheels(index, new)

        if not killed_at(count, "replace", work):
            break
        index_is_true(index)
        publish_wheels(index, new)
        assert tree(index) == tree(undisturbed), f"killed at rename {count}"
    assert 10 < count < 100


def test_a_channel_killed_anywhere_and_published_to_again_is_as_if_undisturbed(
    tmp_path: Path,
) -> None:
    made = tmp_path / "made"
    new = [conda(made, "tiny", "1.0"), conda(made, "tiny", "1.1", subdir="linux-64")]
    undisturbed = tmp_path / "undisturbed"
    publish_packages(undisturbed, new)
    for count in range(100):
        channel = tmp_path / f"channel-{count}"

        def work(channel: Path = channel) -> object:
            return publish_packages(channel, new)

        if not killed_at(count, "replace", work):
            break
        channel_is_true(channel)
        publish_packages(channel, new)
        assert tree(channel) == tree(undisturbed), f"killed at rename {count}"
    assert 10 < count < 100


def test_a_removal_killed_anywhere_can_be_done_again(tmp_path: Path) -> None:
    made = tmp_path / "made"
    undisturbed = tmp_path / "undisturbed"
    publish_wheels(undisturbed, [wheel(made, "other", "1.0")])
    for count in range(4):
        index = tmp_path / f"index-{count}"
        publish_wheels(index, [wheel(made, "other", "1.0"), wheel(made, "tiny-lib", "1.0")])

        def work(index: Path = index) -> object:
            return remove_wheels(index, NAME)

        assert killed_at(count, "unlink", work, below="tiny-lib")
        listed = json.loads((index / "simple/index.json").read_bytes())["projects"]
        assert listed == [{"name": "other"}]
        remove_wheels(index, NAME)
        assert tree(index) == tree(undisturbed), f"killed at file {count}"


@pytest.fixture(params=["limit", "mount"] if os.geteuid() == 0 else ["limit"])
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SmallDisk]:
    disk = SmallDisk(tmp_path / "disk", mount=request.param == "mount")
    try:
        yield disk
    finally:
        disk.close()


@pytest.mark.parametrize("looked", [True, False], ids=["before", "on-the-way"])
def test_a_full_disk_leaves_an_index_as_it_was(
    looked: bool, small_disk: SmallDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "made"
    index = small_disk.path / "index"
    publish_wheels(index, [wheel(made, "tiny-lib", "1.0")])
    before = tree(index)
    if not looked:
        # As when another program fills the disk after we looked.
        monkeypatch.setattr("torchsmith.ship.folder.check_room", lambda *_: None)
    small_disk.lift()
    big = wheel(made, "big", "1.0", content=f"x = '{os.urandom(1_500_000).hex()}'")
    small_disk.limit()
    with pytest.raises(DiskFullError) as caught:
        publish_wheels(index, [wheel(made, "tiny-lib", "1.1"), big])
    assert str(index) in caught.value.message
    assert tree(index) == before
    publish_wheels(index, [wheel(made, "tiny-lib", "1.1")])


def test_a_disk_that_cannot_be_written_to_is_said_to_be_one(tmp_path: Path) -> None:
    made = tmp_path / "made"
    index = tmp_path / "index"
    publish_wheels(index, [wheel(made, "tiny-lib", "1.0")])
    before = tree(index)
    new = [wheel(made, "tiny-lib", "1.1")]
    if os.geteuid() == 0:
        # Root may write to any folder; only a mount can keep it out.
        subprocess.run(["mount", "--bind", index, index], check=True)
        try:
            subprocess.run(["mount", "-o", "remount,bind,ro", index], check=True)
            with pytest.raises(OutputError, match="cannot be written: Read-only file system"):
                publish_wheels(index, new)
        finally:
            subprocess.run(["umount", "-l", index], check=True)
    else:
        index.chmod(0o555)
        with pytest.raises(OutputError, match="cannot be written: Permission denied"):
            publish_wheels(index, new)
        index.chmod(0o755)
    assert tree(index) == before


def test_several_publishers_at_once_wait_for_one_another(tmp_path: Path) -> None:
    made = [wheel(tmp_path / "made", "tiny-lib", f"1.{number}") for number in range(4)]
    command = [sys.executable, "-m", "torchsmith", "publish", "--index", str(tmp_path / "index")]
    publishers = [
        subprocess.Popen([*command, str(path)], stdout=subprocess.PIPE, text=True) for path in made
    ]
    for publisher in publishers:
        said, _ = publisher.communicate(timeout=60)
        assert publisher.returncode == 0
        assert said.startswith("added ")
    listed = json.loads((tmp_path / "index/simple/tiny-lib/index.json").read_bytes())
    assert listed["versions"] == ["1.0", "1.1", "1.2", "1.3"]
    index_is_true(tmp_path / "index")
