"""What every step of every preset holds to, so that any renderer can write it down."""

from __future__ import annotations

import re
import shlex

import pytest
from tests.plans import arguments, shell_lines

from torchsmith.facts.files import shipped
from torchsmith.host.models import Host
from torchsmith.plan.build import make_plan
from torchsmith.plan.conda import conda_requirements
from torchsmith.plan.images import ImageTask
from torchsmith.plan.models import Plan, Step
from torchsmith.plan.render.dockerfile import dockerfile_context
from torchsmith.plan.render.instructions import copy, quoted, sentences
from torchsmith.plan.render.script import render_script
from torchsmith.plan.shell import in_project, plain_name
from torchsmith.recipe.load import load_recipe, parse_recipe
from torchsmith.recipe.matrix import expand
from torchsmith.recipe.models import Recipe
from torchsmith.recipe.presets import find_preset, presets
from torchsmith.resolve.models import Resolution
from torchsmith.resolve.resolve import resolve

pytestmark = pytest.mark.unit

HOST = Host(platform="linux-x86_64", system="debian-12")


def plan_of(text: str) -> tuple[Plan, Recipe]:
    loaded = (
        parse_recipe(text, "test", None) if "\n" in text else load_recipe(find_preset(text).path)
    )
    facts = shipped()
    outcomes = [resolve(item, facts, HOST, loaded.files) for item in expand(loaded.recipe)]
    resolved = [item for item in outcomes if isinstance(item, Resolution)]
    assert len(resolved) == len(outcomes), outcomes
    return make_plan(loaded.recipe, resolved, facts, "test"), loaded.recipe


NAMES = [preset.name for preset in presets()]


@pytest.fixture(params=NAMES)
def plan(request: pytest.FixtureRequest) -> Plan:
    return plan_of(request.param)[0]


def test_no_command_hides_a_failure_in_a_chain(plan: Plan) -> None:
    # `set -e` ends at a failing `a` in `a && b` only where the chain is the last thing done.
    chained = [
        (step.id, command)
        for step in plan.steps
        for command in shell_lines(plan, step)
        if "&&" in shlex.split(command, comments=False)
    ]
    assert not chained


def test_every_command_is_one_line_for_a_dockerfile(plan: Plan) -> None:
    assert not [step.id for step in plan.steps for line in shell_lines(plan, step) if "\n" in line]


def test_no_step_writes_where_another_of_its_variant_writes(plan: Plan) -> None:
    outputs = [output for step in plan.steps if step.kind != "publish" for output in step.outputs]
    assert len(outputs) == len(set(outputs))


def test_environments_are_written_by_one_step_only(plan: Plan) -> None:
    def writers(step: Step) -> bool:
        return any(
            re.search(r"\S+/env/bin/python -m pip install", line)
            for line in shell_lines(plan, step)
        )

    assert {step.kind for step in plan.steps if writers(step)} <= {"environment"}


def test_nothing_needs_a_tool_newer_than_ubuntu_16_04_for_a_plan_made_for_it() -> None:
    plan, _ = plan_of("orion-vgpu")
    lines = [line for step in plan.steps for line in shell_lines(plan, step)]
    # git 2.7 has no --jobs: another way has to stand beside it.
    assert all("||" in line for line in lines if "--jobs" in line)
    # pip 8 does not know which releases still run on Python 3.5.
    first = next(line for line in lines if "pip install" in line)
    assert "'pip<21'" in first
    # `cp -n` fails on files that are there, from coreutils 9.2 on, and not before.
    assert not [line for line in lines if re.search(r"\bcp -\w*n", line)]


