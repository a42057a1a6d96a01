"""One build, many readers: what they are told is read once, and each gets every line once."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from torchsmith.engine import journal
from torchsmith.engine.tail import PIECE, last_line_end, piece_between
from torchsmith.web import builds as live
from torchsmith.web.build_view import Builds
from torchsmith.web.builds import Feeds

READERS = 20


class Forge:
    """A store with one running build."""

    def __init__(self, folder: Path) -> None:
        self.journal = journal.Journal(folder / "journal.db")
        self.run = self.journal.begin("small")
        self.log = folder / "logs" / self.run / "compile.log"
        self.log.parent.mkdir(parents=True)
        self.journal.step(self.run, "compile", "running", title="Compile", log=str(self.log))
        self.feeds = Feeds(Builds(folder))

    def write(self, text: str) -> None:
        with self.log.open("a") as file:
            file.write(text)


class Reader:
    """Everything one reader was told."""

    def __init__(self, start: int = 0) -> None:
        self.start = start
        self.text = ""
        self.place = start
        self.chunks: list[bytes] = []
        self.over = False

    async def follow(self, forge: Forge, *, until: str = "") -> None:
        async for chunk in forge.feeds.follow(forge.run, "compile", self.place, silent=False):
            self.chunks.append(chunk)
            for message in chunk.decode().split("\n\n"):
                lines = dict(line.split(": ", 1) for line in message.splitlines())
                if lines.get("event") == "log":
                    self.place = int(lines["id"])
                    self.text += json.loads(lines["data"])["text"]
                self.over = self.over or lines.get("event") == "over"
            if until and until in self.text:
                return


@pytest.fixture
def forge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Forge:
    monkeypatch.setattr(live, "_PAUSE_S", 0.01)
    monkeypatch.setattr("torchsmith.web.build_view._FRESH_S", 0.0)
    return Forge(tmp_path)


def test_every_reader_gets_every_line_once_whenever_it_comes_or_comes_back(forge: Forge) -> None:
    async def watched() -> list[Reader]:
        forge.write("".join(f"line {number}\n" for number in range(20_000)))
        readers = [Reader() for _ in range(READERS)]
        following = [asyncio.create_task(item.follow(forge)) for item in readers]
        leaver = Reader()
        await leaver.follow(forge, until="line 19999\n")
        for number in range(20_000, 20_050):
            forge.write(f"line {number}\n")
            await asyncio.sleep(0.005)
        late = Reader()
        following += [asyncio.create_task(item.follow(forge)) for item in (leaver, late)]
        await asyncio.sleep(0.05)
        forge.write("the last, without its end")
        forge.journal.end(forge.run, "done")
        await asyncio.gather(*following)
        return [*readers, leaver, late]

    for reader in asyncio.run(watched()):
        assert reader.text == forge.log.read_text()
        assert reader.over
    # Who left takes the feed along.
    assert not forge.feeds._all


def test_half_a_line_waits_for_its_other_half(forge: Forge) -> None:
    async def watched() -> Reader:
        forge.write("whole\nhal")
        reader = Reader()
        await reader.follow(forge, until="whole\n")
        assert (reader.text, reader.place) == ("whole\n", 6)
        forge.write("f\n")
        await reader.follow(forge, until="half\n")
        return reader

    assert asyncio.run(watched()).text == "whole\nhalf\n"


def test_what_many_are_told_is_made_once(forge: Forge) -> None:
    async def watched() -> list[Reader]:
        readers = [Reader() for _ in range(READERS)]
        following = [asyncio.create_task(item.follow(forge)) for item in readers]
        for number in range(20):
            forge.write(f"line {number}\n")
            await asyncio.sleep(0.02)
        forge.journal.end(forge.run, "done")
        await asyncio.gather(*following)
        return readers

    readers = asyncio.run(watched())
    each = [{id(chunk) for chunk in item.chunks if b"line" in chunk} for item in readers]
    # Each on its own would have made so many.
    assert len(set.union(*each)) < sum(map(len, each)) / 4


def test_a_page_that_ends_in_the_middle_of_a_line_gets_its_rest(forge: Forge) -> None:
    async def watched() -> Reader:
        forge.write("whole\nhal")
        reader = Reader(start=9)
        following = asyncio.create_task(reader.follow(forge, until="more\n"))
        await asyncio.sleep(0.05)
        forge.write("f\nmore\n")
        await following
        return reader

    assert asyncio.run(watched()).text == "f\nmore\n"


def test_a_log_that_begins_anew_is_read_from_its_beginning(forge: Forge) -> None:
    async def watched() -> Reader:
        forge.write("old " * 50 + "\n")
        reader = Reader()
        following = asyncio.create_task(reader.follow(forge, until="new\n"))
        while "old" not in reader.text:
            await asyncio.sleep(0.01)
        forge.log.write_text("new\n")
        await following
        return reader

    assert asyncio.run(watched()).text.endswith("old \nnew\n")


def test_a_line_without_an_end_is_no_trap(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("x" * (3 * PIECE))
    assert last_line_end(log) == 3 * PIECE
    assert piece_between(log, 5, 3 * PIECE).end == 5 + PIECE
    log.write_text("a\n" + "b" * 10)
    assert last_line_end(log) == 2
    assert piece_between(log, 0, 5).text == "a\nbbb"
    assert last_line_end(tmp_path / "none") == 0
