"""The journal of submissions, and submitting with it: no job is lost and none sent twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from torchsmith.errors import ClusterError, OutputError, UnansweredError, UsageError
from torchsmith.jobs.client import Listed, Output, Request, Status, Submitted, TargetId, TaskStatus
from torchsmith.jobs.files import load_jobs
from torchsmith.jobs.models import Job
from torchsmith.jobs.states import State
from torchsmith.jobs.submissions import Intent, Submission, Submissions, look_up, submit

pytestmark = pytest.mark.unit


class Cluster:
    """An engine far away: what it took is a fact, whether its answer arrives another."""

    engine = "slurm"
    place = "somewhere"

    def __init__(self) -> None:
        self.taken: dict[str, TargetId] = {}
        self.after: list[tuple[TargetId, ...]] = []
        self.answer: ClusterError | None = None
        self.hears = True

    def check(self, request: Request) -> tuple[str, ...]:
        return ()

    def submit(self, request: Request, token: str) -> TargetId:
        if self.hears:
            self.taken[token] = TargetId(str(100 + len(self.taken)))
            self.after.append(request.after)
        if self.answer is not None:
            raise self.answer
        return self.taken[token]

    def find(self, token: str, kept: Path) -> TargetId | None:
        return self.taken.get(token)

    def status(self, job: Submitted) -> Status | None:
        return Status(State.RUNNING)

    def logs(self, job: Submitted, wanted: Output) -> Iterator[str]:
        return iter(())

    def cancel(self, job: Submitted) -> None:
        return

    def list(self) -> tuple[Listed, ...]:
        return ()


@pytest.fixture
def submissions(tmp_path: Path) -> Iterator[Submissions]:
    made = Submissions(tmp_path / "store")
    yield made
    made.close()


def jobs(folder: Path, text: str = 'name = "job"\n[[role]]\ncommand = "true"\n') -> list[Job]:
    path = folder / "job.toml"
    path.write_text(text, encoding="utf-8")
    return load_jobs(path)


def sent(folder: Path, cluster: Cluster, submissions: Submissions) -> Submission:
    (made,) = submit(jobs(folder), cluster, submissions, folder)
    return made


def test_an_intent_is_written_before_the_engine_is_asked(
    submissions: Submissions, tmp_path: Path
) -> None:
    seen: list[str] = []

    class Watched(Cluster):
        def submit(self, request: Request, token: str) -> TargetId:
            other = Submissions(tmp_path / "store")
            seen.extend(one.token for one in other.all() if one.status.state is State.UNSENT)
            other.close()
            return super().submit(request, token)

    made = sent(tmp_path, Watched(), submissions)
    assert seen == [made.token]
    assert made.engine_id == "100"
    assert made.status.state is State.WAITING


def test_a_lost_answer_loses_no_job_and_sends_none_twice(
    submissions: Submissions, tmp_path: Path
) -> None:
    cluster = Cluster()
    cluster.answer = UnansweredError("timed out")
    with pytest.raises(UnansweredError):
        sent(tmp_path, cluster, submissions)
    cluster.answer = None
    made = sent(tmp_path, cluster, submissions)
    assert list(cluster.taken) == [made.token]
    assert [one.id for one in submissions.all()] == [made.id]


def test_an_intent_nobody_heard_is_sent_under_its_own_token(
    submissions: Submissions, tmp_path: Path
) -> None:
    cluster = Cluster()
    cluster.hears, cluster.answer = False, UnansweredError("timed out")
    with pytest.raises(UnansweredError):
        sent(tmp_path, cluster, submissions)
    (unsent,) = submissions.all()
    cluster.hears, cluster.answer = True, None
    assert look_up(submissions.get(unsent.id), cluster, submissions).engine_id == ""
    assert sent(tmp_path, cluster, submissions).token == unsent.token


def test_a_refused_job_is_not_kept(submissions: Submissions, tmp_path: Path) -> None:
    cluster = Cluster()
    cluster.answer = ClusterError("no such partition")
    with pytest.raises(ClusterError):
        sent(tmp_path, cluster, submissions)
    assert submissions.all() == []


def test_an_intent_of_a_command_that_still_runs_is_left_to_it_until_it_died(
    submissions: Submissions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Dies(Cluster):
        def submit(self, request: Request, token: str) -> TargetId:
            super().submit(request, token)
            raise KeyboardInterrupt

    dies, cluster = Dies(), Cluster()
    with pytest.raises(KeyboardInterrupt):
        sent(tmp_path, dies, submissions)
    (first,) = submissions.all()
    cluster.taken = dies.taken
    # This very process is at it.
    assert first.under_way
    assert look_up(first, cluster, submissions).engine_id == ""
    assert sent(tmp_path, cluster, submissions).id != first.id
    monkeypatch.setattr("torchsmith.jobs.submissions.born", lambda pid: f"a later {pid}")
    assert sent(tmp_path, cluster, submissions).id == first.id


def test_jobs_of_a_file_are_sent_in_order_with_the_ids_of_those_before(
    submissions: Submissions, tmp_path: Path
) -> None:
    cluster = Cluster()
    text = (
        '[[job]]\nname = "use"\nafter = ["make"]\nrole = [{ command = "true" }]\n'
        '[[job]]\nname = "make"\nrole = [{ command = "true" }]\n'
    )
    made = list(submit(jobs(tmp_path, text), cluster, submissions, tmp_path))
    assert [one.intent.name for one in made] == ["make", "use"]
    assert cluster.after == [(), (TargetId("100"),)]


def test_a_job_waits_only_for_one_of_its_own_engine(
    submissions: Submissions, tmp_path: Path
) -> None:
    intent = Intent("other", "kubernetes", "", "", tmp_path, {"main": 1})
    other = submissions.accepted(submissions.intend(intent).id, TargetId("pod"))
    with pytest.raises(UsageError, match="is a job of kubernetes"):
        list(submit(jobs(tmp_path), Cluster(), submissions, tmp_path, after=[other]))
    assert len(submissions.all()) == 1


def test_what_was_seen_of_a_job_is_kept_whole_and_its_end_is_the_end(
    submissions: Submissions, tmp_path: Path
) -> None:
    made = sent(tmp_path, Cluster(), submissions)
    tasks = (TaskStatus("main", 0, State.FAILED, 3, "n1"),)
    status = Status(State.FAILED, "FAILED", "NonZeroExitCode", 3, ("n1",), 1.0, 2.0, tasks)
    assert submissions.seen(made.id, status).status == status
    assert submissions.seen(made.id, Status(State.RUNNING)).status == status
    assert submissions.open() == []


def test_a_job_is_found_by_the_beginning_of_its_id(
    submissions: Submissions, tmp_path: Path
) -> None:
    made = sent(tmp_path, Cluster(), submissions)
    assert submissions.get(made.id[:3]) == made
    for nobody in ("", "%", "nobody"):
        with pytest.raises(UsageError, match="there is no job"):
            submissions.get(nobody)


def test_a_journal_that_cannot_be_kept_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match=r"the store .* cannot be used"):
        Submissions(tmp_path / "file" / "store")
