"""Only what has to be run is run, with only what it reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchsmith.engine.schedule import (
    acts_outside,
    choose,
    final_steps,
    may_share_time,
    ordered,
    readings,
    steps_to_run,
)
from torchsmith.engine.shell import inherited_environment, step_environment
from torchsmith.engine.work import plain_name
from torchsmith.errors import TorchsmithError
from torchsmith.plan.models import Plan, Step
from torchsmith.plan.sources import fetching
from torchsmith.resolve.models import SourceChoice

pytestmark = pytest.mark.unit

FETCH = Step("fetch", "fetch", "", outputs=("sources/torch-2.6.0",))
PATCH = Step(
    "patch",
    "patch",
    "",
    needs=("fetch",),
    outputs=("sources/torch-2.6.0-patched",),
    commands=("cp -a sources/torch-2.6.0 sources/torch-2.6.0-patched",),
)
ENV = Step("env", "environment", "", outputs=("env/one",))
CONFIGURE = Step(
    "configure",
    "configure",
    "",
    needs=("patch", "env"),
    path=("env/one/bin",),
    commands=("cp -a sources/torch-2.6.0-patched/. build/one",),
    outputs=("build/one",),
)
COMPILE = Step(
    "compile",
    "compile",
    "",
    needs=("configure",),
    path=("env/one/bin",),
    commands=("cd build/one", 'make "$WORK"/dist/one'),
    outputs=("dist/one/a-1.whl",),
)
VERIFY = Step("verify", "verify", "", needs=("compile",), commands=("env/one/bin/python",))
PUBLISH = Step(
    "publish",
    "publish",
    "",
    needs=("verify",),
    commands=("cp dist/one/*.whl /srv",),
    outputs=("/srv",),
)
STEPS = [FETCH, PATCH, ENV, CONFIGURE, COMPILE, VERIFY, PUBLISH]


def test_a_step_reads_what_it_needs_and_what_it_names() -> None:
    reads = readings(STEPS)
    assert reads["configure"] == ("patch", "env")
    assert reads["compile"] == ("env", "configure")
    assert reads["verify"] == ("env", "compile")
    assert reads["publish"] == ("compile", "verify")


@pytest.mark.parametrize(
    ("there", "run"),
    [
        ("", "fetch patch env configure compile verify publish"),
        ("compile verify publish", ""),
        ("fetch patch env configure", "compile verify publish"),
        ("configure env", "compile verify publish"),
        ("compile", "env verify publish"),
        ("compile verify", "publish"),
    ],
)
def test_what_is_missing_and_read_by_something_missing_is_run(there: str, run: str) -> None:
    present = there.split()
    chosen = steps_to_run(
        STEPS, readings(STEPS), final_steps(STEPS, None), lambda step: step.id in present
    )
    assert [step.id for step in STEPS if step.id in chosen] == run.split()


def test_each_step_comes_after_what_it_needs() -> None:
    assert [step.id for step in ordered(STEPS[::-1])][-1] == "publish"
    found = [step.id for step in ordered(STEPS[::-1])]
    assert all(found.index(need) < found.index(step.id) for step in STEPS for need in step.needs)
    with pytest.raises(TorchsmithError, match="which the plan does not have"):
        ordered([PATCH])


def test_only_the_named_steps_and_their_needs_are_chosen() -> None:
    plan = Plan("tiny", (), tuple(STEPS))
    assert [step.id for step in choose(plan, ["patch"])] == ["fetch", "patch"]
    assert final_steps(choose(plan, ["patch"]), ["patch"]) == {"patch"}


def test_only_fetches_and_environments_share_time_and_never_two_apts() -> None:
    apt = Step("a", "fetch", "", task=fetching(SourceChoice("debian", package="x"), "x"))
    assert may_share_time(ENV, [FETCH])
    assert may_share_time(ENV, [apt, FETCH])
    assert not may_share_time(COMPILE, [FETCH])
    assert not may_share_time(ENV, [COMPILE])
    assert not may_share_time(apt, [FETCH, apt])


def test_an_output_elsewhere_is_not_ours_to_keep() -> None:
    assert acts_outside(PUBLISH)
    assert acts_outside(Step("a", "package", "", outputs=("../x",)))
    assert not acts_outside(COMPILE)


def test_nothing_of_the_callers_shell_changes_a_build() -> None:
    given = {"PATH": "/bin", "CFLAGS": "-O0", "USE_CUDA": "1", "PYTHONPATH": "/x", "MAX_JOBS": "3"}
    assert inherited_environment(given) == {"PATH": "/bin", "MAX_JOBS": "3"}
    assert int(inherited_environment({})["MAX_JOBS"]) >= 1


def test_a_resume_is_not_handed_on_by_the_caller() -> None:
    base = {"PATH": "/bin", "TORCHSMITH_RESUME": "1"}
    env = step_environment(COMPILE, Path("/w"), base, frozenset(), resume=False)
    assert "TORCHSMITH_RESUME" not in env
    assert env["PATH"] == "/w/env/one/bin:/bin"


def test_any_name_makes_one_file() -> None:
    assert plain_name("../../etc") == "_.._etc"
    assert plain_name("..") == "_"
    assert plain_name("compile-torch-py311+cu12.4") == "compile-torch-py311+cu12.4"
