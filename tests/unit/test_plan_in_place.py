"""What is built of a folder is built in the tree of the time before, and of nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from torchsmith.engine.door import keyed, without_acceleration
from torchsmith.engine.shell import inherited_environment, step_environment
from torchsmith.facts.files import shipped
from torchsmith.host.models import Host
from torchsmith.plan.build import in_place, make_plan
from torchsmith.plan.models import Plan, Step
from torchsmith.recipe.load import parse_recipe
from torchsmith.recipe.matrix import expand
from torchsmith.resolve.models import Resolution
from torchsmith.resolve.resolve import resolve

pytestmark = pytest.mark.unit

HOST = Host(platform="linux-x86_64", system="debian-12")
FOLDER = 'torch = "2.6.0"\nsource = { kind = "folder", path = "pytorch" }\n'
PATCH = b"--- a\n+++ b\n"


def planned(text: str) -> Plan:
    loaded = parse_recipe(text, "test", None)
    files = {wish.file: PATCH for wish in loaded.recipe.patches}
    outcomes = [resolve(item, shipped(), HOST, files) for item in expand(loaded.recipe)]
    resolved = [item for item in outcomes if isinstance(item, Resolution)]
    assert len(resolved) == len(outcomes)
    return make_plan(loaded.recipe, resolved, shipped(), "test")


def compiling(plan: Plan) -> Step:
    (step,) = (step for step in plan.steps if (step.kind, step.project) == ("compile", "torch"))
    return step


def mark(plan: Plan) -> str:
    """What says whether a tree may be built on."""
    (line,) = (line for line in compiling(plan).commands if "--configured" in line)
    return line.split()[-1]


def test_a_source_that_is_no_folder_is_built_as_it_was() -> None:
    for source in ('{ kind = "debian", suite = "trixie" }', '{ kind = "git" }'):
        plan = planned(f'torch = "2.6.0"\nsource = {source}\n')
        assert in_place(plan, {}) == plan


@pytest.mark.parametrize("more", ["", 'patches = ["fix.patch"]\n'], ids=["plain", "patched"])
def test_configuring_and_compiling_become_one_step(more: str) -> None:
    plan = planned(FOLDER + more)
    (configure,) = (step for step in plan.steps if step.kind == "configure")
    before, after = compiling(plan), compiling(in_place(plan, {"pytorch": "1"}))
    assert not [step for step in in_place(plan, {}).steps if step.kind == "configure"]
    assert (after.id, after.env, after.outputs) == (before.id, before.env, before.outputs)
    assert set(after.needs) == {*configure.needs, *before.needs} - {configure.id}
    told = "\n".join(after.commands)
    assert "rm -rf build/" not in told
    tree = configure.outputs[0]
    assert after.commands.count(f"cd {tree}") == 1
    # Checked before it is called configured, and that before it is compiled.
    places = [told.index(word) for word in ("--cmake-only", "CMakeCache", "--configured", "wheel")]
    assert places == sorted(places)


def test_an_edit_changes_the_key_and_not_the_mark() -> None:
    one, two = (in_place(planned(FOLDER), {"pytorch": content}) for content in "12")
    assert compiling(one).key != compiling(two).key
    assert mark(one) == mark(two)


def test_all_but_the_source_changes_the_mark() -> None:
    plan = planned(FOLDER)
    (resolution,) = plan.variants
    updated = replace(resolution, compiler=replace(resolution.compiler, version="99.1"))
    others = [
        planned(FOLDER + 'profile = "minimal"\n'),
        planned(FOLDER + 'python = "3.12"\n'),
        planned(FOLDER + "[build]\nenv = { CXXFLAGS = '-g' }\n"),
        without_acceleration(plan),
        replace(plan, variants=(updated,)),
    ]
    marks = {mark(in_place(item, {})) for item in (plan, *others)}
    assert len(marks) == 1 + len(others)


def test_variants_with_other_names_and_the_same_settings_share_a_key() -> None:
    one, two = (
        compiling(in_place(planned(f'name = "{name}"\n{FOLDER}'), {})) for name in ("one", "two")
    )
    assert one.key == two.key


def test_a_touched_file_changes_no_key_and_an_edited_one_does(tmp_path: Path) -> None:
    file = tmp_path / "pytorch/aten/add.cpp"
    file.parent.mkdir(parents=True)
    file.write_text("int add();\n")
    plan = planned(FOLDER)
    before = keyed(plan, tmp_path)
    file.touch()
    assert keyed(plan, tmp_path) == before
    # Twice is as once.
    assert keyed(before, tmp_path) == before
    file.write_text("long add();\n")
    after = {step.id: step.key for step in keyed(plan, tmp_path).steps}
    changed = {step.id for step in before.steps if after[step.id] != step.key}
    assert compiling(before).id in changed
    assert not [step for step in before.steps if step.kind == "environment" and step.id in changed]


def test_a_fresh_build_is_told_so_and_no_caller_can() -> None:
    step = Step("compile", "compile", "")
    base = inherited_environment({"PATH": "/bin", "TORCHSMITH_FRESH": "1"})
    assert "TORCHSMITH_FRESH" not in base
    for fresh in (True, False):
        env = step_environment(step, Path("/w"), base, frozenset(), resume=False, fresh=fresh)
        assert ("TORCHSMITH_FRESH" in env) == fresh
