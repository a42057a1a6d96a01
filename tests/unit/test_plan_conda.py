"""Conda packages of a plan: which, of what format, after which proof, with which pins."""

from __future__ import annotations

import msgspec
import pytest
from tests.plans import arguments, shell_lines

from torchsmith.facts.files import shipped
from torchsmith.host.models import Host
from torchsmith.plan.build import make_plan
from torchsmith.plan.conda import CondaSpec, cuda_requirements, python_requirements
from torchsmith.plan.models import Plan, Step
from torchsmith.plan.render.conda import render_conda
from torchsmith.recipe.load import parse_recipe
from torchsmith.recipe.matrix import expand
from torchsmith.resolve.models import Resolution
from torchsmith.resolve.resolve import resolve

pytestmark = pytest.mark.unit

RECIPE = """\
name = "lab"
torch = "2.6.0"
python = "3.11"
platform = "linux-x86_64"
system = "ubuntu-22.04"

[companions]
vision = true
extension = [{ name = "torch-scatter", sdist = "torch-scatter==2.1.2", sha256 = "SHA256" }]

[packages]
conda = true
"""
RECIPE = RECIPE.replace("SHA256", "69b3aa43" * 8)
CUDA = RECIPE.replace('python = "3.11"', 'python = "3.11"\ncuda = "12.6"\ngpus = "8.6"')


def planned(text: str) -> Plan:
    facts = shipped()
    loaded = parse_recipe(text, "test", None)
    host = Host(platform="linux-x86_64", system="ubuntu-22.04")
    outcomes = [resolve(variant, facts, host, loaded.files) for variant in expand(loaded.recipe)]
    resolved = [outcome for outcome in outcomes if isinstance(outcome, Resolution)]
    assert len(resolved) == len(outcomes), outcomes
    return make_plan(loaded.recipe, resolved, facts, "test")


def packing(plan: Plan) -> dict[str, tuple[Step, CondaSpec]]:
    found = {}
    for step in plan.steps:
        if step.task is not None and step.task.name == "conda":
            spec = arguments(step, CondaSpec)
            found[spec.name] = (step, spec)
    return found


def test_torch_companions_and_extensions_are_packed() -> None:
    found = packing(planned(RECIPE))
    assert set(found) == {"pytorch", "torchvision", "torch-scatter"}
    assert {spec.build for _, spec in found.values()} == {"cpu_py311_0"}
    for name in ("torchvision", "torch-scatter"):
        step, spec = found[name]
        assert spec.depends == ("pytorch ==2.6.0 cpu_py311_0",)
        assert step.outputs == (f"channel/lab/linux-64/{name}-[0-9]*-cpu_py311_0.conda",)
        assert found["pytorch"][0].id in step.needs


def test_what_is_built_against_a_published_torch_takes_any_build_of_that_release() -> None:
    wheel = RECIPE.replace('torch = "2.6.0"', 'torch = { release = "2.6.0", use = "wheel" }')
    found = packing(planned(wheel))
    assert set(found) == {"torchvision", "torch-scatter"}
    for step, spec in found.values():
        assert spec.depends == ("pytorch ==2.6.0",)
        assert f"verify-{step.project}-lab" in step.needs


def test_only_what_was_proven_is_packed() -> None:
    plan = planned(RECIPE)
    for step, spec in packing(plan).values():
        needs = [plan.step(need) for need in step.needs]
        assert {"compile", "verify"} <= {need.kind for need in needs}
        compiled = next(need for need in needs if need.outputs[0] == spec.wheel)
        proof = next(need for need in needs if need.kind == "verify")
        assert compiled.project == proof.project == step.project


@pytest.mark.parametrize(
    ("asked", "endings"), [("conda", ["conda"]), ("both", ["conda", "tar.bz2"])]
)
def test_a_recipe_says_the_format(asked: str, endings: list[str]) -> None:
    plan = planned(f'{RECIPE}conda_format = "{asked}"\n')
    for step, _ in packing(plan).values():
        assert [output.split("_0.")[1] for output in step.outputs] == endings
        commands = [command for command in shell_lines(plan, step) if "--package-format" in command]
        assert len(commands) == len(endings)


