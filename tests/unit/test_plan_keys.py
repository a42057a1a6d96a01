"""A plan is a function of its recipe: the same bytes anywhere, keys that change only with cause."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.plans import arguments

from torchsmith.engine.door import without_acceleration
from torchsmith.facts.files import shipped
from torchsmith.host.models import Host
from torchsmith.plan.build import make_plan
from torchsmith.plan.expects import Expects
from torchsmith.plan.models import Plan, Step, Task, step_key
from torchsmith.plan.render.conda import render_conda
from torchsmith.plan.render.dockerfile import dockerfile_context
from torchsmith.plan.render.script import render_script
from torchsmith.recipe.load import parse_recipe
from torchsmith.recipe.matrix import expand
from torchsmith.recipe.presets import presets
from torchsmith.resolve.models import Resolution
from torchsmith.resolve.resolve import resolve

pytestmark = pytest.mark.unit

HOST = Host(platform="linux-x86_64", system="debian-12")

RECIPE = """
name = "NAME"
torch = "2.6.0"
python = ["3.11", "3.12"]
patches = ["fix.patch"]
companions = { vision = "match" }
packages = { conda = true }
image = {}
"""


def planned(text: str, patch: bytes = b"--- a\n+++ b\n") -> Plan:
    loaded = parse_recipe(text, "test", None)
    facts = shipped()
    files = {wish.file: patch for wish in loaded.recipe.patches}
    outcomes = [resolve(item, facts, HOST, files) for item in expand(loaded.recipe)]
    resolved = [item for item in outcomes if isinstance(item, Resolution)]
    assert len(resolved) == len(outcomes)
    return make_plan(loaded.recipe, resolved, facts, "test")


def rekeyed(steps: Iterable[Step], files: dict[str, bytes]) -> dict[str, str]:
    keys: dict[str, str] = {}
    for step in steps:
        keys[step.id] = step_key(step, keys, files)
    return keys


def dependants(plan: Plan, identity: str) -> set[str]:
    found = {identity}
    for step in plan.steps:
        if found & set(step.needs):
            found.add(step.id)
    return found


PLAN = planned(RECIPE)
KEYS = {step.id: step.key for step in PLAN.steps}


def changed(identity: str, **fields: object) -> set[str]:
    steps = [replace(step, **fields) if step.id == identity else step for step in PLAN.steps]
    after = rekeyed(steps, dict(PLAN.files))
    return {name for name, key in after.items() if key != KEYS[name]}


def compiling() -> Step:
    return next(step for step in PLAN.steps if (step.kind, step.project) == ("compile", "torch"))


@pytest.mark.parametrize(
    "fields",
    [
        {"env": (("CC", "another"),)},
        {"commands": ("true",)},
        {"path": ("elsewhere/bin",)},
        {"reads": ("a-folder",)},
        {"outputs": ("dist/other.whl",)},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_a_change_reaches_the_step_and_what_rests_on_it_and_nothing_else(
    fields: dict[str, object],
) -> None:
    step = compiling()
    assert changed(step.id, **fields) == dependants(PLAN, step.id)


@pytest.mark.parametrize("fields", [{"title": "x"}, {"why": "x"}], ids=["title", "why"])
def test_words_for_people_change_no_key(fields: dict[str, object]) -> None:
    assert changed(compiling().id, **fields) == set()


def test_one_byte_of_a_patch_changes_the_patched_tree_and_what_is_built_of_it() -> None:
    other = planned(RECIPE, b"--- a\n+++ c\n")
    before, after = set(KEYS.values()), {step.key for step in other.steps}
    kept = [step for step in PLAN.steps if step.key in before & after]
    assert {step.kind for step in kept} >= {"fetch", "environment"}
    assert not [step for step in kept if step.project == "torch" and step.kind != "fetch"]


def test_variants_that_differ_in_python_share_fetching_and_patching() -> None:
    shared = [step for step in PLAN.steps if not step.variant and step.kind != "base"]
    assert [(step.kind, step.project) for step in shared] == [
        ("fetch", "torch"),
        ("patch", "torch"),
        ("fetch", "vision"),
    ]
    for variant in PLAN.variants:
        mine = PLAN.of(variant.variant)
        assert [step for step in mine if step in shared] == shared


def test_the_name_of_a_recipe_enters_no_key_of_what_is_built() -> None:
    built = ("fetch", "patch", "environment", "configure", "compile", "verify")
    renamed = planned(RECIPE.replace("NAME", "another.name-2"))
    before = [step.key for step in PLAN.steps if step.kind in built]
    assert [step.key for step in renamed.steps if step.kind in built] == before


def test_a_name_that_is_also_a_word_of_the_commands_changes_no_key() -> None:
    single = RECIPE.replace('["3.11", "3.12"]', '"3.11"')
    keys = [
        [step.key for step in planned(single.replace("NAME", name)).steps if step.kind == "compile"]
        for name in ("lab", "bin", "torch", "env", "3")
    ]
    assert all(other == keys[0] for other in keys)


def test_compiling_every_file_by_itself_is_another_result_than_in_batches() -> None:
    plan = planned(RECIPE)
    stock = without_acceleration(plan)
    differ = {
        one.id for one, other in zip(plan.steps, stock.steps, strict=True) if one.key != other.key
    }
    compiled = {step.id for step in plan.steps if step.kind == "compile"}
    assert compiled
    assert differ == compiled.union(*(dependants(plan, identity) for identity in compiled))


def test_every_step_comes_after_what_it_needs() -> None:
    seen: set[str] = set()
    for step in PLAN.steps:
        assert set(step.needs) <= seen, step.id
        seen.add(step.id)


RENDER = """
import hashlib, sys
sys.path.insert(0, sys.argv[1])
import test_plan_keys as t
print(t.fingerprint())
"""


def fingerprint() -> str:
    """Of every rendering of every preset."""
    total = hashlib.sha256()
    for text in [RECIPE, *(item.path.read_text() for item in presets())]:
        plan = planned(text)
        recipe = parse_recipe(text, "test", None).recipe
        files = {**dockerfile_context(plan, recipe, "test"), **render_conda(plan), **plan.files}
        for name, content in [*files.items(), ("script", render_script(plan, "test").encode())]:
            total.update(name.encode() + b"\0" + content)
    return total.hexdigest()


def test_fresh_interpreters_write_the_same_bytes() -> None:
    here = str(Path(__file__).parent)
    prints = {
        subprocess.run(
            [sys.executable, "-c", RENDER, here],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert prints == {fingerprint() + "\n"}


def test_what_a_verification_expects_is_in_its_key_and_changes_no_other() -> None:
    verify = next(step for step in PLAN.steps if (step.kind, step.project) == ("verify", "torch"))
    expects = arguments(verify, Expects)
    other = Task("verify", replace(expects, version="0"))
    assert changed(verify.id, task=other) == dependants(PLAN, verify.id)
    # Its variant's name says only where things lie.
    renamed = Task("verify", replace(expects, variant="another"))
    assert changed(verify.id, task=renamed) == set()


def test_renderings_try_a_wheel_without_torchsmith() -> None:
    script = render_script(PLAN, "test")
    assert "torchsmith.verify" not in script
    assert "x.mm(x)" in script
