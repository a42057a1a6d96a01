"""Where a plan's steps run is part of the plan, and what people call things is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchsmith.engine.door import Wanted, plan_recipe
from torchsmith.engine.preflight import emulated, ensure_platform, ensure_toolkits
from torchsmith.engine.store import Store
from torchsmith.errors import HostError
from torchsmith.host.models import Host, Toolkit
from torchsmith.plan.attest import Attest
from torchsmith.plan.images import ImageTask
from torchsmith.plan.models import Plan, Step
from torchsmith.plan.render.dockerfile import dockerfile_context
from torchsmith.recipe.load import LoadedRecipe, parse_recipe

pytestmark = pytest.mark.unit

HOST = Host(platform="linux-x86_64", system="debian-12")
INSIDE = {"environment", "configure", "compile", "verify"}
TORCH = """
name = "first-name"
torch = "2.6.0"
python = "3.11"
source = { kind = "debian" }
[companions]
vision = "match"
[packages]
libraries = "vendor"
conda = true
"""


def recipe(text: str) -> LoadedRecipe:
    return parse_recipe(text, "test", None)


def planned(text: str, tmp_path: Path, **wanted: object) -> Plan:
    asked = Wanted(elsewhere=True, **wanted)  # type: ignore[arg-type]
    return plan_recipe(recipe(text), HOST, Store(tmp_path / "store"), asked)


def in_debian(version: int, text: str = TORCH) -> str:
    return text.replace('python = "3.11"', f'system = "debian-{version}"')


def keys(plan: Plan) -> list[str]:
    return [step.key for step in plan.steps]


def base_of(plan: Plan) -> Step:
    (base,) = [step for step in plan.steps if step.kind == "base"]
    return base


@pytest.mark.parametrize("version", [11, 12, 13])
def test_a_distribution_is_a_container_for_what_needs_it(version: int, tmp_path: Path) -> None:
    plan = planned(in_debian(version), tmp_path)
    base = base_of(plan)
    for step in plan.steps:
        made_there = step.task is not None and step.task.name in ("finish", "attest")
        assert step.place.inside == (step.kind in INSIDE or made_there), step.id
        if step.place.inside:
            assert step.place.system == f"debian-{version}"
            assert step.place.base == base.id
            assert base.id in step.needs
    task = base.task
    assert task is not None
    assert isinstance(task.arguments, ImageTask)
    dockerfile = plan.files[f"{task.arguments.context}/Dockerfile"].decode()
    assert f"FROM docker.io/library/debian:{version}" in dockerfile


def test_without_a_distribution_everything_runs_on_the_machine(tmp_path: Path) -> None:
    plan = planned(TORCH, tmp_path)
    assert not plan.inside
    assert "base" not in {step.kind for step in plan.steps}


def test_here_overrides_the_recipes_distribution(tmp_path: Path) -> None:
    plan = planned(in_debian(12), tmp_path, here=True)
    assert not plan.inside
    # The statement of how it was made quotes the recipe, which is another.
    made = {step.id: step.key for step in plan.steps if not isinstance(step.arguments, Attest)}
    assert made.items() <= {step.id: step.key for step in planned(TORCH, tmp_path).steps}.items()


def test_another_distribution_is_another_build_of_the_same_sources(tmp_path: Path) -> None:
    one, other = (planned(in_debian(version), tmp_path) for version in (12, 13))
    for step, same in zip(one.steps, other.steps, strict=True):
        assert (step.key == same.key) == (step.kind in ("fetch", "patch")), step.id


def test_variants_of_one_distribution_share_its_image(tmp_path: Path) -> None:
    text = in_debian(12) + '[matrix]\ncpu = ["portable", "haswell"]\n'
    plan = planned(text, tmp_path)
    assert len(plan.variants) == 2
    assert base_of(plan)


@pytest.mark.parametrize("text", [TORCH, in_debian(13)])
def test_a_recipes_name_is_in_no_key(text: str, tmp_path: Path) -> None:
    one = planned(text, tmp_path)
    other = planned(text.replace("first-name", "another-name"), tmp_path)
    assert keys(one) == keys(other)


def test_a_recipes_name_makes_no_other_layer(tmp_path: Path) -> None:
    image = '[image]\nname = "lab"\n'
    made: list[list[str]] = []
    for name in ("first-name", "another-name"):
        text = (in_debian(12) + image).replace("first-name", name)
        plan = planned(text, tmp_path)
        files = dockerfile_context(plan, recipe(text).recipe, "test")
        # Labels name the recipe: they stand last, and hold no file.
        lines = files["Dockerfile"].decode().splitlines()
        made.append([line for line in lines if name not in line])
        assert all(
            "dev.torchsmith" in line or line.startswith("#") for line in lines if name in line
        )
    assert made[0] == made[1]


def test_images_are_made_of_the_plans_own_wheels(tmp_path: Path) -> None:
    plan = planned(in_debian(12) + '[image]\nname = "lab"\n', tmp_path)
    images = [step for step in plan.steps if step.kind == "image"]
    verified = {step.id for step in plan.steps if step.kind == "verify"}
    for step in images:
        assert isinstance(step.arguments, ImageTask)
        assert step.arguments.wheels
        assert verified & set(step.needs)
        text = plan.files[f"{step.arguments.context}/Dockerfile"].decode()
        assert "setup.py" not in text


def test_an_image_without_a_distribution_is_built_inside_its_own_base(tmp_path: Path) -> None:
    plan = planned(TORCH + '[image]\nname = "lab"\nbase = "registry.example/ours:1"\n', tmp_path)
    task = base_of(plan).task
    assert task is not None
    assert isinstance(task.arguments, ImageTask)
    assert (
        "FROM registry.example/ours:1"
        in plan.files[f"{task.arguments.context}/Dockerfile"].decode()
    )
    wheels = planned(TORCH + '[image]\nname = "lab"\nbuild = "wheels"\n', tmp_path)
    assert not wheels.inside


def test_a_platform_nothing_here_can_run_is_refused(tmp_path: Path) -> None:
    other = TORCH.replace('name = "first-name"', 'name = "first-name"\nplatform = "linux-aarch64"')
    with pytest.raises(HostError, match="cannot be compiled on this linux-x86_64 machine"):
        ensure_platform(planned(other, tmp_path), HOST)
    assert ensure_platform(planned(TORCH, tmp_path), HOST) == ""


def test_a_cuda_this_machine_does_not_have_is_refused_before_anything_is_installed(
    tmp_path: Path,
) -> None:
    text = TORCH.replace('python = "3.11"', 'python = "3.11"\ncuda = "12.6"\ngpus = ["8.6"]')
    plan = planned(text, tmp_path)

    def host(version: str) -> Host:
        found = Toolkit(path="/opt/cuda", version=version, nvcc="/opt/cuda/bin/nvcc")
        return HOST.model_copy(update={"cuda": (found,)})

    with pytest.raises(HostError, match=r"no CUDA 12\.6 \(here: 13\.0\.88\)"):
        ensure_toolkits(plan, host("13.0.88"))
    ensure_toolkits(plan, host("12.6.85"))
    # A container brings its own.
    ensure_toolkits(planned(in_debian(12, text).replace("12.6", "11.8"), tmp_path), HOST)


def test_only_an_emulator_that_is_enabled_counts(tmp_path: Path) -> None:
    assert emulated(tmp_path) == frozenset()
    (tmp_path / "qemu-aarch64").write_text("disabled\ninterpreter /usr/bin/qemu-aarch64\n")
    (tmp_path / "qemu-x86_64").write_text("enabled\ninterpreter /usr/bin/qemu-x86_64\n")
    assert emulated(tmp_path) == {"linux-x86_64"}


def test_which_program_makes_images_is_in_no_key(tmp_path: Path) -> None:
    text = in_debian(12) + '[image]\nname = "lab"\n'
    asked = planned(text, tmp_path, tool="docker", network="host", layers=False)
    assert keys(asked) == keys(planned(text, tmp_path))


def test_torch_that_clones_nccl_itself_has_a_network_and_says_why(tmp_path: Path) -> None:
    text = (
        'torch = "2.8.0"\npython = "3.11"\ngpus = ["8.0"]\ncuda = "12.8"\n'
        '[source]\nkind = "git"\n[features]\nnccl = "on"\n'
    )

    def networks(text: str, **wanted: object) -> set[str]:
        steps = planned(text, tmp_path, **wanted).steps
        return {step.network for step in steps if step.kind in ("configure", "compile")}

    (why,) = networks(text)
    assert "clones NCCL" in why
    assert networks(text.replace('"on"', '"system"')) == {""}
    assert networks(TORCH, online=True) == {"asked for: --online"}
