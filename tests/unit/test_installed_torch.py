"""A torch that is installed already is found, held against the recipe, and left as it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torchsmith.engine.door import keyed
from torchsmith.facts.files import shipped
from torchsmith.host.models import Compiler, Host, InstalledTorch, Python
from torchsmith.host.probe import Programs
from torchsmith.host.system import environment_python, read_torch, read_torches
from torchsmith.plan.build import make_plan
from torchsmith.plan.models import Plan
from torchsmith.recipe.matrix import expand
from torchsmith.recipe.models import Recipe
from torchsmith.resolve.models import Outcome, Refusal, Resolution
from torchsmith.resolve.resolve import resolve

pytestmark = pytest.mark.unit

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
ABOUT = """
from typing import Optional
__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip']
__version__ = '{version}'
debug = False
cuda: Optional[str] = {cuda!r}
"""
INSTALLED = InstalledTorch(
    version="2.6.0+cu124",
    cuda="12.4",
    python="3.11.4",
    path="/lab/bin/python",
    module="/lab/lib/python3.11/site-packages/torch",
    packages=("/lab/lib/python3.11/site-packages",),
)
HERE = Host(
    platform="linux-x86_64",
    system="debian-12",
    pythons=(Python(version="3.12.1", path="/usr/bin/python3", headers=True),),
    compilers=(Compiler(kind="gcc", version="12.2.0", path="/usr/bin/gcc", cxx="/usr/bin/g++"),),
    torches=(INSTALLED,),
)
WISH: dict[str, Any] = {
    "torch": {"release": "2.6.0", "use": "installed"},
    "companions": {"vision": "match"},
}


def outcome(host: Host = HERE, /, **parts: Any) -> Outcome:
    recipe = Recipe.model_validate({**WISH, **parts})
    (variant,) = expand(recipe)
    return resolve(variant, shipped(), host)


def refused(host: Host = HERE, /, **parts: Any) -> Refusal:
    found = outcome(host, **parts)
    assert isinstance(found, Refusal)
    return found


def planned(host: Host = HERE, /, **parts: Any) -> Plan:
    found = outcome(host, **parts)
    assert isinstance(found, Resolution), found
    return make_plan(Recipe.model_validate({**WISH, **parts}), [found], shipped(), "test")


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    """A real environment with a module called torch in it."""
    folder = tmp_path / "lab"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    install(folder, "2.6.0+cu124", "12.4")
    return folder


def install(folder: Path, version: str, cuda: str | None) -> Path:
    module = folder / f"lib/python{PYTHON}/site-packages/torch"
    module.mkdir(exist_ok=True)
    (module / "__init__.py").write_text("raise RuntimeError('it must not be imported')\n")
    (module / "version.py").write_text(ABOUT.format(version=version, cuda=cuda))
    return module


def read(folder: Path) -> InstalledTorch | None:
    return read_torch(Programs({}), folder / "bin/python")


def test_an_environments_torch_is_read_without_importing_it(environment: Path) -> None:
    found = read(environment)
    assert found is not None
    assert (found.version, found.cuda) == ("2.6.0+cu124", "12.4")
    assert found.path == str(environment / "bin/python")
    assert found.packages == (str(environment / f"lib/python{PYTHON}/site-packages"),)


def test_a_torch_without_cuda_has_none(environment: Path) -> None:
    install(environment, "2.6.0", None)
    found = read(environment)
    assert found is not None
    assert (found.version, found.cuda) == ("2.6.0", "")


def test_sources_of_torch_in_the_current_folder_are_not_an_installed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch/__init__.py").touch()
    (tmp_path / "torch/version.py").write_text(ABOUT.format(version="2.6.0", cuda=None))
    empty = tmp_path / "empty"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", empty], check=True)
    monkeypatch.chdir(tmp_path)
    assert read(empty) is None


def test_the_environment_that_is_switched_on_is_the_hosts(environment: Path) -> None:
    programs = Programs({"VIRTUAL_ENV": str(environment)})
    assert environment_python(programs, "", "host") == environment / "bin/python"
    assert environment_python(Programs({}), "", "host") == Path(sys.executable)
    assert environment_python(programs, str(environment / "no"), "host") is None


def test_each_environment_is_read_once(environment: Path) -> None:
    wishes = [(str(environment), "3.11"), (str(environment), "3.12"), ("/no/such", "3.11")]
    assert len(read_torches(Programs({}), wishes)) == 1


def test_companions_are_built_for_its_python_and_pinned_to_its_version() -> None:
    plan = planned()
    (resolution,) = plan.variants
    assert (resolution.python, resolution.version) == ("3.11", "2.6.0+cu124")
    env = dict(next(step for step in plan.steps if step.kind == "compile").env)
    assert env["PYTORCH_VERSION"] == "2.6.0+cu124"
    # No CUDA is asked for, so none is promised by the companion's own version.
    assert env["BUILD_VERSION"] == "0.21.0"
    assert "CUDA 12.4" in resolution.cautions[0].message


def test_a_companion_asks_for_torch_by_the_version_that_pip_knows() -> None:
    def asked(*torches: InstalledTorch) -> str:
        plan = planned(HERE.model_copy(update={"torches": torches}), companions={"vision": "match"})
        (step,) = (step for step in plan.steps if step.id.startswith("compile-vision"))
        return dict(step.env)["PYTORCH_VERSION"]

    (torch,) = HERE.torches
    assert asked(torch) == torch.version
    assert asked(torch.model_copy(update={"beside": {"torch": "2.6.0"}})) == "2.6.0"


def test_nothing_is_installed_into_the_environment_it_lies_in() -> None:
    for step in planned().steps:
        for command in step.commands:
            if " pip " in command:
                assert "/lab/" not in command


def test_another_version_is_refused_with_the_one_that_is_there() -> None:
    refusal = refused(torch={"release": "2.5.1", "use": "installed"})
    assert refusal.conflicts[0].kind == "installed-version"
    assert refusal.conflicts[0].message == "the installed torch is 2.6.0+cu124, not 2.5.1"
    assert refusal.conflicts[0].cure.startswith("torch 2.6.0")


def test_a_version_in_full_is_compared_in_full() -> None:
    wish = {"release": "2.6.0", "version": "2.6.0+cu126", "use": "installed"}
    assert refused(torch=wish).conflicts[0].kind == "installed-version"
    wish["version"] = "2.6.0+cu124"
    assert isinstance(outcome(torch=wish), Resolution)


@pytest.mark.parametrize(
    ("host", "wish", "kind"),
    [
        (HERE.model_copy(update={"torches": ()}), {}, "installed-torch"),
        (HERE, {"python": "3.12"}, "installed-torch"),
        (HERE, {"cuda": "12.6"}, "installed-cuda"),
        (HERE, {"system": "debian-12"}, "installed-image"),
    ],
)
def test_what_cannot_be_used_is_refused(host: Host, wish: dict[str, Any], kind: str) -> None:
    assert kind in [conflict.kind for conflict in refused(host, **wish).conflicts]


def test_another_torch_in_the_same_place_is_built_against_anew(environment: Path) -> None:
    def keys() -> dict[str, str]:
        found = read(environment)
        assert found is not None
        # The same in everything the plan is made of: only the files differ.
        same = found.model_copy(update={"version": "2.6.0", "cuda": ""})
        plan = planned(HERE.model_copy(update={"torches": (same,)}))
        return {step.kind: step.key for step in keyed(plan, environment.parent).steps}

    first = keys()
    assert keys() == first
    install(environment, "2.6.0+lab", None)
    second = keys()
    assert {kind for kind in first if first[kind] != second[kind]} == {
        "environment",
        "compile",
        "verify",
        "package",
    }


def test_its_own_pip_serves_where_it_has_one() -> None:
    def venv(beside: dict[str, str]) -> str:
        torch = INSTALLED.model_copy(update={"beside": beside})
        plan = planned(HERE.model_copy(update={"torches": (torch,)}))
        step = next(step for step in plan.steps if step.kind == "environment")
        return next(command for command in step.commands if " venv " in command)

    assert "--without-pip" in venv({"pip": "25.0"})
    assert "--without-pip" not in venv({"torch": "2.6.0"})


def test_programs_whose_packages_lie_below_are_lent(environment: Path, tmp_path: Path) -> None:
    for name in ("cmake", "ninja"):
        program = environment / "bin" / name
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    torch = INSTALLED.model_copy(update={"path": str(environment / "bin/python")})
    plan = planned(HERE.model_copy(update={"torches": (torch,)}))
    step = next(step for step in plan.steps if step.kind == "environment")
    mine = tmp_path / step.outputs[0] / "bin"
    mine.mkdir(parents=True)
    (mine / "ninja").write_text("pip's own\n")
    (mine / "ninja").chmod(0o755)
    subprocess.run(["bash", "-euc", step.commands[-1]], cwd=tmp_path, check=True)
    assert (mine / "cmake").resolve() == environment / "bin/cmake"
    assert (mine / "ninja").read_text() == "pip's own\n"
    subprocess.run(["bash", "-euc", step.commands[-1]], cwd=tmp_path, check=True)


def test_what_lies_beside_it_is_listed(environment: Path) -> None:
    packages = environment / f"lib/python{PYTHON}/site-packages"
    (packages / "Typing_Extensions-4.16.0.dist-info").mkdir()
    found = read(environment)
    assert found is not None
    assert found.beside == {"typing-extensions": "4.16.0"}


def test_cmake_is_brought_only_for_what_may_call_it() -> None:
    def required(**parts: Any) -> str:
        (resolution,) = planned(**parts).variants
        return " ".join(resolution.requires)

    extension = {"name": "ops", "folder": "ops"}
    assert "cmake" not in required()
    assert "ninja" in required()
    assert "cmake" in required(companions={"extension": [extension]})
    assert "cmake" in required(companions={"audio": "match"})
    assert "cmake" in required(build={"pip": ["cmake"]})


def test_a_release_made_for_another_torch_is_built_only_where_that_is_said() -> None:
    wish = {"vision": "0.20.1"}
    assert [item.kind for item in refused(companions=wish).conflicts] == ["companion-torch"]
    found = outcome(companions={**wish, "unmatched": True})
    assert isinstance(found, Resolution)
    (companion,) = found.companions
    assert companion.version == "0.20.1"
    (caution,) = [item for item in found.cautions if "0.20.1" in item.message]
    assert "made for torch 2.5.1, not 2.6.0" in caution.message
    assert "companions.vision = '0.21.0'" in caution.cure


def test_a_release_nobody_knows_is_refused_all_the_same() -> None:
    wish = {"vision": "0.99.0", "unmatched": True}
    assert "companion-unknown" in [item.kind for item in refused(companions=wish).conflicts]
