"""Every plan that makes artifacts writes down what they are, and says so beforehand."""

from __future__ import annotations

import hashlib

import pytest
from tests.plans import arguments
from tests.unit.test_plan_keys import planned
from tests.unit.test_presets import planned as preset_plan

from torchsmith.plan.attest import Attest, about_wheel, attestations
from torchsmith.plan.models import Plan, Step
from torchsmith.plan.render.script import render_script
from torchsmith.recipe.presets import presets

pytestmark = pytest.mark.unit

RECIPE = """
name = "lab"
torch = "2.6.0"
python = "3.11"
cuda = "none"
patches = ["fix.patch"]
companions = { vision = "match" }
packages = { conda = true, libtorch = true }
"""


LENDING = """
[source]
kind = "debian"
suite = "bookworm"
"""


def attest(plan: Plan, variant: str = "lab") -> tuple[Step, Attest]:
    step = plan.step(f"attest-{variant}")
    return step, arguments(step, Attest)


def test_each_artifact_of_a_plan_gets_both_documents() -> None:
    plan = planned(RECIPE)
    step, told = attest(plan)
    artifacts = [subject.artifact for subject in told.subjects]
    ends = [name.rpartition("/")[2].split("-")[0] for name in artifacts]
    assert ends == ["torch", "torchvision", "pytorch", "torchvision", "libtorch"]
    assert step.outputs == tuple(name for item in artifacts for name in attestations(item))
    assert step.kind == "package"
    assert isinstance(step.arguments, Attest)


def test_it_comes_after_everything_it_reads_or_vouches_for() -> None:
    plan = planned(RECIPE)
    step, _ = attest(plan)
    before = [other.id for other in plan.steps[: plan.steps.index(step)]]
    assert set(step.needs) <= set(before)
    kinds = {plan.step(need).kind for need in step.needs}
    assert kinds == {"fetch", "environment", "compile", "package", "verify"}


def test_a_companion_is_made_of_its_own_source_and_the_torch_built_beside_it() -> None:
    _, told = attest(planned(RECIPE))
    subjects = {subject.project: subject for subject in told.subjects if ".whl" in subject.artifact}
    vision = subjects["vision"]
    assert [tree.rpartition("/")[2][:6] for tree in vision.trees] == ["vision"]
    assert vision.beside == (subjects["torch"].artifact,)
    assert subjects["torch"].beside == ()
    # The packages hold the same build: they come from the same source.
    packed = [subject for subject in told.subjects if subject.project == "torch"]
    assert len({subject.trees for subject in packed}) == 1


def test_patches_are_named_by_their_hash() -> None:
    content = b"--- a/x\n+++ b/x\n"
    _, told = attest(planned(RECIPE, content))
    (patch,) = [change for change in told.changes if change.name == "fix.patch"]
    assert patch.sha256 == hashlib.sha256(content).hexdigest()


def test_what_is_done_with_a_result_is_no_part_of_it() -> None:
    plain = attest(planned(RECIPE))[0]
    jobs = RECIPE + '[[job]]\nname = "train"\nrole = [{ command = "true" }]\n'
    assert attest(planned(jobs))[0].key == plain.key
    other = attest(planned(RECIPE.replace('cuda = "none"', 'cuda = "none"\nprofile = "debug"')))[0]
    assert other.key != plain.key


def test_a_script_without_torchsmith_leaves_the_hashes() -> None:
    script = render_script(planned(RECIPE), "test")
    torch = "dist/lab/torch-2.6.0+cpu-cp311-cp311-linux_x86_64.whl"
    assert f"sha256sum {torch} > {torch}.sha256" in script
    assert 'for file in dist/lab/torchvision-0.21.0*.whl; do sha256sum "$file"' in script


def test_a_plan_that_makes_nothing_attests_nothing() -> None:
    plan = planned('name = "none"\ntorch = { release = "2.6.0", use = "wheel" }\ncuda = "none"\n')
    assert not [step for step in plan.steps if isinstance(step.arguments, Attest)]


@pytest.mark.parametrize("name", [preset.name for preset in presets()])
def test_every_wheel_of_a_preset_has_something_to_say_of_itself(name: str) -> None:
    plan = preset_plan(name)
    steps = {step.id: step for step in plan.steps}
    for step in plan.steps:
        wheels = [output for output in step.outputs if output.endswith(".whl")]
        told = about_wheel(step, steps)
        if step.kind != "compile" or not wheels:
            assert told is None
            continue
        assert told is not None
        (subject,) = told.subjects
        assert subject.artifact == wheels[0]
        # What it reads is there while it compiles: a step that it needs itself brought it.
        (tree,) = subject.trees
        assert any(tree in steps[need].outputs for need in step.needs)
        assert len({origin.tree for origin in told.origins}) == len(told.origins)


def test_a_source_that_lends_files_is_named_apart() -> None:
    plan = planned(RECIPE.replace("2.6.0", "1.13.1") + LENDING)
    steps = {step.id: step for step in plan.steps}
    (torch,) = [step for step in plan.steps if step.id.startswith("compile-torch-")]
    told = about_wheel(torch, steps)
    assert told is not None
    assert len({origin.tree for origin in told.origins}) == len(told.origins) > 1
