"""What lies in the store is looked at before it is used: another user may have put it there."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchsmith.engine.build import build
from torchsmith.engine.disk import write_whole
from torchsmith.engine.locks import Lock
from torchsmith.engine.store import FILES, MANIFEST, OUTPUTS, SHARED, Entry, Store, problems_of
from torchsmith.errors import StoreError, WorkFolderError
from torchsmith.owners import make_folder, who_else_writes
from torchsmith.plan.models import Plan, Step
from torchsmith.toolchain.cache import compiler_cache
from torchsmith.toolchain.preload import PAGES_SOURCE, preloaded

pytestmark = pytest.mark.unit

KEY = "ab" + "0" * 62
STEP = Step(id="fetch", kind="fetch", title="Fetch", variant="one", outputs=("tree",))
Disown = Callable[[Path], None]


@pytest.fixture
def disown(monkeypatch: pytest.MonkeyPatch) -> Disown:
    """Have a file belong to another user than the one who runs torchsmith."""
    own = os.getuid()

    def change(path: Path) -> None:
        if own == 0:
            os.chown(path, 12345, 12345, follow_symlinks=False)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: own + 1)

    return change


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def store(tmp_path: Path, warnings: list[str]) -> Store:
    return Store(tmp_path / "store", warnings.append)


@pytest.fixture
def work(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    (work / "tree").mkdir(parents=True)
    (work / "tree/file").write_text("content")
    return work


@pytest.fixture
def entry(store: Store, work: Path) -> Entry:
    store.put(KEY, STEP, work)
    found = store.get(KEY)
    assert found is not None
    return found


def forge(entry: Entry, items: Any = None, **fields: object) -> None:
    """Rewrite an entry so that every hash in it is right."""
    files = entry.folder / FILES
    manifest = entry.folder / MANIFEST
    if items is not None:
        files.write_bytes(json.dumps(items).encode())
    table = json.loads(manifest.read_bytes())["entry"] | fields
    table["files_sha256"] = hashlib.sha256(files.read_bytes()).hexdigest()
    canonical = json.dumps(table, sort_keys=True, separators=(",", ":")).encode()
    whole = {"sha256": hashlib.sha256(canonical).hexdigest(), "entry": table}
    manifest.write_text(json.dumps(whole))


@pytest.mark.parametrize(
    "outputs",
    [["../../victim"], ["/etc/victim"], ["tree", "a/../../victim"], [""], ["."], ["a\0b"], [5], 5],
)
def test_outputs_that_lead_out_are_not_used(
    outputs: object, store: Store, entry: Entry, work: Path, warnings: list[str]
) -> None:
    forge(entry, outputs=outputs)
    assert store.get(KEY) is None
    assert "is not used" in warnings[0]


def _item(path: object, kind: str = "file", **more: object) -> dict[str, object]:
    return {"path": path, "kind": kind, **more}


@pytest.mark.parametrize(
    "items",
    [
        [_item("tree/../../../victim")],
        [_item("/tmp/victim")],
        [_item("tree//victim")],
        [_item("tree", "folder"), _item("tree/a", "link", target="/tmp"), _item("tree/a/b")],
        [_item("tree", "link", target="/tmp"), _item("tree/b")],
        [_item("tree"), _item("tree")],
        [_item("tree", "device")],
        [_item(5)],
        [_item("tree", mode="x")],
        {"path": "tree"},
        [["tree"]],
    ],
)
def test_a_list_of_files_that_leads_out_is_not_used(
    items: object, store: Store, entry: Entry, tmp_path: Path, work: Path, warnings: list[str]
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    forge(entry, items)
    found = store.get(KEY)
    assert found is not None
    assert store.restore(found, work) is None
    assert "is not used" in warnings[0]
    assert victim.read_text() == "mine"
    assert not Path("/tmp/victim").exists()


def test_a_special_bit_is_not_given_back(store: Store, entry: Entry, work: Path) -> None:
    items = json.loads((entry.folder / FILES).read_bytes())
    for item in items:
        item["mode"] |= 0o6000
    forge(entry, items)
    found = store.get(KEY)
    assert found is not None
    assert store.restore(found, work) == ("tree",)
    assert (work / "tree/file").stat().st_mode & 0o6000 == 0


@pytest.mark.parametrize("what", ["manifest", "list", "file"])
@pytest.mark.parametrize("instead", ["link", "fifo"])
def test_neither_a_link_nor_a_pipe_is_read(
    what: str, instead: str, store: Store, entry: Entry, work: Path, tmp_path: Path
) -> None:
    names = {"manifest": MANIFEST, "list": FILES, "file": f"{OUTPUTS}/tree/file"}
    path = entry.folder / names[what]
    content = path.read_bytes()
    path.parent.chmod(0o755)
    path.unlink()
    if instead == "fifo":
        os.mkfifo(path)
    else:
        (tmp_path / "same").write_bytes(content)
        path.symlink_to(tmp_path / "same")
    assert problems_of(entry.folder)
    found = store.get(KEY)
    assert found is None or store.restore(found, work) is None


@pytest.mark.parametrize("what", ["", "entries", "entries/ab", f"entries/ab/{KEY}"])
def test_what_everybody_may_write_to_is_not_used(
    what: str, store: Store, entry: Entry, warnings: list[str]
) -> None:
    (store.root / what).chmod(0o777)
    assert store.get(KEY) is None
    assert store.get(KEY) is None
    assert len(warnings) == 1
    assert "everybody may write" in warnings[0]
    assert entry.folder.exists(), "it is not ours to drop"


@pytest.mark.parametrize("what", ["", "entries", f"entries/ab/{KEY}", f"entries/ab/{KEY}/{FILES}"])
def test_what_belongs_to_another_user_is_not_used(
    what: str, store: Store, entry: Entry, warnings: list[str], disown: Disown
) -> None:
    disown(store.root / what)
    assert store.get(KEY) is None
    assert "belongs to another user" in warnings[0]


@pytest.mark.parametrize("how", ["open", "another's"])
def test_nothing_is_built_where_others_could_change_it(
    how: str, store: Store, entry: Entry, disown: Disown
) -> None:
    store.ensure_ours()
    if how == "open":
        store.root.chmod(0o777)
    else:
        disown(store.root)
    plan = Plan("demo", (), (STEP,))
    with pytest.raises(StoreError, match=r"everybody may write|belongs to another user"):
        build(plan, store, project=store.root.parent)
    (store.root / SHARED).write_text("")
    store.root.chmod(0o775)
    Store(store.root).ensure_ours()


@pytest.mark.parametrize("how", ["open", "another's"])
@pytest.mark.parametrize("what", ["objects", "dates", "locks", "work/demo", "journal.db"])
def test_nothing_is_built_where_others_could_change_a_part(
    what: str, how: str, store: Store, entry: Entry, disown: Disown
) -> None:
    part = store.root / what
    part.parent.mkdir(exist_ok=True)
    if part.suffix:
        part.touch()
    else:
        part.mkdir(exist_ok=True)
    store.ensure_ours()
    if how == "open":
        part.chmod(0o777)
    else:
        disown(part)
    with pytest.raises(StoreError, match=r"everybody may write|belongs to another user"):
        build(Plan("demo", (), (STEP,)), store, project=store.root.parent)


@pytest.mark.parametrize("how", ["open", "another's", "a link to an open one"])
def test_nothing_is_built_in_a_work_folder_of_others(
    how: str, store: Store, tmp_path: Path, disown: Disown
) -> None:
    place = tmp_path / "place"
    store.ensure_ours(place)
    place.mkdir(mode=0o755)
    store.ensure_ours(place)
    if how == "open":
        place.chmod(0o777)
    elif how == "another's":
        disown(place)
    else:
        place.rename(tmp_path / "aside")
        (tmp_path / "aside").chmod(0o777)
        place.symlink_to("aside")
    with pytest.raises(WorkFolderError, match=r"everybody may write|belongs to another user"):
        build(Plan("demo", (), (STEP,)), store, work=place, project=tmp_path)


@pytest.mark.parametrize("how", ["open", "another's", "link"])
def test_a_compiler_cache_has_no_temporary_folder_of_others(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, disown: Disown
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def temporary() -> Path | None:
        variables = compiler_cache(tmp_path / "s", tmp_path / "w", shared=True, program="ccache")
        given = (variables.environment or {}).get("CCACHE_TEMPDIR")
        return Path(given) if given else None

    own = temporary()
    assert own is not None
    assert who_else_writes(own) == ""
    if how == "open":
        own.chmod(0o777)
    elif how == "another's":
        disown(own)
    else:
        own.rename(tmp_path / "theirs")
        own.symlink_to("theirs")
    assert temporary() is None


def test_no_command_makes_what_everybody_may_write_to(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        code = "import os, sys; sys.argv = ['x', 'schema']; from torchsmith.cli import main\n"
        code += "try: main()\nfinally: open('made', 'w')"
        subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, check=True, stdout=subprocess.DEVNULL
        )
    finally:
        os.umask(before)
    assert who_else_writes(tmp_path / "made", members=True) == ""


def test_a_shared_store_is_trusted_with_all_who_build_into_it(
    store: Store, entry: Entry, disown: Disown, warnings: list[str]
) -> None:
    (store.root / SHARED).write_text("")
    disown(entry.folder)
    entry.folder.chmod(0o775)
    assert Store(store.root, warnings.append).get(KEY) is not None
    entry.folder.chmod(0o777)
    assert Store(store.root, warnings.append).get(KEY) is None


def test_a_store_made_under_any_umask_can_be_used(tmp_path: Path, work: Path) -> None:
    before = os.umask(0)
    try:
        store = Store(tmp_path / "open" / "store")
        with store.key_lock(KEY):
            store.put(KEY, STEP, work)
        assert store.get(KEY) is not None
        assert who_else_writes(store.root) == ""
    finally:
        os.umask(before)


@pytest.mark.parametrize("how", ["link", "second name", "pipe"])
def test_a_lock_overwrites_no_other_file(how: str, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    path = tmp_path / "locks" / "KEY.lock"
    path.parent.mkdir()
    if how == "link":
        path.symlink_to(victim)
    elif how == "second name":
        path.hardlink_to(victim)
    else:
        os.mkfifo(path)
    taken: list[bool] = []
    thread = threading.Thread(target=lambda: taken.append(Lock(path).try_acquire()), daemon=True)
    thread.start()
    thread.join(10)
    assert taken == [True]
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("mode", [0o666, 0o777])
def test_a_library_others_may_write_to_is_made_anew(mode: int, tmp_path: Path) -> None:
    library = _made(tmp_path)
    library.write_text("evil")
    library.chmod(mode)
    assert _made(tmp_path) == library
    assert library.read_text() == "compiled"


def test_a_library_of_another_user_is_made_anew(tmp_path: Path, disown: Disown) -> None:
    library = _made(tmp_path)
    library.write_text("evil")
    disown(library)
    made = preloaded(tmp_path, PAGES_SOURCE, _compiler(tmp_path))
    assert made is None or library.read_text() == "compiled"


def test_nothing_is_loaded_from_a_folder_that_others_may_write_to(tmp_path: Path) -> None:
    _made(tmp_path).parent.chmod(0o777)
    assert preloaded(tmp_path, PAGES_SOURCE, _compiler(tmp_path)) is None


def _made(tmp_path: Path) -> Path:
    library = preloaded(tmp_path, PAGES_SOURCE, _compiler(tmp_path))
    assert library is not None
    return library


def _compiler(tmp_path: Path) -> str:
    """A compiler that writes one word: `cc -O2 -shared -fPIC -o FILE …`."""
    program = tmp_path / "cc"
    program.write_text('#!/bin/sh\nprintf compiled > "$5"\n')
    program.chmod(0o755)
    return str(program)


def test_a_folder_is_made_for_us_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_folder(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert who_else_writes(tmp_path / "a") == who_else_writes(tmp_path / "a/b") == ""


def test_a_file_is_not_written_through_a_link_that_lies_in_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    monkeypatch.setattr(os, "urandom", lambda count: b"\0" * count)
    (tmp_path / f".note.{'00' * 6}").symlink_to(victim)
    with pytest.raises(FileExistsError):
        write_whole(tmp_path / "note", b"theirs")
    assert victim.read_text() == "mine"
