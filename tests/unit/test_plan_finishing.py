"""A plan finishes wheels where libraries are not left to the system; otherwise it is as before."""

from __future__ import annotations

import pytest
from tests.plans import arguments, shell_lines
from tests.unit.test_plan_keys import planned

from torchsmith.plan.models import Plan
from torchsmith.plan.packages import Finishing
from torchsmith.plan.publish import Shipment
from torchsmith.plan.render.dockerfile import dockerfile_context
from torchsmith.plan.render.script import render_script
from torchsmith.recipe.load import parse_recipe

pytestmark = pytest.mark.unit

RECIPE = """
name = "lab"
torch = "2.6.0"
python = "3.11"
cuda = "none"
companions = { vision = "match" }
packages = { PACKAGES }
image = {}
publish = { index = "index" }
"""


def plan(packages: str) -> Plan:
    return planned(RECIPE.replace("PACKAGES", packages))


def given(plan: Plan, project: str) -> Finishing:
    return arguments(plan.step(f"package-wheel-{project}-lab"), Finishing)


def test_the_default_finishes_nothing() -> None:
    plain = plan("")
    assert not any(isinstance(step.arguments, Finishing) for step in plain.steps)
    same = plan('libraries = "system", strip = false')
    # The provenance quotes the recipe as it is: what comes before that is the same.
    ids = [step.id for step in plain.steps]
    assert ids == [step.id for step in same.steps]
    before = ids.index("attest-lab")
    assert plain.steps[:before] == same.steps[:before]


def test_a_wheel_is_finished_before_it_is_verified() -> None:
    made = plan('libraries = "vendor"')
    torch = given(made, "torch")
    assert torch.wheel == made.step("compile-torch-lab").outputs[0]
    assert torch.output == "dist/lab/finished/torch-2.6.0+cpu-cp311-cp311-*.whl"
    assert (torch.libraries, torch.strip, torch.torch) == ("vendor", True, "")
    verify = made.step("verify-torch-lab")
    assert "package-wheel-torch-lab" in verify.needs
    assert verify.expects is not None
    assert verify.expects.wheel == torch.output
    assert verify.outputs == (f"{torch.output}.verify.json", f"{torch.output}.verify.txt")
    assert torch.output in " ".join(shell_lines(made, verify))


def test_a_companion_is_held_to_its_torch_and_tried_beside_the_finished_one() -> None:
    made = plan('libraries = "vendor", strip = false')
    vision = given(made, "vision")
    assert (vision.torch, vision.strip) == ("2.6.0+cpu", False)
    verify = made.step("verify-vision-lab")
    assert verify.expects is not None
    assert verify.expects.beside == (given(made, "torch").output,)
    assert {"package-wheel-torch-lab", "package-wheel-vision-lab"} <= {*verify.needs}
    # It is compiled as before: finishing changes nothing it is built with.
    assert made.step("compile-vision-lab").key == plan("").step("compile-vision-lab").key


def test_what_is_published_and_put_into_images_is_finished() -> None:
    made = plan('libraries = "vendor"')
    published = made.step("publish-index-lab")
    assert any("in dist/lab/finished/*.whl;" in line for line in shell_lines(made, published))
    assert "dist/lab/finished/*.whl" in arguments(published, Shipment).files
    recipe = parse_recipe(RECIPE.replace("PACKAGES", 'libraries = "vendor"'), "test", None).recipe
    text = dockerfile_context(made, recipe, "test")["Dockerfile"].decode()
    assert "COPY --from=verified /opt/torchsmith/dist/out/finished/*.whl /" in text
    assert text.index("auditwheel repair") < text.index(
        "pip install --quiet 'numpy<3' dist/out/finished"
    )
    assert "auditwheel repair --strip" in render_script(made, "test")


def test_another_way_of_finishing_is_another_key() -> None:
    keys = {
        plan(packages).step("package-wheel-torch-lab").key
        for packages in (
            'libraries = "vendor"',
            'libraries = "vendor", strip = false',
            'libraries = "wheels"',
        )
    }
    assert len(keys) == 3


def test_the_versions_of_nvidias_wheels_are_those_of_the_toolkit() -> None:
    text = RECIPE.replace("PACKAGES", 'libraries = "wheels"').replace('"none"', '"12.6"')
    text = text.replace("2.6.0", "2.7.0").replace('name = "lab"', 'name = "lab"\ngpus = "8.6"')
    made = given(
        planned(text.replace("image = {}", 'system = "ubuntu-22.04"\nimage = {}')), "torch"
    )
    assert made.known[0] == "cuda-toolkit==12.6.*"
    assert made.pins == ""
