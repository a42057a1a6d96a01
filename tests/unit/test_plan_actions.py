"""A step has one action: what it says is what is run and what its key holds."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
from tests.plans import twin_of
from tests.unit.test_plan_commands import NAMES, plan_of
from tests.unit.test_plan_keys import KEYS, PLAN, dependants, planned, rekeyed

from torchsmith.engine.shell import step_script
from torchsmith.plan import models
from torchsmith.plan.models import TASKS, Fetch, Plan, Step, Task, Work
from torchsmith.plan.render import twins
from torchsmith.plan.render.script import render_script
from torchsmith.resolve.models import SourceChoice

pytestmark = pytest.mark.unit

# Every kind of task is in the plan of this recipe.
EVERYTHING = """
name = "lab"
torch = "2.6.0"
python = "3.11"
system = "ubuntu-22.04"
cuda = "12.6"
gpus = ["9.0"]
companions = { vision = "match" }
stack = { torch-scatter = "match" }
packages = { conda = true, libtorch = true, libraries = "vendor", magma = true }
image = {}
publish = { index = "idx", channel = "ch", registry = "registry.example.org/lab" }
"""
FETCHING = Task("fetch", Fetch(SourceChoice("folder", path="x"), "sources/x"))


@pytest.fixture(scope="module")
def everything() -> Plan:
    return planned(EVERYTHING)


def test_a_step_with_two_actions_is_refused() -> None:
    with pytest.raises(ValueError, match="a has two actions: commands and a task"):
        Step("a", "fetch", "A", commands=("true",), task=FETCHING)


@pytest.mark.parametrize("name", TASKS)
def test_every_kind_of_task_has_a_program_and_a_twin(name: str, everything: Plan) -> None:
    module = TASKS[name].module
    found = importlib.util.find_spec(module)
    assert found is not None
    assert found.origin is not None
    program = f"{module}.__main__" if found.submodule_search_locations else module
    told = importlib.util.find_spec(program)
    assert told is not None
    assert told.origin is not None
    assert '__name__ == "__main__"' in Path(told.origin).read_text(encoding="utf-8")
    steps = [step for step in everything.steps if step.task is not None and step.task.name == name]
    assert steps, "the recipe above has to need it"
    for step in steps:
        lines = twin_of(everything, step).commands
        assert lines
        assert not [line for line in lines if "TORCHSMITH_PYTHON" in line or "torchsmith." in line]


@pytest.mark.parametrize("name", TASKS)
def test_another_form_of_a_task_changes_its_steps_and_what_rests_on_them_and_no_other(
    name: str, everything: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, form = TASKS[name]
    monkeypatch.setattr(models, "TASKS", {**TASKS, name: Work(module, form + 1)})
    after = rekeyed(everything.steps, dict(everything.files))
    changed = {step.id for step in everything.steps if after[step.id] != step.key}
    doing = {step.id for step in everything.steps if step.task and step.task.name == name}
    assert doing
    assert changed == set().union(*(dependants(everything, identity) for identity in doing))


def test_a_twin_is_in_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = render_script(PLAN, "test")
    monkeypatch.setattr(twins, "ENGINE", "another-engine")
    monkeypatch.setattr(twins, "_verify", lambda _: ("another check",))
    assert rekeyed(PLAN.steps, dict(PLAN.files)) == KEYS
    after = render_script(PLAN, "test")
    assert "another-engine build" in after
    assert "another check" in after
    assert before != after


@pytest.mark.parametrize("name", NAMES)
def test_what_a_step_says_is_what_is_run(name: str) -> None:
    for step in plan_of(name)[0].steps:
        assert not (step.commands and step.task), step.id
        _, *lines = step_script(step).splitlines()
        if step.task is None:
            assert "\n".join(lines) == "\n".join(step.commands), step.id
            continue
        program, text, end = lines
        assert program.endswith(f" -m {step.task.module} <<'{end}'"), step.id
        assert text == step.task.text, step.id
