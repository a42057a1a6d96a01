"""What is kept of a build folder: from a graph, a log and lists of headers written by hand."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
import pytest

from torchsmith.engine import events
from torchsmith.engine.compile_log import CompileRecord, Job, JobLog, gather, job_of, read_jobs
from torchsmith.toolchain.ninja_log import Edge, Line, read_dependencies, read_graph, read_log

pytestmark = pytest.mark.unit

RUN = "r"
SINCE = 1000.0
GRAPH = """\
ninja_required_version = 1.5
include CMakeFiles/rules.ninja
cmake_ninja_workdir = {folder}/
build gen/a$ b.h | ${{cmake_ninja_workdir}}gen/a$ b.h: CUSTOM_COMMAND ../gen.py
  COMMAND = python gen.py = $in
build order: phony || {folder}/gen/a$ b.h
build one.o: CXX_COMPILER__linker_tests_Release ../one.cpp $
    || order
  FLAGS = -O2
build old.o: CXX_COMPILER__linker_tests_Release ../old.cpp || order
build li$$b.so: CXX_SHARED_LIBRARY_LINKER__compiler_Release one.o old.o |@ check
"""
BATCHED = """\
build one.o two.o: torchsmith_batch ../one.cpp ../two.cpp | {folder}/torchsmith-batches/ab12.json
"""


def write_log(folder: Path, lines: Sequence[tuple[int, int, float, str]], tail: str = "") -> None:
    text = "".join(f"{a}\t{b}\t{int(at * 1e9)}\t{name}\tfe01\n" for a, b, at, name in lines)
    (folder / ".ninja_log").write_text(f"# ninja log v7\n{text}{tail}")


def deps_bytes(lists: Mapping[str, Sequence[str]]) -> bytes:
    """As ninja's deps_log.cc writes it."""
    data = b"# ninjadeps\n" + struct.pack("=I", 4)
    numbers: dict[str, int] = {}

    def number(name: str) -> int:
        nonlocal data
        if name not in numbers:
            raw = name.encode()
            raw += b"\0" * (-len(raw) % 4)
            numbers[name] = len(numbers)
            check = ~numbers[name] & 0xFFFFFFFF
            data += struct.pack("=I", len(raw) + 4) + raw + struct.pack("=I", check)
        return numbers[name]

    for output, names in lists.items():
        words = [number(output), 1, 2, *map(number, names)]
        data += struct.pack(f"={len(words) + 1}I", len(words) * 4 | 1 << 31, *words)
    return data


