"""Who may start, with files that exist only as numbers."""

from __future__ import annotations

import random

import pytest

from torchsmith.toolchain.admission import Admission, Room

pytestmark = pytest.mark.unit

FREE = Room()


def admitted(admission: Admission, room: Room = FREE) -> list[int]:
    """Start all that may start now."""
    started = []
    while (job := admission.candidate(room)) is not None:
        admission.start(job)
        started.append(job)
    return started


def test_light_ones_use_every_core_and_no_more() -> None:
    admission = Admission(budget=100, cores=4)
    for job in range(10):
        admission.arrive(job, 1)
    assert admitted(admission) == [0, 1, 2, 3]


def test_heavy_ones_do_not_pile_up_and_light_ones_fill_in() -> None:
    admission = Admission(budget=100, cores=4)
    for job in range(3):
        admission.arrive(job, 60)
    for job in range(3, 10):
        admission.arrive(job, 5)
    assert admitted(admission) == [0, 3, 4, 5]
    admission.leave(0)
    assert admitted(admission) == [1]


def test_one_always_runs_however_large() -> None:
    admission = Admission(budget=10, cores=4)
    admission.arrive(1, 1000)
    admission.arrive(2, 1)
    assert admitted(admission, Room(available=0, pressure=99.0)) == [1]


def test_what_others_on_the_machine_take_counts() -> None:
    admission = Admission(budget=100, cores=4, margin=5)
    for job in range(4):
        admission.arrive(job, 20)
    # 45 are free, of which 5 stay so; the two started have not used theirs yet.
    assert admitted(admission, Room(available=45)) == [0, 1]


def test_memory_in_use_by_a_compile_is_not_counted_twice() -> None:
    admission = Admission(budget=100, cores=4)
    admission.arrive(0, 40)
    admitted(admission)
    admission.measure(0, 40)
    admission.arrive(1, 40)
    assert admitted(admission, Room(available=45)) == [1]


def test_a_compile_that_outgrows_its_estimate_keeps_others_waiting() -> None:
    admission = Admission(budget=100, cores=4)
    admission.arrive(0, 10)
    admitted(admission)
    admission.measure(0, 80)
    admission.arrive(1, 30)
    assert admitted(admission) == []
    admission.leave(0)
    assert admitted(admission) == [1]


def test_under_pressure_nothing_more_starts() -> None:
    admission = Admission(budget=100, cores=4)
    admission.arrive(0, 10)
    admission.arrive(1, 10)
    assert admitted(admission, Room(pressure=60.0)) == [0]
    assert admitted(admission, Room(pressure=1.0)) == [1]


def test_a_killed_one_waits_for_all_others_and_then_runs_alone() -> None:
    admission = Admission(budget=100, cores=4)
    for job in range(3):
        admission.arrive(job, 10)
    assert admitted(admission) == [0, 1, 2]
    admission.leave(1)
    admission.arrive(1, 15, alone=True)
    admission.arrive(3, 1)
    assert admitted(admission) == []
    admission.leave(0)
    assert admitted(admission) == []
    admission.leave(2)
    assert admitted(admission) == [1]
    admission.leave(1)
    assert admitted(admission) == [3]


def test_several_killed_ones_run_one_after_another() -> None:
    admission = Admission(budget=100, cores=4)
    for job in range(3):
        admission.arrive(job, 1, alone=True)
    for job in range(3):
        assert admitted(admission) == [job]
        admission.leave(job)


def test_a_heavy_one_is_not_starved_by_a_stream_of_light_ones() -> None:
    admission = Admission(budget=100, cores=4, patience=8)
    for job in range(4):
        admission.arrive(job, 20)
    running = admitted(admission)
    admission.arrive(1000, 90)
    for job in range(4, 100):
        admission.arrive(job, 20)
        admission.leave(running.pop(0))
        started = admitted(admission)
        running += started
        if 1000 in started:
            break
        if not running:
            pytest.fail("nothing runs")
    assert 1000 in running


def test_beside_a_due_one_what_fits_still_runs() -> None:
    admission = Admission(budget=100, cores=4, patience=1)
    admission.arrive(0, 60)
    admitted(admission)
    admission.arrive(1, 70)
    admission.arrive(2, 10)
    assert admitted(admission) == [2]
    admission.arrive(3, 40)
    admission.arrive(4, 20)
    # Number 1 is due: 40 beside its 70 would delay it, 20 does not.
    assert admitted(admission) == [4]
    admission.leave(0)
    assert admitted(admission) == [1]


@pytest.mark.parametrize("seed", range(20))
def test_whatever_comes_the_budget_holds_and_everything_ends(seed: int) -> None:
    chance = random.Random(seed)
    admission = Admission(budget=100, cores=chance.randint(1, 8))
    sizes = {job: chance.choice([1, 3, 10, 40, 70, 120]) for job in range(200)}
    pending, running, ended = list(sizes), list[int](), set[int]()
    while len(ended) < len(sizes):
        for _ in range(chance.randint(0, 4)):
            if pending:
                job = pending.pop()
                admission.arrive(job, sizes[job])
        running += admitted(admission)
        assert len(running) <= admission.cores
        assert len(running) <= 1 or sum(sizes[job] for job in running) <= 100
        assert running or not admission.waiting
        if running:
            job = running.pop(chance.randrange(len(running)))
            admission.leave(job)
            ended.add(job)
