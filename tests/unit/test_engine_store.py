"""The store gives back exactly what was put into it, or nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from torchsmith.engine.store import Entry, Store
from torchsmith.engine.trees import signature
from torchsmith.plan.models import Step

pytestmark = pytest.mark.unit

KEY = "ab" + "0" * 62
TREE = Step(
    id="fetch", kind="fetch", title="Fetch", variant="one", outputs=("tree", "dist/one/*.whl")
)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    (work / "tree/deep").mkdir(parents=True)
    (work / "tree/deep/file").write_bytes(b"content\n" * 1000)
    (work / "tree/program").write_bytes(b"#!/bin/sh\n")
    (work / "tree/program").chmod(0o755)
    (work / "tree/link").symlink_to("deep/file")
    (work / "tree/broken").symlink_to("nowhere")
    (work / "tree/empty").mkdir()
    (work / "tree/deep").chmod(0o555)
    (work / "dist/one").mkdir(parents=True)
    (work / "dist/one/a-1.whl").write_bytes(b"wheel")
    os.utime(work / "dist/one/a-1.whl", ns=(10**18, 10**18))
    return work


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture(params=[0, 1000], ids=["root copies", "others link"])
def store(
    tmp_path: Path,
    warnings: list[str],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> Store:
    monkeypatch.setattr(os, "geteuid", lambda: request.param)
    return Store(tmp_path / "store", warnings.append)


def kept(store: Store, work: Path, step: Step = TREE) -> Entry:
    store.put(KEY, step, work)
    entry = store.get(KEY, work, step.variant)
    assert entry is not None
    return entry


def test_a_tree_comes_back_as_it_was(store: Store, work: Path, tmp_path: Path) -> None:
    before = signature(work, ("tree", "dist/one/a-1.whl"))
    entry = kept(store, work)
    other = tmp_path / "other"
    assert store.restore(entry, other, "one") == ("tree", "dist/one/a-1.whl")
    # A linked wheel has lost its permission to be written; all else is the same.
    (other / "dist/one/a-1.whl").chmod(0o644)
    (work / "dist/one/a-1.whl").chmod(0o644)
    assert signature(other, ("tree", "dist/one/a-1.whl")) == before


def test_a_variant_that_does_the_same_gets_its_own_paths(
    store: Store, work: Path, tmp_path: Path
) -> None:
    entry = kept(store, work)
    assert store.restore(entry, tmp_path / "other", "two") == ("tree", "dist/two/a-1.whl")
    assert (tmp_path / "other/dist/two/a-1.whl").read_bytes() == b"wheel"


def test_writing_into_what_was_given_back_leaves_the_store_alone(store: Store, work: Path) -> None:
    entry = kept(store, work)
    store.restore(entry, work, "one")
    with (work / "tree/deep/file").open("ab") as file:
        file.write(b"more")
    wheel = work / "dist/one/a-1.whl"
    if wheel.stat().st_mode & 0o200:
        with wheel.open("ab") as file:
            file.write(b"more")
    else:
        # Only who may write to read-only files could do harm, and root gets no links.
        assert wheel.stat().st_nlink == 2
    assert store.verify(KEY) == []


def test_a_result_that_names_its_folder_is_only_good_there(
    store: Store, work: Path, tmp_path: Path
) -> None:
    # The path lies across the border of two reads.
    padding = b"x" * ((1 << 20) - 5)
    (work / "tree/config").write_bytes(padding + str(work).encode())
    entry = kept(store, work)
    assert entry.bound == str(work)
    assert store.get(KEY, tmp_path / "other", "one") is None
    assert store.get(KEY, work, "two") is None
    assert store.get(KEY) is None


def test_a_link_to_the_work_folder_binds_too(store: Store, work: Path) -> None:
    (work / "tree/absolute").symlink_to(work / "tree/program")
    assert kept(store, work).bound


@pytest.mark.parametrize("damage", ["flip", "cut", "gone", "manifest", "manifest-flip", "list"])
def test_damage_is_seen_and_the_result_not_used(
    store: Store, work: Path, tmp_path: Path, warnings: list[str], damage: str
) -> None:
    entry = kept(store, work)
    victim = {
        "manifest": entry.folder / "manifest.json",
        "manifest-flip": entry.folder / "manifest.json",
        "list": entry.folder / "files.json",
    }.get(damage, entry.folder / "outputs/tree/deep/file")
    victim.chmod(0o644)
    content = victim.read_bytes()
    if damage == "gone":
        victim.unlink()
    elif damage in ("cut", "manifest"):
        victim.write_bytes(content[: len(content) // 2])
    else:
        # The last digit or letter of a name, a hash, a line: no syntax is broken.
        index = max(content.rfind(b"t"), content.rfind(b"e"))
        victim.write_bytes(content[:index] + b"a" + content[index + 1 :])
    assert store.verify(KEY)
    found = store.get(KEY, work, "one")
    other = tmp_path / "other"
    assert found is None or store.restore(found, other, "one") is None
    assert warnings
    assert not (other / "tree").exists()
    assert store.get(KEY, work, "one") is None
    assert kept(store, work)
    assert store.verify(KEY) == []


def test_an_entry_is_replaced_by_a_newer_one(store: Store, work: Path) -> None:
    kept(store, work)
    (work / "tree/new").write_text("new")
    entry = kept(store, work)
    assert (entry.folder / "outputs/tree/new").exists()
    assert [item.key for item in store.entries()] == [KEY]
    assert list((store.root / "incoming").iterdir()) == []


def test_what_a_newer_torchsmith_wrote_is_neither_used_nor_dropped(
    store: Store, work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("torchsmith.engine.store.FORMAT", 99)
        folder = kept(store, work).folder
    assert store.get(KEY, work, "one") is None
    assert folder.is_dir()


def test_removed_is_removed(store: Store, work: Path) -> None:
    kept(store, work)
    assert store.remove(KEY)
    assert not store.remove(KEY)
    assert store.get(KEY, work, "one") is None
    assert list(store.entries()) == []


def test_collecting_keeps_what_was_used_lately(store: Store, work: Path) -> None:
    kept(store, work)
    old = store.put("cd" + "0" * 62, TREE, work)
    day = timedelta(days=1)
    assert store.gc(older_than=day).entries == ()
    os.utime(old.folder, (0, 0))
    tried = store.gc(older_than=day, dry_run=True)
    assert [entry.key[:2] for entry in tried.entries] == ["cd"]
    assert len(list(store.entries())) == 2
    done = store.gc(older_than=day)
    assert done.bytes == tried.bytes > 0
    assert [entry.key for entry in store.entries()] == [KEY]


def test_leftovers_go_only_when_their_writer_is_dead(store: Store, tmp_path: Path) -> None:
    program = (
        "import sys, time\nfrom pathlib import Path\nfrom torchsmith.engine.store import Store\n"
        f"with Store(Path({str(store.root)!r}))._incoming() as folder:\n"
        "    (folder / 'half').write_text('half')\n    print('ready', flush=True)\n"
        "    time.sleep(60)\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        assert store.gc().leftovers == 0
        assert len(list((store.root / "incoming").glob("*/half"))) == 1
    finally:
        writer.kill()
        writer.communicate()
    assert store.gc().leftovers == 1
    assert list((store.root / "incoming").iterdir()) == []


def test_the_default_root_follows_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCHSMITH_STORE", str(tmp_path / "mine"))
    assert Store().root == tmp_path / "mine"
    monkeypatch.delenv("TORCHSMITH_STORE")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert Store().root == tmp_path / "data/torchsmith/store"
    monkeypatch.delenv("XDG_DATA_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Store().root == tmp_path / ".local/share/torchsmith/store"
