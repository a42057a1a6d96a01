"""The book of what compiles took."""

from __future__ import annotations

import contextlib
import multiprocessing
import sqlite3
from pathlib import Path

import pytest

from torchsmith.errors import OutputError
from torchsmith.toolchain.compiles import Compile
from torchsmith.toolchain.memory_book import GUESSES, MIB, MemoryBook

pytestmark = pytest.mark.unit


def unit(file: str = "aten/a.cpp", flags: str = "O2") -> Compile:
    return Compile(file, "", "c++", flags)


def _cpu_seconds(path: Path) -> list[float]:
    with contextlib.closing(sqlite3.connect(path)) as link:
        return [row[0] for row in link.execute("SELECT cpu_seconds FROM compile")]


def test_a_file_is_remembered_across_runs(tmp_path: Path) -> None:
    with MemoryBook(tmp_path / "deep/book.sqlite", "torch") as book:
        book.record(unit(), 700 * MIB, 9.5, 10.0)
    with MemoryBook(tmp_path / "deep/book.sqlite", "torch") as book:
        assert book.estimate(unit()).bytes == 700 * MIB
        assert book.estimate(unit()).basis == "this file"
        assert _cpu_seconds(tmp_path / "deep/book.sqlite") == [9.5]
    with MemoryBook(tmp_path / "deep/book.sqlite", "torchvision") as book:
        assert book.known(unit()) is None


def test_estimates_fall_back_from_the_file_to_its_like_to_a_guess() -> None:
    book = MemoryBook()
    assert book.estimate(unit()).bytes == GUESSES["c++"]
    for number in range(10):
        book.record(unit(f"aten/native/{number}.cpp"), (number + 1) * MIB, 1, 1)
    assert book.estimate(unit("aten/native/new.cpp")).bytes == 10 * MIB
    assert book.estimate(unit("torch/new.cpp")).basis == "c++ files of this project"
    assert book.estimate(unit("aten/native/3.cpp", "O0")).bytes == 4 * MIB
    assert book.estimate(Compile("x.cu", "", "cuda", "")).bytes == GUESSES["cuda"]


def test_a_percentile_needs_enough_files() -> None:
    book = MemoryBook()
    for number in range(4):
        book.record(unit(f"a/{number}.cpp"), number + 1, 1, 1)
    assert book.percentile(0.5, "c++", folder="a") == 3
    assert book.percentile(0.0, "c++") == 1
    assert book.percentile(1.0, "c++") == 4
    assert book.percentile(0.5, "c++", least=5) is None


def test_a_peak_grows_at_once_and_shrinks_slowly() -> None:
    book = MemoryBook()
    book.record(unit(), 100, 1, 1)
    book.record(unit(), 400, 1, 1)
    assert book.known(unit()) == 400
    book.record(unit(), 200, 1, 1)
    assert book.known(unit()) == 350


def test_a_kill_only_raises_what_is_known(tmp_path: Path) -> None:
    book = MemoryBook(tmp_path / "book")
    book.record(unit(), 400, 3, 3)
    book.record_killed(unit(), 300)
    assert book.known(unit()) == 400
    book.record_killed(unit(), 500)
    assert book.known(unit()) == 500
    assert _cpu_seconds(tmp_path / "book") == [3]


def test_a_broken_book_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "book"
    path.write_bytes(b"not a database at all" * 100)
    with MemoryBook(path) as book:
        book.record(unit(), 5, 1, 1)
        assert book.known(unit()) == 5
    assert (tmp_path / "book.broken").exists()


def test_a_place_that_cannot_hold_a_book_is_explained(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot be opened"):
        MemoryBook(tmp_path / "file" / "book")


def _write_fifty(path: Path, writer: int) -> None:
    with MemoryBook(path) as book:
        for number in range(50):
            book.record(unit(f"{writer}/{number}.cpp"), number, 1, 1)


def test_several_builds_write_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [
        context.Process(target=_write_fifty, args=(tmp_path / "book", writer))
        for writer in range(3)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0, 0]
    with MemoryBook(tmp_path / "book") as book:
        for first in range(3):
            for number in range(50):
                assert book.known(unit(f"{first}/{number}.cpp")) == number
