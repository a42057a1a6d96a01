"""Every engine's words stand for one of our states, and parts add up to a whole."""

from __future__ import annotations

import pytest

from torchsmith.jobs.states import WORDS, State, of_exit, state_of, together
from torchsmith.jobs.targets.slurm import accounted, exit_code, node_names, parts

pytestmark = pytest.mark.unit


def test_every_state_has_a_meaning() -> None:
    assert all(state.meaning for state in State)


@pytest.mark.parametrize("engine", WORDS)
def test_every_engine_can_say_how_a_job_waits_runs_ends_and_is_stopped(engine: str) -> None:
    said = set(WORDS[engine].values())
    assert said >= {State.WAITING, State.RUNNING, State.SUCCEEDED, State.FAILED, State.CANCELLED}
    # Only the journal knows of a job that was never sent.
    assert State.UNSENT not in said


def test_a_word_never_heard_before_is_not_taken_for_an_end_that_is_good_or_bad() -> None:
    assert state_of("slurm", "SOMETHING_NEW") is State.LOST


@pytest.mark.parametrize(
    ("states", "whole"),
    [
        ([State.SUCCEEDED, State.SUCCEEDED], State.SUCCEEDED),
        ([State.SUCCEEDED, State.FAILED], State.FAILED),
        ([State.FAILED, State.RUNNING], State.RUNNING),
        ([State.SUCCEEDED, State.WAITING], State.RUNNING),
        ([State.WAITING, State.WAITING], State.WAITING),
        ([State.CANCELLED, State.TIMEOUT], State.TIMEOUT),
        ([State.SUCCEEDED, State.CANCELLED], State.CANCELLED),
        ([], State.LOST),
    ],
)
def test_a_whole_is_over_when_its_parts_are_and_good_when_all_are(
    states: list[State], whole: State
) -> None:
    assert together(states) is whole


def test_exit_codes_say_how_a_task_ended() -> None:
    assert [of_exit(code) for code in (0, 1, 124, 137)] == [
        *(State.SUCCEEDED, State.FAILED, State.TIMEOUT, State.FAILED)
    ]
    assert [exit_code(text) for text in ("0:0", "3:0", "0:9", "")] == [0, 3, 137, None]


# As Slurm 22.05 says it.
ELEMENTS = """\
JobId=7 ArrayJobId=7 ArrayTaskId=2-9%2 ArrayTaskThrottle=2 JobName=a b UserId=root(0) \
JobState=PENDING Reason=JobArrayTaskLimit Dependency=(null) ExitCode=0:0 StartTime=Unknown \
EndTime=Unknown ReqNodeList=(null) ExcNodeList=(null) NodeList= NumNodes=1 Comment=torchsmith:x
JobId=9 ArrayJobId=7 ArrayTaskId=1 JobName=a b JobState=RUNNING Reason=None ExitCode=0:0 \
StartTime=2026-11-16T07:23:24 EndTime=Unknown ReqNodeList=n3 NodeList=n[1-2]
JobId=8 ArrayJobId=7 ArrayTaskId=0 JobName=a b JobState=TIMEOUT Reason=TimeLimit ExitCode=0:15 \
StartTime=1970-01-01T00:01:00 EndTime=1970-01-01T00:02:00 NodeList=n1
"""


def test_what_scontrol_says_of_an_array_is_read() -> None:
    waiting, running, ended = parts(ELEMENTS)
    assert (waiting.element, waiting.state, waiting.nodes) == ("2-9", State.WAITING, ())
    assert waiting.reason == "JobArrayTaskLimit"
    assert (running.element, running.state, running.nodes) == ("1", State.RUNNING, ("n1", "n2"))
    assert running.reason == ""
    assert (ended.state, ended.exit_code) == (State.TIMEOUT, 143)
    assert (ended.started, ended.ended) == (60.0, 120.0)


def test_a_job_that_waits_for_one_that_failed_never_begins() -> None:
    (part,) = parts("JobId=3 JobState=PENDING Reason=DependencyNeverSatisfied ExitCode=0:0")
    assert part.state is State.CANCELLED


def test_what_sacct_says_is_read_without_the_steps() -> None:
    said = (
        "12_0|COMPLETED|0:0|1970-01-01T00:01:00|1970-01-01T00:02:00|n1\n"
        "12_0.batch|COMPLETED|0:0|1970-01-01T00:01:00|1970-01-01T00:02:00|n1\n"
        "12_1|CANCELLED by 1000|0:15|1970-01-01T00:01:00|1970-01-01T00:02:00|None assigned\n"
    )
    first, second = accounted(said)
    assert (first.element, first.state, first.nodes) == ("0", State.SUCCEEDED, ("n1",))
    assert (second.element, second.state, second.nodes) == ("1", State.CANCELLED, ())


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("n1", ["n1"]),
        ("gpu[08-10,12],login", ["gpu08", "gpu09", "gpu10", "gpu12", "login"]),
        ("a[1-2]-ib,b3", ["a1-ib", "a2-ib", "b3"]),
    ],
)
def test_lists_of_nodes_are_written_out(text: str, names: list[str]) -> None:
    assert list(node_names(text)) == names
