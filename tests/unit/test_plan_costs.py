"""What compiling is expected to take, once and again for another Python."""

from __future__ import annotations

import pytest

from torchsmith.engine.door import without_acceleration, without_cache
from torchsmith.facts.files import shipped
from torchsmith.host.models import Host
from torchsmith.plan.build import make_plan
from torchsmith.plan.models import Plan
from torchsmith.recipe.load import parse_recipe
from torchsmith.recipe.matrix import expand
from torchsmith.resolve.models import Resolution
from torchsmith.resolve.resolve import resolve

pytestmark = pytest.mark.unit

HOST = Host(platform="linux-x86_64", system="debian-12")


def planned(lines: str) -> Plan:
    text = f'name = "lab"\ntorch = "2.6.0"\nprofile = "minimal"\n{lines}\n'
    recipe = parse_recipe(text, "test", None).recipe
    outcomes = [resolve(item, shipped(), HOST, {}) for item in expand(recipe)]
    return make_plan(
        recipe, [item for item in outcomes if isinstance(item, Resolution)], shipped(), "test"
    )


def compiling(plan: Plan) -> list[float]:
    return [step.cost.core_seconds for step in plan.steps if step.kind == "compile"]


def test_files_by_themselves_take_longer_than_in_batches() -> None:
    plan = planned('python = "3.11"')
    (batched,), (apart,) = compiling(plan), compiling(without_acceleration(plan))
    assert 0 < batched < apart


def test_another_python_costs_its_bindings() -> None:
    first, second, third = compiling(planned('python = ["3.11", "3.12", "3.10"]'))
    (single,) = compiling(planned('python = "3.11"'))
    assert first == single
    assert second == third < first / 3


def test_without_a_compiler_cache_every_python_costs_all_of_torch() -> None:
    plan = planned('python = ["3.11", "3.12"]')
    first, second = compiling(without_cache(plan))
    assert first == second == compiling(plan)[0]
    assert [step.key for step in without_cache(plan).steps] == [step.key for step in plan.steps]


def test_every_file_by_itself_costs_all_of_torch_for_every_python() -> None:
    first, second = compiling(without_acceleration(planned('python = ["3.11", "3.12"]')))
    assert first == second


def test_another_configuration_is_another_torch() -> None:
    first, second = compiling(
        planned('python = "3.11"\nmatrix = { features = [{ openmp = "on" }, { openmp = "off" }] }')
    )
    assert first == second


@pytest.mark.parametrize(
    ("source", "basis"),
    [
        ('folder = "own"', "a copy of a folder"),
        ('git = { url = "https://example.org/x.git", ref = "main" }', "a shallow clone"),
    ],
)
def test_what_a_fetch_and_a_first_compile_cost_is_said_as_it_is(source: str, basis: str) -> None:
    text = f"""
torch = {{ release = "2.13.0", use = "wheel" }}
python = "3.11"
[[companions.extension]]
name = "x"
{source}
"""
    loaded = parse_recipe(text, "recipe", None)
    host = Host(platform="linux-x86_64", system="debian-12")
    found = [resolve(item, shipped(), host, {}) for item in expand(loaded.recipe)]
    resolved = [item for item in found if isinstance(item, Resolution)]
    plan = make_plan(loaded.recipe, resolved, shipped(), "0")
    bases = {step.kind: step.cost.basis for step in plan.steps if step.project == "x"}
    assert bases["fetch"] == basis
    # It was never built: what others took is no measurement of it.
    assert bases["compile"] == "estimated"
