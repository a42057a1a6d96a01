"""Where the time of a build went: worked out by hand for a few compiles."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from tests.unit.conftest import Run

from torchsmith.bench.timeline import Timeline, lay_out
from torchsmith.bench.timeline_page import clock, page, picture
from torchsmith.engine.build import journal_of
from torchsmith.engine.compile_log import CompileLog, CompileRecord, read_compiles
from torchsmith.engine.events import RunStarted
from torchsmith.engine.store import Store
from torchsmith.toolchain.governor_events import Finished

pytestmark = pytest.mark.unit

GIB = 1 << 30


def record(
    file: str, began: float, ended: float, peak: int = GIB, status: int = 0
) -> CompileRecord:
    return CompileRecord(file, 1000 + began, 1000 + ended, ended - began, peak, status, 2)


# Two cores: a and b side by side, c after b, then d alone for the last ten seconds.
RECORDS = [
    record("a/b/b.cpp", 0, 10),
    record("a/b/a.cpp", 0, 30, peak=2 * GIB),
    record("a/b/c<>.cpp", 10, 30, status=1),
    record("a/b/d.cpp", 30, 40),
]


def laid_out() -> Timeline:
    found = lay_out(RECORDS)
    assert found is not None
    return found


def test_the_cores_in_use_are_counted() -> None:
    found = laid_out()
    assert (found.seconds, found.cpu_seconds, found.failed) == (40, 70, 1)
    assert found.busy == 70 / 80
    assert found.tail == 10
    assert found.peak == 3 * GIB
    assert [bar.file for bar in found.slowest(2)] == ["a/b/a.cpp", "a/b/c<>.cpp"]


def test_compiles_that_overlap_lie_on_different_lanes() -> None:
    found = laid_out()
    assert {bar.lane for bar in found.bars} == {0, 1}
    for one in found.bars:
        for other in found.bars:
            if one is not other and one.lane == other.lane:
                assert one.ended <= other.began or other.ended <= one.began


def test_nothing_compiled_is_no_timeline() -> None:
    assert lay_out([]) is None


def test_the_drawing_is_well_formed_and_has_every_compile() -> None:
    drawn = ElementTree.fromstring(picture(laid_out()))
    space = "{http://www.w3.org/2000/svg}"
    titles = [title.text or "" for title in drawn.iter(f"{space}title")]
    assert len(titles) == len(RECORDS)
    assert any(title.startswith("b/c<>.cpp") for title in titles)
    text = page(laid_out(), "a <run>")
    assert "a &lt;run&gt;" in text
    assert "88%" in text


def test_times_are_written_as_clocks() -> None:
    assert [clock(seconds) for seconds in (9, 309.6, 3909)] == ["0:09", "5:10", "1:05:09"]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("TORCHSMITH_STORE", str(tmp_path / "store"))
    return Store(tmp_path / "store")


def run_of(store: Store, records: list[CompileRecord]) -> str:
    journal = journal_of(store)
    run = journal.begin("torch")
    journal.end(run, "done")
    journal.close()
    folder = store.root / "logs" / run
    folder.mkdir(parents=True)
    lines = [msgspec.json.encode(item) + b"\n" for item in records]
    (folder / "compiles.jsonl").write_bytes(b"".join(lines))
    return run


def test_the_last_run_that_compiled_is_shown_and_drawn(
    store: Store, tmp_path: Path, run: Run
) -> None:
    name = run_of(store, RECORDS)
    run_of(store, [])
    output = tmp_path / "drawn" / "timeline.html"
    code, said, _ = run("timeline", "--output", str(output), "--slowest", "1")
    assert code == 0
    assert said.startswith(f"{name}: 4 compiles in 0:40\n70 CPU s; 2 cores busy 88% of the time")
    assert "b/a.cpp" in said
    assert "b/d.cpp" not in said
    assert output.read_text().startswith("<!doctype html>")
    assert json.loads(run("timeline", name, "--json")[1])["busy"] == 70 / 80


def test_without_a_compile_it_says_so(store: Store, run: Run) -> None:
    assert run("timeline")[0] == 2
    name = run_of(store, [])
    code, _, complaint = run("timeline", name)
    assert code == 2
    assert "compiled nothing" in complaint
    assert run("timeline", "no-such-run")[0] == 2


def test_what_a_run_wrote_down_is_read_again(store: Store) -> None:
    logs = store.root / "logs"
    with closing(CompileLog(logs, 2)) as written:
        written.add(Finished(0, 1, "before any run.cpp", 0, 1, 1, 1))
        started = RunStarted(run="r", plan="p", work="w", total=1, to_run=("a",))
        written.heed(started)
        written.add(Finished(5, 1, "a.cpp", 0, GIB, 3.5, 4))
    (found,) = read_compiles(logs, "r")
    assert (found.file, found.cpu_seconds, found.peak, found.cores) == ("a.cpp", 3.5, GIB, 2)
    assert found.ended - found.began == pytest.approx(4)


def test_a_line_cut_short_is_left_out(store: Store) -> None:
    logs = store.root / "logs"
    (logs / "r").mkdir(parents=True)
    (logs / "r/compiles.jsonl").write_bytes(b'{"file":"a.cpp","be')
    assert read_compiles(logs, "r") == []
