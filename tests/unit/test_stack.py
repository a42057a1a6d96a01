"""A stack: packages by name, resolved together, each built as its own setup wants, and locked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.plans import shell_lines
from tests.unit.test_plan_keys import planned
from tests.unit.test_resolve_conflicts import FACTS, HERE, outcomes

from torchsmith.errors import RecipeError
from torchsmith.facts.answers import about_stack
from torchsmith.facts.torch import companion_releases
from torchsmith.plan.packages import Together
from torchsmith.recipe.matrix import Variant
from torchsmith.recipe.models import Recipe
from torchsmith.resolve.models import Refusal, Resolution
from torchsmith.resolve.refusal import changed
from torchsmith.resolve.resolve import resolve

pytestmark = pytest.mark.unit

GRAPHS = """
name = "graphs"
torch = { release = "2.13.0", use = "wheel" }
python = "3.11"
system = "ubuntu-22.04"

[stack]
torch-sparse = "match"
"""
CUDA = {"cuda": "12.8", "system": "ubuntu-22.04"}


def resolved(**wish: Any) -> Resolution:
    (found,) = outcomes({"python": "3.11", **wish})
    assert isinstance(found, Resolution), found
    return found


def refused(**wish: Any) -> Refusal:
    (found,) = outcomes({"python": "3.11", **wish})
    assert isinstance(found, Refusal), found
    for conflict in found.conflicts:
        if conflict.kind.startswith("python"):
            continue
        assert conflict.first.statement
        assert conflict.second.source.startswith(("https://pypi.org/", "https://github.com/"))
    return found


# As in causal-conv1d's and mamba's: each release names all GPUs of its day.
OWN_GPUS = """
import os
os.environ["TORCH_CUDA_ARCH_LIST"] = ""
cc_flag = []
cc_flag.append("-gencode")
cc_flag.append("arch=compute_75,code=sm_75")
print(["-O3", *cc_flag], os.environ["TORCH_CUDA_ARCH_LIST"])
"""


def test_a_setup_that_names_gpus_of_its_own_is_told_those_asked_for(tmp_path: Path) -> None:
    plan = planned(
        'name = "one"\ntorch = { release = "2.6.0", use = "wheel" }\npython = "3.11"\n'
        'cuda = "12.4"\ngpus = ["9.0"]\n[stack]\nmamba-ssm = "match"\n'
    )
    step = plan.step("compile-mamba-ssm-one")
    (edit,) = [line for line in step.commands if line.startswith("sed ")]
    setup = tmp_path / "build/one/mamba-ssm/setup.py"
    setup.parent.mkdir(parents=True)
    setup.write_text(OWN_GPUS)
    subprocess.run(["bash", "-c", edit], cwd=tmp_path, check=True)
    env = {"TORCH_CUDA_ARCH_LIST": dict(step.env)["TORCH_CUDA_ARCH_LIST"]}
    told = subprocess.check_output([sys.executable, setup], env=env, text=True)
    assert told == "['-O3'] 9.0\n"
    # So the code in the wheel can be held against what was asked for.
    proof = plan.step("verify-mamba-ssm-one").expects
    assert proof is not None
    assert proof.built == ("mamba-ssm",)


def test_what_a_package_imports_is_built_and_proven_before_it() -> None:
    plan = planned(GRAPHS)
    compiled = [step.project for step in plan.steps if step.kind == "compile"]
    assert compiled == ["torch-scatter", "torch-sparse"]
    proof = plan.step("verify-torch-sparse-graphs")
    assert "verify-torch-scatter-graphs" in proof.needs
    assert proof.expects is not None
    assert proof.expects.beside == ("dist/graphs/torch_scatter-*.whl",)
    # What the wheel needs can be brought before there is no network.
    assert "scipy" in proof.pip


def test_the_lock_holds_torch_and_every_wheel_and_comes_after_their_proofs() -> None:
    plan = planned(GRAPHS)
    lock = plan.step("lock-graphs")
    assert lock.outputs == ("dist/graphs/pylock.toml",)
    assert {"verify-torch-scatter-graphs", "verify-torch-sparse-graphs"} < set(lock.needs)
    assert lock.task is not None
    given = lock.task.arguments
    assert isinstance(given, Together)
    assert given.words == ("--ignore-installed", "torch==2.13.0")
    assert given.wheels == ("dist/graphs/torch_scatter-*.whl", "dist/graphs/torch_sparse-*.whl")
    assert "pip lock --output dist/graphs/pylock.toml" in "\n".join(shell_lines(plan, lock))


def test_a_torch_of_ours_is_locked_by_its_own_wheel() -> None:
    plan = planned(GRAPHS.replace('{ release = "2.13.0", use = "wheel" }', '"2.13.0"'))
    lock = plan.step("lock-graphs")
    assert lock.task is not None
    given = lock.task.arguments
    assert isinstance(given, Together)
    assert given.words == ("--ignore-installed",)
    assert given.wheels[0].startswith("dist/graphs/torch-2.13.0")


def test_without_a_stack_nothing_is_locked() -> None:
    plan = planned(GRAPHS.partition("[stack]")[0] + '[companions]\nvision = "match"\n')
    assert not [step for step in plan.steps if step.id.startswith("lock")]


def test_a_setup_is_told_the_gpus_in_its_own_words_and_to_compile() -> None:
    found = resolved(torch="2.8.0", gpus=["8.6", "9.0"], stack={"flash-attn": "2.8"}, **CUDA)
    (extension,) = found.extensions
    assert extension.sdist == "flash-attn==2.8.3.post2"
    assert dict(extension.env) == {
        "FLASH_ATTENTION_FORCE_BUILD": "TRUE",
        "FLASH_ATTN_CUDA_ARCHS": "80;90",
        "NVCC_THREADS": "1",
    }
    assert "psutil" in found.requires
    assert "torch.cuda.is_available()" in extension.check


def test_gpus_can_be_told_without_a_point() -> None:
    found = resolved(
        torch="2.8.0", gpus=["8.6", "9.0+PTX"], stack={"bitsandbytes": "match"}, **CUDA
    )
    (extension,) = found.extensions
    told = dict(extension.env)["CMAKE_ARGS"]
    assert told == "-DCOMPUTE_BACKEND=cuda -DCOMPUTE_CAPABILITY=86;90"


@pytest.mark.parametrize(
    ("name", "torch", "version"),
    [
        ("torchao", "2.9.1", "0.15.0"),
        ("torchao", "2.13.0", "0.18.0"),
        ("bitsandbytes", "2.8.0", "0.50.1"),
        ("apex", "2.8.0", "25.09"),
        ("detectron2", "2.8.0", "0.6"),
    ],
)
def test_a_package_that_has_no_sdist_is_taken_from_its_repository(
    name: str, torch: str, version: str
) -> None:
    found = resolved(torch=torch, stack={name: "match"}, gpus=["8.0"], cuda="12.6")
    (extension,) = found.extensions
    (entry,) = [item for item in companion_releases(FACTS, name) if item.version == version]
    assert (extension.sdist, extension.git_ref) == ("", entry.commit)


def test_a_companion_that_a_package_imports_is_proven_before_it() -> None:
    plan = planned(GRAPHS.replace("torch-sparse", "detectron2"))
    compiled = [step.project for step in plan.steps if step.kind == "compile"]
    assert compiled == ["vision", "detectron2"]
    proof = plan.step("verify-detectron2-graphs")
    assert proof.expects is not None
    assert proof.expects.beside == ("dist/graphs/torchvision-0.28.0*.whl",)


def test_the_memory_that_a_package_takes_is_in_the_plan() -> None:
    text = GRAPHS.replace("torch-sparse", "flash-attn").replace("[stack]", 'cuda = "13.0"\n[stack]')
    assert planned(text).step("compile-flash-attn-graphs").cost.memory_mb == 9000


def test_a_package_that_was_measured_is_not_taken_for_torch_scatter() -> None:
    def seconds(name: str) -> float:
        step = planned(GRAPHS.replace("torch-sparse", name)).step(f"compile-{name}-graphs")
        return step.cost.core_seconds

    assert seconds("bitsandbytes") < seconds("detectron2") < seconds("torch-cluster")


def test_companions_can_be_named_by_their_packages() -> None:
    found = resolved(torch="2.6.0", stack={"torchvision": "match", "torch-scatter": "match"})
    assert [item.version for item in found.companions] == ["0.21.0"]
    assert [item.name for item in found.extensions] == ["torch-scatter"]


def test_two_that_take_no_torch_in_common_are_both_named() -> None:
    stack = {"vllm": "0.33.0", "grouped-gemm": "0.3.0"}
    found = refused(torch="2.14.0", cuda="13.0", system="ubuntu-22.04", stack=stack)
    apart = next(item for item in found.conflicts if item.kind == "stack-apart")
    assert apart.message == "vllm 0.33.0 and grouped-gemm 0.3.0 take no torch in common"
    assert apart.first.statement == "vllm 0.33.0 takes torch 2.14.0"
    assert apart.second.statement == "grouped-gemm 0.3.0 takes torch 2.7"


@pytest.mark.parametrize(
    ("wish", "kind", "message"),
    [
        (
            {"torch": "2.8.0", "stack": {"flash-attn": "match"}},
            "stack-cuda",
            "flash-attn 2.8.3.post2 is compiled for GPUs only, and there is no CUDA in this build",
        ),
        (
            {"torch": "2.8.0", "gpus": ["V100"], "stack": {"flash-attn": "match"}, **CUDA},
            "stack-gpu",
            "flash-attn 2.8.3.post2 has no code for compute capability 7.0",
        ),
        (
            {
                "torch": "2.6.0",
                "gpus": ["RTX 5090"],
                "stack": {"flash-attn": "2.7.2.post1"},
                **CUDA,
            },
            "stack-gpu",
            "flash-attn 2.7.2.post1 has no code for compute capability 12.0",
        ),
        (
            {"torch": "2.6.0", "board": "jetson-agx-orin", "stack": {"flash-attn": "match"}},
            "stack-gpu",
            "flash-attn 2.8.3.post2 has no code for compute capability 8.7",
        ),
        (
            {"torch": "2.6.0", "gpus": ["GTX 980"], "stack": {"bitsandbytes": "0.49.2"}, **CUDA},
            "stack-gpu",
            "bitsandbytes 0.49.2 has no code for compute capability 5.2",
        ),
        (
            {"torch": "2.3.0", "python": "3.12", "stack": {"vllm": "0.4.2"}, **CUDA},
            "stack-python",
            "vllm 0.4.2 does not take Python 3.12",
        ),
        (
            {"torch": "2.6.0", "stack": {"xformers": "0.0.28"}},
            "companion-torch",
            "xformers 0.0.28 does not go with torch 2.6.0",
        ),
        (
            {"torch": "1.13.1", "stack": {"xformers": "match"}},
            "companion-missing",
            "there is no xformers for torch 1.13.1",
        ),
        (
            {"torch": "2.6.0", "stack": {"torch-scatter": "9.9"}},
            "companion-unknown",
            "there is no torch-scatter 9.9 that we know of",
        ),
        (
            {"torch": "1.13.1", "python": "3.7", "stack": {"torch-cluster": "1.6.3"}},
            "stack-python",
            "torch-cluster 1.6.3 does not take Python 3.7",
        ),
    ],
)
def test_who_does_not_go_with_the_rest_is_named(
    wish: dict[str, Any], kind: str, message: str
) -> None:
    found = refused(**wish)
    assert (kind, message) in [(item.kind, item.message) for item in found.conflicts]
    # What is said to work does.
    assert found.changes
    recipe = changed(Recipe.model_validate({"python": "3.11", **wish}), found.changes)
    assert isinstance(resolve(Variant("near", recipe), FACTS, HERE), Resolution)


@pytest.mark.parametrize(
    ("wish", "release"),
    [
        ({"torch": "2.4.1", "cuda": "12.1", "gpus": ["8.0"]}, "2.8.3.post2"),
        # From 2.7.4 on its setup asks for CUDA 12.
        ({"torch": "2.4.1", "cuda": "11.8", "gpus": ["8.0"]}, "2.7.3"),
        ({"torch": "2.4.1", "cuda": "11.8", "gpus": ["8.0"], "python": "3.8"}, "2.7.0.post2"),
    ],
)
def test_match_is_the_newest_release_that_takes_the_cuda_and_python_asked_for(
    wish: dict[str, Any], release: str
) -> None:
    found = resolved(system="ubuntu-22.04", stack={"flash-attn": "match"}, **wish)
    (extension,) = found.extensions
    assert extension.sdist == f"flash-attn=={release}"


def test_the_cure_of_a_release_that_does_not_take_this_cuda_is_one_that_does() -> None:
    wish = {"torch": "2.4.1", "cuda": "11.8", "gpus": ["8.0"], "system": "ubuntu-22.04"}
    found = refused(stack={"flash-attn": "2.8.3"}, **wish)
    assert "flash-attn 2.7.3" in found.nearest


def test_a_name_nobody_knows_is_a_mistake_with_a_suggestion() -> None:
    from torchsmith.recipe.load import parse_recipe

    with pytest.raises(RecipeError) as told:
        parse_recipe('torch = "2.6.0"\n[stack]\nflash_attn = true\n', "recipe.toml", None)
    (problem,) = told.value.problems
    assert (problem.line, problem.meant) == (3, "flash-attn")


def test_every_package_has_a_release_an_operation_and_packages_that_are_known() -> None:
    names = {item.name for item in FACTS.stack.package}
    companions = {item.package for item in FACTS.companions.project}
    for package in FACTS.stack.package:
        assert companion_releases(FACTS, package.name), package.name
        assert set(package.uses) <= names | companions
        assert package.check
        assert package.gpu_check or not package.needs_cuda or package.network, package.name
        compile(package.check, package.name, "exec")
        compile(package.gpu_check, package.name, "exec")
        assert about_stack(FACTS, package.name).lines
    assert {item.name for item in FACTS.stack.release} == names


def test_an_extension_of_a_known_project_is_told_what_a_stack_would_tell_it() -> None:
    plan = planned(
        'name = "lab"\ntorch = { release = "2.8.0", use = "wheel" }\npython = "3.11"\n'
        'cuda = "12.8"\nsystem = "ubuntu-22.04"\n[[companions.extension]]\nname = "mine"\n'
        f'sdist = "mamba_ssm==2.2.5"\nsha256 = "{"0" * 64}"\n'
    )
    assert dict(plan.step("compile-mine-lab").env)["MAMBA_FORCE_BUILD"] == "TRUE"


def test_an_sdist_without_its_sources_is_not_what_is_built() -> None:
    # PyPI's fast-hadamard-transform 1.1.0 has a setup.py that compiles csrc/, and no csrc/.
    stack = {"fast-hadamard-transform": "match"}
    found = resolved(torch="2.8.0", gpus=["9.0"], stack=stack, **CUDA)
    (extension,) = found.extensions
    assert not extension.sdist
    assert extension.git_url == "https://github.com/Dao-AILab/fast-hadamard-transform"
    assert extension.git_ref == "1cc807efbd6cc001df359822d60bf6052dd66859"
