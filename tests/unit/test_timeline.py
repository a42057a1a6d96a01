"""Where the time of a build went: worked out by hand for a few compiles."""

from __future__ import annotations

import html
import itertools
import json
import xml.etree.ElementTree as ElementTree
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from tests.unit.conftest import Run

from torchsmith.bench.timeline import (
    Timeline,
    clock,
    critical_path,
    draw,
    header_costs,
    lay_out,
    page,
    picture,
)
from torchsmith.engine.compile_log import (
    BuildFolder,
    CompileLog,
    CompileRecord,
    Header,
    Job,
    job_of,
    read_compiles,
)
from torchsmith.engine.events import RunStarted
from torchsmith.engine.journal import journal_of
from torchsmith.engine.store import Store
from torchsmith.toolchain.governor_events import Finished

pytestmark = pytest.mark.unit

GIB = 1 << 30


def record(
    file: str, began: float, ended: float, peak: int = GIB, status: int = 0, output: str = ""
) -> CompileRecord:
    times = (1000 + began, 1000 + ended, ended - began)
    return CompileRecord(file, *times, peak, status, 2, output)


# Two cores: a and b side by side, c after b, then d alone for the last ten seconds.
RECORDS = [
    record("a/b/b.cpp", 0, 10),
    record("a/b/a.cpp", 0, 30, peak=2 * GIB, output="/b/a.o"),
    record("a/b/c<>.cpp", 10, 30, status=1),
    record("a/b/d.cpp", 30, 40),
]

# A generator, then a.cpp, then the link that waits for both; nothing waits for e.cpp.
FOLDER = BuildFolder(
    "/b",
    (
        Job("/b/lib.so", "link", "lib.so", 1, 5.5, 5, (1, 3)),
        Job("/b/a.o", "compile", "a.cpp", 1, 30, 30, (2,)),
        Job("/b/order", "command", "order", 1, 0, 0, (3,)),
        Job("/b/gen<1>.h", "command", "/b/gen<1>.h", 3, 60, 0, ()),
        Job("/b/e.o", "compile", "e.cpp", 1, 80, 80, ()),
    ),
    (Header("/s/inc/few.h", 1_000_000, 2, 35), Header("/s/inc/many.h", 100_000, 30, 70)),
    30,
    10_000_000,
)


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


def test_what_each_job_waited_for_is_the_critical_path() -> None:
    found = lay_out(RECORDS, [FOLDER])
    assert found is not None
    (chain,) = found.chains
    assert chain.seconds == 95.5
    assert [(link.key, link.began) for link in chain.links] == [
        ("/b/gen<1>.h", 0),
        ("/b/a.o", 60),
        ("/b/lib.so", 90),
    ]
    assert [link.key for link in chain.longest(2)] == ["/b/gen<1>.h", "/b/a.o"]
    assert [bar.file for bar in found.bars if bar.critical] == ["a/b/a.cpp"]


def test_the_longest_job_is_the_path_if_nothing_longer_waits_in_line() -> None:
    quick = [replace(job, seconds=job.seconds / 2) for job in FOLDER.jobs[:4]]
    folder = replace(FOLDER, jobs=(*quick, FOLDER.jobs[4]))
    assert [link.key for link in critical_path(folder).links] == ["/b/e.o"]


def test_headers_are_ordered_by_the_text_they_were_in_all() -> None:
    both = header_costs([FOLDER, replace(FOLDER, headers=FOLDER.headers[:1])])
    assert both is not None
    assert (both.compiles, both.text) == (60, 20_000_000)
    costs = [(cost.path, cost.compiles, cost.text, cost.share) for cost in both.heaviest]
    assert costs == [
        ("/s/inc/few.h", 4, 4_000_000, 0.2),
        ("/s/inc/many.h", 30, 3_000_000, 0.15),
    ]
    assert [cost.cpu_seconds for cost in both.heaviest] == [70, 70]
    assert header_costs([]) is None


def test_the_critical_path_is_framed_and_named_in_the_drawing() -> None:
    found = lay_out(RECORDS, [FOLDER])
    assert found is not None
    drawn = ElementTree.fromstring(picture(found))
    framed = [bar for bar in drawn if bar.get("stroke")]
    assert [bar[0].text for bar in framed] == [
        "b/a.cpp: 30.0 CPU s, 2048 MiB, on the critical path"
    ]
    text = page(found, "run")
    assert "Critical path: 1:36" in text
    assert "gen&lt;1&gt;.h and 2 more" in text
    assert "<td>3.0</td><td>30.0%</td><td>100</td><td>30</td><td>70</td>" in text
    # Without what ninja knew, the rest is as it was.
    bare = page(laid_out(), "run")
    assert "Slowest" in bare
    assert "Critical path" not in bare
    assert "Headers" not in bare
    plain = ElementTree.fromstring(picture(laid_out()))
    assert not [bar for bar in plain if bar.get("stroke")]


def test_what_cmake_tries_is_no_failure_of_the_build() -> None:
    tried = "/b/CMakeFiles/CMakeScratch/TryCompile-x1/src.c"
    records = [*RECORDS, replace(RECORDS[0], file=tried, status=1)]
    before, found = laid_out(), lay_out(records)
    assert found is not None
    assert (found.failed, found.failed_probes) == (before.failed, 1)
    assert "CMake's trials that failed" in html.unescape(page(found, "run"))


def test_a_batch_is_called_by_its_files() -> None:
    output = "/b/torchsmith-batches/0f3a.json"
    batch = replace(FOLDER.jobs[0], key=job_of(output), file="/s/first.cpp", files=12, after=())
    record = replace(RECORDS[0], file="/b/torchsmith-batches/0f3a.cpp", output=output)
    found = lay_out([record], [replace(FOLDER, jobs=(batch,))])
    assert found is not None
    assert "s/first.cpp and 11 more" in page(found, "run")
    assert "0f3a" not in page(found, "run")


