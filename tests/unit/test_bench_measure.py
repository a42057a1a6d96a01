"""Measuring goes on whatever a worker does; the workers here are small programs, not torch."""

from __future__ import annotations

import sys
import time

import pytest

from torchsmith.bench.launch import Launch, Worker, WorkerLost, pick_cpus
from torchsmith.bench.measure import Case, Comparison, Effort, Runner, start
from torchsmith.errors import HostError, UsageError

pytestmark = pytest.mark.unit

# Answers as a worker does. What it does when it is asked for the third time is put in.
PROGRAM = """
import json, os, sys, time
asked = 0
for line in sys.stdin:
    wish = json.loads(line)
    said = {}
    if wish["do"] == "begin":
        said = BEGIN
    elif wish["do"] == "prepare":
        said = {"calls": 1, "seconds": 0.001}
    elif wish["do"] == "time":
        asked += 1
        if asked == 3:
            THIRD
        said = {"times": [0.001, 0.002, 0.003]}
    print(json.dumps(said), flush=True)
"""
EFFORT = Effort(rounds=8, lives=2, block=0.001, blocks=3, warm=0.0)
CASES = (Case("one", "fft", "cpu"), Case("two", "fft", "cpu"))


def runner(name: str, third: str = "pass", begin: str = "{'facts': {'torch': '2'}}") -> Runner:
    program = PROGRAM.replace("THIRD", third).replace("BEGIN", begin)
    launch = Launch((sys.executable, "-I", "-S", "-c", program))
    return Runner(name, lambda: launch, {}, (0,), 1)


def test_every_side_has_as_many_rounds_in_all_lives() -> None:
    running = Comparison([runner("a"), runner("b")], CASES, EFFORT, seed=1)
    running.begin()
    seen: list[int] = []
    running.measure(lambda done, total, name: seen.append(done))
    assert seen == [0, 1, 2, 3, 4]
    for record in running.records:
        assert record.times == {"a": [0.002] * 8, "b": [0.002] * 8}
        assert record.lives == [4, 4]


def test_a_side_that_ends_between_rounds_has_failed_and_the_others_go_on() -> None:
    sides = [runner("a"), runner("b", "os._exit(3)"), runner("c")]
    running = Comparison(sides, CASES, EFFORT, seed=1)
    running.begin()
    running.measure(lambda done, total, name: None)
    for record in running.records:
        assert record.failed == {"b": "ended with code 3"}
        assert {name: len(times) for name, times in record.times.items()} == {"a": 8, "c": 8}


def test_the_time_being_up_keeps_what_there_is() -> None:
    running = Comparison([runner("a"), runner("b")], CASES, EFFORT, seed=1)
    running.begin()
    running.measure(lambda done, total, name: None, deadline=time.monotonic() - 1)
    assert running.stopped == "the time was up"
    assert not any(record.times for record in running.records)


def test_ctrl_c_keeps_what_there_is() -> None:
    running = Comparison([runner("a"), runner("b")], CASES, EFFORT, seed=1)
    running.begin()

    def interrupt(done: int, total: int, name: str) -> None:
        if done == 1:
            raise KeyboardInterrupt

    running.measure(interrupt)
    assert running.stopped == "interrupted"
    assert sorted(len(record.times) for record in running.records) == [0, 2]


def test_one_that_hangs_is_ended() -> None:
    with Worker(runner("a", "time.sleep(60)").start()) as worker:
        for _ in range(2):
            worker.ask({"do": "time"}, 10)
        with pytest.raises(WorkerLost, match="did not answer within 0 s"):
            worker.ask({"do": "time"}, 0.2)


@pytest.mark.parametrize(
    ("begin", "kind", "words"),
    [
        ("{'broken': 'no', 'absent': True}", UsageError, "there is no torch"),
        ("{'broken': 'libx.so'}", HostError, "cannot be imported: libx.so"),
        ("{'refused': 'threads=x'}", UsageError, "does not take threads=x"),
        ("{}", HostError, "its worker answered"),
        ("os._exit(1)", HostError, "ended with code 1"),
    ],
)
def test_what_is_no_torch_is_explained(
    begin: str, kind: type[UsageError] | type[HostError], words: str
) -> None:
    with pytest.raises(kind, match=words):
        start(runner("a", begin=begin))


def test_processors_are_those_this_process_may_use() -> None:
    assert len(pick_cpus(1)) == 1
    assert set(pick_cpus(1)) <= set(pick_cpus(0))


@pytest.mark.parametrize("answer", ["[1]", "{", "[" * 100_000, "9" * 5000, "no JSON"])
def test_an_answer_of_no_sense_is_that_of_a_lost_worker(answer: str) -> None:
    program = (
        f"input(); print({answer[:1]!r} * {len(answer)} if {len(answer)} > 99 else {answer!r})"
    )
    with (
        Worker(Launch((sys.executable, "-I", "-S", "-c", program))) as worker,
        pytest.raises(WorkerLost, match="makes no sense"),
    ):
        worker.ask({"do": "begin"}, 20.0)