def test_cuda_is_pinned_and_the_cpu_excluded() -> None:
    _, spec = packing(planned(CUDA))["pytorch"]
    assert {"cuda-version >=12.6,<12.7", "__cuda >=12.0"} < set(spec.depends)
    assert {"cpuonly <0", "pytorch-gpu ==2.6.0"} < set(spec.constrains)
    assert spec.run_exports == ("pytorch >=2.6.0,<2.7.0a0",)
    assert spec.build.startswith("py3.11_cuda12.6")


@pytest.mark.parametrize(
    ("gpus", "arch"),
    [
        ("8.6", "__cuda_arch >=8.6,<9.0a0"),
        ("7.0;9.0a", "__cuda_arch >=7.0,<10.0a0"),
        ("8.0;9.0+PTX", "__cuda_arch >=8.0"),
    ],
)
def test_packages_say_on_demand_which_gpus_they_are_for(gpus: str, arch: str) -> None:
    text = CUDA.replace('gpus = "8.6"', f'gpus = "{gpus}"')
    for spec in (spec for _, spec in packing(planned(text)).values()):
        assert not any(item.startswith("__cuda_arch") for item in spec.depends)
        assert spec.flags == ()
    for spec in (spec for _, spec in packing(planned(text + "conda_by_gpu = true\n")).values()):
        assert arch in spec.depends
        codes = gpus.replace("+PTX", "").replace(".", "").split(";")
        assert spec.flags == ("cuda", "cuda:126", *(f"sm:{code}" for code in codes))
    _, spec = packing(planned(RECIPE + "conda_by_gpu = true\n"))["pytorch"]
    assert spec.flags == ("cpu",)
    assert not any(item.startswith("__cuda_arch") for item in spec.depends)


def test_drivers_run_every_minor_release_from_cuda_11_on() -> None:
    assert cuda_requirements("10.2") == ("cudatoolkit >=10.2,<10.3", "__cuda >=10.2")
    assert cuda_requirements("11.8") == ("cudatoolkit >=11.8,<11.9", "__cuda >=11.0")


def test_old_pythons_have_their_own_abi() -> None:
    assert python_requirements("3.7") == (
        "python >=3.7,<3.8.0a0",
        "python_abi 3.7.* *_cp37m",
    )


def test_the_record_of_a_package_has_its_choices_and_patches() -> None:
    _, spec = packing(planned(RECIPE))["pytorch"]
    record = dict(spec.record)
    table = msgspec.json.decode(record["torchsmith.json"])
    assert (table["python"], table["cuda"]) == ("3.11", None)
    assert table["source"]["kind"]


def test_the_rendered_recipe_names_its_blas() -> None:
    def table(text: str) -> str:
        return render_conda(planned(text))["pytorch/recipe.yaml"].decode()

    assert "- mkl-static ==2024.2.2\n" in table(RECIPE)
    assert "- mkl\n" not in table(RECIPE)
    shared = table(RECIPE + '[features]\nmkl = "on"\n')
    assert "- mkl-devel\n" in shared
    assert "- mkl\n" in shared
    asked = table(RECIPE + '[build.env]\nBLAS = "OpenBLAS"\n')
    assert "- libopenblas\n" in asked
    assert "mkl" not in asked


def test_rattler_build_tries_a_cuda_package_where_there_is_no_driver() -> None:
    plan = planned(CUDA)
    step, _ = packing(plan)["pytorch"]
    lines = shell_lines(plan, step)
    assert "export CONDA_OVERRIDE_CUDA=12.0" in lines
    plain = planned(RECIPE)
    assert "CONDA_OVERRIDE" not in "".join(shell_lines(plain, packing(plain)["pytorch"][0]))