def test_a_timeline_explains_its_colours_and_fits_a_phone() -> None:
    drawn = picture(laid_out())
    for words in ("up to 5 CPU s", "longer", "failed", "on the critical path"):
        assert f">{words}</text>" in drawn
    text = page(laid_out(), "run")
    assert 'name="viewport"' in text
    assert '<div class="wide"><svg' in text
    assert '<div class="wide"><table' in text


def test_a_timeline_is_drawn_as_a_page_or_a_picture_only(
    store: Store, tmp_path: Path, run: Run
) -> None:
    run_of(store, RECORDS)
    code, _, err = run("timeline", "-o", str(tmp_path / "t.pdf"))
    assert code == 2
    assert ".html, .svg or .json" in err
    assert not (tmp_path / "t.pdf").exists()


def test_a_run_is_named_by_its_beginning_its_end_or_last(store: Store, run: Run) -> None:
    name = run_of(store, RECORDS)
    for word in (name, name[:-2], name.rpartition("-")[2][:4], "last"):
        assert run("timeline", word)[1].startswith(f"{name}: ")
        assert run("log", word)[0] == 0
    other = run_of(store, RECORDS)
    assert run("log", "last", "--json")[1].count(other)
    code, _, err = run("log", name[:4])
    assert code == 2
    assert "begins 2 runs" in err
    assert name in err


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


def test_a_trace_has_every_compile_in_microseconds_and_none_over_another_of_its_lane() -> None:
    title = "torchsmith build x"
    events = json.loads(draw(laid_out(), ".json", title))["traceEvents"]
    assert [event["args"]["name"] for event in events if event["ph"] == "M"] == [title]
    compiles = [event for event in events if event["ph"] == "X"]
    assert sorted((event["name"], event["ts"], event["dur"]) for event in compiles) == [
        ("b/a.cpp", 0, 30_000_000),
        ("b/b.cpp", 0, 10_000_000),
        ("b/c<>.cpp", 10_000_000, 20_000_000),
        ("b/d.cpp", 30_000_000, 10_000_000),
    ]
    for lane in {event["tid"] for event in compiles}:
        spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in compiles if e["tid"] == lane)
        assert all(first[1] <= then[0] for first, then in itertools.pairwise(spans))
    assert {event["cat"] for event in compiles} == {"compile", "failed"}
    assert next(e["args"]["peak_mib"] for e in compiles if e["name"] == "b/a.cpp") == 2048


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


def test_the_path_and_the_headers_are_told(store: Store, run: Run) -> None:
    name = run_of(store, RECORDS)
    (store.root / "logs" / name / "jobs.json").write_bytes(msgspec.json.encode([FOLDER]))
    said = run("timeline", "--slowest", "1")[1]
    assert said.splitlines()[3:] == [
        "critical path 1:36: 3 jobs, each waits for the one before",
        "    60.0 s     command  b/gen<1>.h and 2 more",
        "    35.5 s              2 shorter",
        "headers: 30 compiles read 10.0 MB of text",
        "    3.0 MB       30.0%  inc/many.h: 30 compiles, 70 CPU s",
    ]
    told = json.loads(run("timeline", "--json")[1])
    assert told["chains"][0]["links"][2]["file"] == "lib.so"
    assert told["headers"]["heaviest"][1]["path"] == "/s/inc/few.h"
    (store.root / "logs" / name / "jobs.json").write_bytes(b'[{"folder": "/b", "jo')
    assert len(run("timeline", "--slowest", "1")[1].splitlines()) == 3


def test_without_a_compile_it_says_so(store: Store, run: Run) -> None:
    assert run("timeline")[0] == 2
    name = run_of(store, [])
    code, _, complaint = run("timeline", name)
    assert code == 2
    assert "no compile was recorded" in complaint
    assert run("timeline", "no-such-run")[0] == 2


def test_of_a_build_without_cmake_the_steps_are_told(store: Store, run: Run) -> None:
    journal = journal_of(store)
    name = journal.begin("extension")
    journal.step(name, "compile-x", "running", key="k", title="Compile x")
    journal.step(name, "compile-x", "done", key="k", title="Compile x")
    journal.end(name, "done")
    journal.close()
    code, out, _ = run("timeline")
    assert code == 0
    assert "compile-x" in out
    told = json.loads(run("timeline", "--json")[1])
    assert [item["step"] for item in told["steps"]] == ["compile-x"]


def test_what_a_run_wrote_down_is_read_again(store: Store) -> None:
    logs = store.root / "logs"
    with closing(CompileLog(logs, 2)) as written:
        written.add(Finished(0, 1, "before any run.cpp", "", 0, 1, 1, 1))
        started = RunStarted(run="r", plan="p", work="w", total=1, to_run=("a",))
        written.heed(started)
        written.add(Finished(5, 1, "a.cpp", "/b/a.o", 0, GIB, 3.5, 4))
    (found,) = read_compiles(logs, "r")
    assert (found.file, found.cpu_seconds, found.peak, found.cores) == ("a.cpp", 3.5, GIB, 2)
    assert found.output == "/b/a.o"
    assert found.ended - found.began == pytest.approx(4)


def test_a_line_cut_short_is_left_out(store: Store) -> None:
    logs = store.root / "logs"
    (logs / "r").mkdir(parents=True)
    (logs / "r/compiles.jsonl").write_bytes(b'{"file":"a.cpp","be')
    assert read_compiles(logs, "r") == []
