"""The steps that ship: what each does with torchsmith, and where it leaves things."""

from __future__ import annotations

import pytest
from tests.plans import arguments, shell_lines
from tests.unit.test_plan_commands import plan_of

from torchsmith.errors import RecipeError
from torchsmith.plan.models import Plan, Step
from torchsmith.plan.publish import Accounts, Shipment
from torchsmith.recipe.load import parse_recipe

pytestmark = pytest.mark.unit

RECIPE = """
name = "lab"
torch = "2.6.0"
python = "3.11"
packages = { conda = true, libtorch = true }

[publish]
index = "idx"
channel = "ch"
bucket = "s3://lab-wheels/torch/"
anaconda_user = "alice"
repository = "https://pypi.example.org/legacy/"
"""


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_of(RECIPE)[0]


def shipped(plan: Plan, identity: str) -> tuple[Step, Shipment]:
    step = plan.step(identity)
    return step, arguments(step, Shipment)


def test_wheels_and_libtorch_go_into_the_recipes_own_folder(plan: Plan) -> None:
    step, shipment = shipped(plan, "publish-index-lab")
    archive = "dist/lab/libtorch-2.6.0+cpu-linux-x86_64.zip"
    assert shipment == Shipment(("dist/lab/*.whl", archive), index="idx")
    assert step.outputs == ("$PROJECT/idx",)
    assert step.needs == ("verify-torch-lab", "package-libtorch-lab", "attest-lab")
    assert all('"$PROJECT"/idx' in line for line in shell_lines(plan, step))


def test_packages_go_into_the_recipes_own_channel(plan: Plan) -> None:
    step, shipment = shipped(plan, "publish-channel-lab")
    files = ("channel/lab/*/*.conda", "channel/lab/*/*.tar.bz2")
    assert shipment == Shipment(files, channel="ch")
    assert step.outputs == ("$PROJECT/ch",)


def test_a_bucket_is_filled_after_the_folders_it_is_a_copy_of(plan: Plan) -> None:
    step, shipment = shipped(plan, "publish-bucket-lab")
    assert step.needs == ("publish-index-lab", "publish-channel-lab")
    assert shipment == Shipment(
        index="idx", channel="ch", to=("s3",), accounts=Accounts(bucket="s3://lab-wheels/torch/")
    )
    assert shell_lines(plan, step)[-1].endswith('"$PROJECT"/ch s3://lab-wheels/torch/channel')


def test_uploads_name_their_secrets_and_hold_none(plan: Plan) -> None:
    step, shipment = shipped(plan, "publish-wheels-lab")
    assert step.secrets == ("TWINE_PASSWORD",)
    assert (shipment.files, shipment.to) == (("dist/lab/*.whl",), ("pypi",))
    step, shipment = shipped(plan, "publish-anaconda-lab")
    assert step.secrets == ("ANACONDA_TOKEN",)
    assert shipment.accounts == Accounts(anaconda_user="alice")


def test_a_bucket_alone_is_a_copy_of_nothing() -> None:
    with pytest.raises(RecipeError) as caught:
        parse_recipe('torch = "2.6.0"\npublish = { bucket = "s3://lab" }\n', "test", None)
    assert "name one of them too" in str(caught.value.problems[0])