def test_a_folder_of_the_recipe_is_named_so_that_it_can_be_copied_and_watched() -> None:
    text = 'torch = "2.6.0"\nsource = { kind = "folder", path = "src/pytorch" }\nimage = {}\n'
    plan, recipe = plan_of(text)
    (fetch,) = (step for step in plan.steps if step.kind == "fetch")
    assert fetch.reads == ("src/pytorch",)
    script = render_script(plan, "test")
    assert 'content_of "$PROJECT"/src/pytorch' in script
    dockerfile = dockerfile_context(plan, recipe, "test")["Dockerfile"].decode()
    assert "COPY src/pytorch /opt/torchsmith/project/src/pytorch" in dockerfile
    image = next(step for step in plan.steps if step.kind == "image")
    # An image takes the wheels of the plan: it compiles nothing of the folder again.
    task = arguments(image, ImageTask)
    assert (task.wheels, task.reads) == ("dist/torch/*.whl", ())
    assert any(
        "cp dist/torch/*.whl image/torch/wheels/" in line for line in shell_lines(plan, image)
    )


def test_a_toolkit_from_wheels_is_shared_by_the_pythons_it_serves() -> None:
    plan, _ = plan_of(
        'torch = "2.9.0"\npython = ["3.11", "3.12"]\ngpus = ["9.0"]\n'
        'cuda = { version = "13.0", toolkit = "wheels" }\n'
    )
    (toolkit,) = (step for step in plan.steps if step.id.startswith("toolkit-"))
    assert toolkit.variant == ""
    for step in plan.steps:
        if step.kind in ("configure", "compile"):
            assert toolkit.id in step.needs
            assert dict(step.env)["CUDA_HOME"] == f"@/{toolkit.outputs[0]}"


def test_an_image_of_a_published_wheel_has_no_compilers_and_no_missing_stage() -> None:
    text = 'torch = { release = "2.6.0", use = "wheel" }\npython = "3.13"\nsystem = "debian-12"\n'
    plan, recipe = plan_of(text + "image = {}\n")
    dockerfile = dockerfile_context(plan, recipe, "test")["Dockerfile"].decode()
    stages = set(re.findall(r"^FROM \S+ AS (\S+)", dockerfile, re.MULTILINE))
    assert set(re.findall(r"--from=(\S+)", dockerfile)) <= stages
    assert not re.search(r"^ +g(cc|\+\+)\b", dockerfile, re.MULTILINE)


@pytest.mark.parametrize("name", NAMES)
def test_every_stage_a_dockerfile_names_exists_before_it(name: str) -> None:
    for content in dockerfile_context(*plan_of(name), "test").values():
        stages: set[str] = set()
        for line in content.decode().splitlines():
            if match := re.match(r"FROM (\S+)(?: AS (\S+))?$", line):
                assert ":" in match[1] or match[1] in stages | {"scratch"}, line
                stages.add(match[2])
            if match := re.match(r"COPY --from=(\S+)", line):
                assert ":" in match[1] or match[1] in stages, line


def test_values_are_quoted_the_way_a_dockerfile_reads_them() -> None:
    assert quoted("Asia/Seoul") == "Asia/Seoul"
    assert quoted('a "b" $C \\') == '"a \\"b\\" \\$C \\\\"'
    assert copy("a b", "/c") == 'COPY ["a b", "/c"]'


def test_names_and_paths_are_safe_in_a_shell() -> None:
    assert plain_name("-fix it's $(x).patch") == "fix_it_s___x_.patch"
    assert in_project("/abs/o lute") == "'/abs/o lute'"
    assert in_project("rel") == '"$PROJECT"/rel'


def test_reasons_become_sentences() -> None:
    assert sentences("Fetch torch", "its own.", "") == "Fetch torch. Its own."
    assert sentences("X", "https://example.org at v1") == "X. https://example.org at v1."


def test_requirements_are_written_as_conda_writes_them() -> None:
    wishes = ["numpy<2", "typing-extensions>=4.8", "wheel", "typing; python_version < '3.5'"]
    assert conda_requirements(wishes)["numpy"] == "numpy <2"
    assert conda_requirements(wishes)["typing_extensions"] == "typing_extensions >=4.8"
