"""A small project that is struck while it is built ends as if nothing had happened."""

from __future__ import annotations

import base64
import errno
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.fault_project import Project
from benchmarks.faults import Aimed, Campaign, kill_main
from benchmarks.kill_and_resume import kill_all

pytestmark = pytest.mark.integration


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = Project(tmp_path)
    try:
        yield made
    finally:
        made.close()


def test_a_short_round_of_the_campaign_finds_nothing(project: Project) -> None:
    said: list[str] = []
    one = Campaign(project, seed=25, say=said.append)
    one.prepare()
    strikes: list[Aimed] = [
        ("a torchsmith killed", lambda: one.at_step("compile", kill_main)),
        ("a journal cut off", lambda: one.from_within("journal.db", "kill", 30)),
        ("a broken folder", lambda: one.from_within("/store/", f"errno {errno.EIO}", 40)),
        ("everything killed", lambda: one.at_step("publish", kill_all)),
    ]
    if project.mounted:
        strikes.insert(1, ("a full disk", one.full))
    one.chain("small", strikes)
    assert len(one.strikes) >= 3
    assert [line for line in said if not line.endswith(", ok")] == []


def test_a_locked_build_gives_the_same_bytes_again_without_a_network(project: Project) -> None:
    project.make()
    project.save("new")

    def run(*words: str, before: tuple[str, ...] = ()) -> tuple[int, str]:
        done = project.ended(*project.start(*words, "--quiet", before=before), patience=600)
        return done.status, done.stderr

    build = ("build", "--reproducible", "--output", "out", "--jobs")
    status, said = run(*build, "1")
    assert status == 2
    assert "`torchsmith lock`" in said
    assert run("lock") == (0, "")
    lock = (project.project / "torchsmith.lock").read_bytes()
    assert b'name = "setuptools"' in lock
    fetches = ("--step", "environment-small", "--step", "fetch-extension-small")
    assert run("build", "--reproducible", *fetches) == (0, "")
    project.server.close()
    # Not only the server is away, all of the network is, where a test may have it so.
    cut = ("unshare", "--net") if project.mounted else ()
    assert run(*build, "1", before=cut) == (0, "")
    first = project.results()
    assert any(name.endswith(".whl") for name in first)
    assert networks(project) == {"none"}

    project.load("new")
    project.server.start()
    (project.project / "torchsmith.lock").write_bytes(lock)
    assert run(*build, "2") == (0, "")
    second = project.results()
    assert second == first

    # With a network in every step the artifacts are the same, and provenance tells of it.
    assert run(*build, "2", "--online") == (0, "")
    third = project.results("out")
    made = [name for name in third if name.endswith((".whl", ".conda", ".cdx.json"))]
    assert len(made) >= 4
    assert {name: third[name] for name in made} == {name: first[name] for name in made}
    assert networks(project) == {"open"}


def networks(project: Project) -> set[str]:
    """The network that the provenance of each artifact says it was made with."""
    found = set()
    for path in (project.project / "out").rglob("*.intoto.jsonl"):
        statement = json.loads(base64.b64decode(json.loads(path.read_bytes())["payload"]))
        found.add(statement["predicate"]["runDetails"]["metadata"]["torchsmith_network"])
    return found