def record(output: Path | str, cpu: float = 1.0) -> CompileRecord:
    return CompileRecord("x.cpp", 1, 2, cpu, 1, 0, 2, str(output))


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return tmp_path / "logs"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A build folder with a generator, two compiles, one of them from an earlier run, a link."""
    place = tmp_path / "the source" / "build"
    (place / "gen").mkdir(parents=True)
    (place / "build.ninja").write_text(GRAPH.format(folder=str(place).replace(" ", "$ ")))
    write_log(
        place,
        [
            (0, 90_000, 10.0, "li$b.so"),
            (0, 70_000, 10.0, "old.o"),
            (5, 4_005, 1001.0, "gen/a b.h"),
            (4_005, 10_505, 1005.0, "one.o"),
            (10_505, 12_505, 1011.5, "li$b.so"),
        ],
    )
    (place.parent / "one.cpp").write_text("1" * 10)
    (place.parent / "old.cpp").write_text("1" * 20)
    (place.parent / "all.h").write_text("h" * 300)
    (place / "gen/a b.h").write_text("g" * 50)
    lists = {
        "one.o": ["../one.cpp", "../all.h", "gen/../../all.h", f"{place}/gen/a b.h", "../gone.h"],
        "old.o": ["../old.cpp", "../all.h"],
    }
    (place / ".ninja_deps").write_bytes(deps_bytes(lists))
    return place


def keep_records(logs: Path, records: Sequence[CompileRecord]) -> None:
    (logs / RUN).mkdir(parents=True)
    lines = [msgspec.json.encode(item) + b"\n" for item in records]
    (logs / RUN / "compiles.jsonl").write_bytes(b"".join(lines))


def test_a_graph_has_what_a_job_makes_and_waits_for() -> None:
    text = "dir = some$ where\nbuild $dir/a$:b.o | ${dir}/c: R x$$.cpp ./y | i$|j || o |@ v\n"
    assert read_graph(text) == [
        Edge(
            "R",
            outputs=("some where/a:b.o",),
            also=("some where/c",),
            inputs=("x$.cpp", "y"),
            waits_for=("i|j", "o"),
        )
    ]


def test_a_line_goes_on_after_a_dollar_unless_that_is_escaped() -> None:
    (edge,) = read_graph("build a: R b $\n   c$$$\n  d$$\n  x = 1\n")
    assert edge.inputs == ("b", "c$d$")


@pytest.mark.parametrize("line", ["build ", "build a", "build a:", "build : R x", "build a | b"])
def test_a_statement_cut_short_is_left_out(line: str) -> None:
    assert [edge.rule for edge in read_graph(f"build x: R y\n{line}")] == ["R"]


def test_the_last_line_about_an_output_counts_and_half_a_line_does_not(tmp_path: Path) -> None:
    lines = [(0, 9000, 1.0, "a b.o"), (500, 1750, 2.5, "a b.o"), (0, 10, 3.0, "c.o")]
    write_log(tmp_path, lines, tail="12\tx\t3\td.o\tfe\n12\t40\t30000000\te.o")
    assert read_log(tmp_path) == {"a b.o": Line(1.25, 2.5), "c.o": Line(0.01, 3.0)}
    assert read_log(tmp_path / "nowhere") == {}


def test_lists_of_headers_are_read_as_ninja_writes_them(tmp_path: Path) -> None:
    lists = {"a.o": ["a.cpp", "long name.h"], "b.o": ["b.cpp", "long name.h", "ä.h"]}
    data = deps_bytes(lists)
    place = tmp_path / ".ninja_deps"
    place.write_bytes(data)
    assert read_dependencies(tmp_path, {"a.o", "b.o"}) == lists
    assert read_dependencies(tmp_path, {"b.o"}) == {"b.o": lists["b.o"]}
    # A later list of the same output is the one that holds.
    again = struct.pack("=5I", 16 | 1 << 31, 0, 1, 2, 4)
    place.write_bytes(data + again)
    assert read_dependencies(tmp_path, {"a.o"}) == {"a.o": ["b.cpp"]}


def test_lists_of_headers_are_good_up_to_where_they_were_cut(tmp_path: Path) -> None:
    data = deps_bytes({"a.o": ["a.cpp"], "b.o": ["b.cpp"]})
    whole = len(deps_bytes({"a.o": ["a.cpp"]}))
    for size in range(len(data)):
        (tmp_path / ".ninja_deps").write_bytes(data[:size])
        expected = {"a.o": ["a.cpp"]} if size >= whole else {}
        assert read_dependencies(tmp_path, {"a.o", "b.o"}) == expected
    (tmp_path / ".ninja_deps").write_bytes(data.replace(b"deps\n\x04", b"deps\n\x63"))
    assert read_dependencies(tmp_path, {"a.o"}) == {}
    assert read_dependencies(tmp_path / "nowhere", {"a.o"}) == {}


def test_jobs_are_kept_with_what_they_took_in_this_run(logs: Path, folder: Path) -> None:
    keep_records(logs, [record(folder / "one.o", 6.0), record(folder / "sub/../li$b.so", 2.0)])
    gather(logs, RUN, SINCE)
    (kept,) = read_jobs(logs, RUN)
    assert kept.folder == str(folder)
    assert list(kept.jobs) == [
        Job(f"{folder}/gen/a b.h", "command", "gen/a b.h", 1, 4.0, 0, ()),
        Job(f"{folder}/order", "command", "order", 1, 0, 0, (0,)),
        Job(f"{folder}/one.o", "compile", "../one.cpp", 1, 6.5, 6.0, (1,)),
        Job(f"{folder}/old.o", "compile", "../old.cpp", 1, 0, 0, (1,)),
        Job(f"{folder}/li$b.so", "link", "li$b.so", 1, 2.0, 2.0, (2, 3)),
    ]


def test_headers_are_counted_once_a_compile_and_sources_are_none(logs: Path, folder: Path) -> None:
    keep_records(logs, [record(folder / "one.o", 6.0)])
    gather(logs, RUN, SINCE)
    (kept,) = read_jobs(logs, RUN)
    assert [(header.path, header.bytes, header.compiles) for header in kept.headers] == [
        (str(folder.parent / "all.h"), 300, 1),
        (str(folder / "gen/a b.h"), 50, 1),
    ]
    assert (kept.compiles, kept.text) == (1, 360)
    # Of both runs together: old.o counts too.
    gather(logs, RUN, 0.0)
    (kept,) = read_jobs(logs, RUN)
    assert [(header.bytes, header.compiles) for header in kept.headers] == [(300, 2), (50, 1)]
    assert [header.cpu_seconds for header in kept.headers] == [6.0, 6.0]
    assert (kept.compiles, kept.text) == (2, 680)


def test_every_part_of_a_batch_is_of_its_job(logs: Path, folder: Path) -> None:
    (folder / "torchsmith.ninja").write_text(BATCHED.format(folder=str(folder).replace(" ", "$ ")))
    batches = folder / "torchsmith-batches"
    batches.mkdir()
    parts = [batches / "ab12-00ff00ff.o.part", batches / "ab12-11ee11ee.o.part"]
    assert {job_of(str(part)) for part in parts} == {f"{batches}/ab12"}
    keep_records(logs, [record(part, 3.0) for part in parts])
    gather(logs, RUN, SINCE)
    (kept,) = read_jobs(logs, RUN)
    assert list(kept.jobs) == [Job(f"{batches}/ab12", "compile", "../one.cpp", 2, 6.5, 6.0, ())]


def test_what_is_kept_outlives_the_folder_and_what_is_missing_stops_nothing(
    logs: Path, folder: Path
) -> None:
    keep_records(logs, [record(folder / "one.o"), record("/nowhere/x.o"), record("")])
    (folder / ".ninja_deps").unlink()
    gather(logs, RUN, SINCE)
    (kept,) = read_jobs(logs, RUN)
    assert (kept.headers, kept.compiles, kept.text) == ((), 0, 0)
    (folder / "build.ninja").unlink()
    gather(logs, RUN, SINCE)
    assert read_jobs(logs, RUN) == (kept,)
    assert read_jobs(logs, "another") == ()


def ended(kind: str, step: str) -> events.Event:
    if kind == "failed":
        return events.StepFailed(step=step, title="", reason="", excerpt=(), log="")
    if kind == "interrupted":
        return events.StepInterrupted(step=step, title="")
    numbers = {"seconds": 1.0, "cpu_seconds": 1.0, "peak_rss": 1, "bytes_stored": 1}
    return events.StepFinished(step=step, title="", **numbers)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["finished", "failed", "interrupted"])
def test_the_end_of_a_compile_step_is_when_jobs_are_gathered(
    logs: Path, folder: Path, kind: str
) -> None:
    keep_records(logs, [record(folder / "one.o")])
    log = JobLog(logs)
    log.heed(events.RunStarted(at=SINCE, run=RUN, plan="p", work="w", total=2, to_run=("a", "b")))
    for step, what in (("a", "fetch"), ("b", "compile")):
        log.heed(events.StepStarted(step=step, title="", kind=what, log="", resumed=False))
        assert read_jobs(logs, RUN) == ()
        log.heed(ended(kind, step))
    assert [job.seconds for job in read_jobs(logs, RUN)[0].jobs] == [4.0, 0, 6.5, 0, 2.0]
