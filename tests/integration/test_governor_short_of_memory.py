"""A real CMake and Ninja build that needs more memory than there is, with real limits."""

from __future__ import annotations

import re

import pytest
from benchmarks.governor_memory import GIB, Outcome, confined, governed, plain, write_project

pytestmark = [pytest.mark.integration, pytest.mark.alone]

LIMIT = 2 * GIB
CORES = 4
FILE = re.compile(r"(heavy|light)_\d+\.cpp")


@pytest.fixture(scope="module")
def outcomes(build_tools: None, tmp_path_factory: pytest.TempPathFactory) -> list[Outcome]:
    """Plain Ninja, governed with nothing known, governed again."""
    folder = tmp_path_factory.mktemp("heavy")
    source, book = folder / "source", folder / "book"
    write_project(source, heavy=4, light=8)
    with confined(LIMIT) as place:
        return [
            plain(place, source, folder / "plain", jobs=8),
            governed(place, source, folder / "first", book, CORES),
            governed(place, source, folder / "second", book, CORES),
        ]


def test_a_plain_parallel_build_is_killed(outcomes: list[Outcome]) -> None:
    assert outcomes[0].status != 0
    assert "Killed" in outcomes[0].said


def test_a_governed_build_with_bad_estimates_ends_well(outcomes: list[Outcome]) -> None:
    first = outcomes[1]
    assert first.status == 0, first.said
    retried = {event["file"] for event in first.of("Retried")}
    assert retried
    assert all(file.startswith("heavy_") for file in retried)
    assert not first.of("GaveUp")


def test_what_was_killed_is_compiled_again_alone(outcomes: list[Outcome]) -> None:
    running: set[int] = set()
    for event in outcomes[1].events:
        if event["event"] == "Started":
            running.add(event["job"])
            if event["attempt"] > 1:
                assert event["alone"]
            if event["alone"]:
                assert running == {event["job"]}
        elif event["event"] in ("Finished", "Retried"):
            running.discard(event["job"])


def test_the_second_build_knows_the_files(outcomes: list[Outcome]) -> None:
    second = outcomes[2]
    assert second.status == 0, second.said
    assert not second.of("Retried")
    # CMake tries the compiler on a file of its own first.
    compiles = [event for event in second.of("Started") if FILE.fullmatch(event["file"])]
    assert len(compiles) == 12
    assert {event["basis"] for event in compiles} == {"this file"}
    for event in compiles:
        assert (event["estimate"] > GIB * 0.9) == event["file"].startswith("heavy_")


def test_heavy_files_stay_within_the_budget(outcomes: list[Outcome]) -> None:
    second = outcomes[2]
    budget = second.of("Budget")[0]["budget"]
    assert budget < LIMIT
    peaks = {event["job"]: event["peak"] for event in second.of("Finished")}
    running: set[int] = set()
    for event in second.events:
        if event["event"] == "Started":
            running.add(event["job"])
            assert event["reserved"] <= budget
            assert sum(peaks[job] for job in running) <= LIMIT
        elif event["event"] == "Finished":
            running.discard(event["job"])


def test_light_files_use_every_core_while_heavy_ones_wait(outcomes: list[Outcome]) -> None:
    second = outcomes[2]
    assert max(event["running"] for event in second.of("Started")) == CORES
    assert {event["file"] for event in second.of("WaitingForMemory")} & {
        f"heavy_{number}.cpp" for number in range(4)
    }
