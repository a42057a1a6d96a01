"""Every rendering of every preset passes the linters people have in their CI."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from torchsmith.plan.models import Plan
from torchsmith.plan.render.conda import render_conda
from torchsmith.plan.render.dockerfile import dockerfile_context
from torchsmith.plan.render.script import render_script
from torchsmith.recipe.models import Recipe

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("rendering_tools")]

PRESETS = sorted((Path(__file__).resolve().parents[2] / "recipes").glob("*.toml"))

GENERATED = {
    "matrix": """
torch = "2.6.0"
packages = { conda = true, libtorch = true }
companions = { vision = "match" }
publish = { index = "index", channel = "channel", repository = "https://example.org/legacy/" }
image = { name = "lab", apt = ["vim-tiny"], env = { A = 'a "b" $HOME' } }
[matrix]
python = ["3.11", "3.12"]
profile = ["release", "minimal"]
""",
    "cuda wheels": """
torch = "2.9.0"
python = ["3.11", "3.12"]
cuda = { version = "13.0", toolkit = "wheels" }
gpus = ["9.0"]
packages = { conda = true }
image = {}
""",
    "debian": """
torch = "2.6.0"
source = { kind = "debian", suite = "trixie" }
image = { build = "wheels" }
""",
    "archive": f"""
torch = "2.6.0"
[source]
kind = "archive"
url = "https://example.org/a%20b+c.tar.gz?x=1&y=2"
sha256 = "{"0" * 64}"
""",
    "archive here": f"""
torch = "2.6.0"
source = {{ kind = "archive", path = "in/torch.tar.gz", sha256 = "{"a" * 64}" }}
""",
    "folder": """
torch = "2.6.0"
source = { kind = "folder", path = "/srv/pytorch" }
[[companions.extension]]
name = "near"
folder = "ext/near"
[[companions.extension]]
name = "torch-scatter"
sdist = "torch-scatter==2.1.2"
sha256 = "69b3aa435f2424ac6a1bfb6ff702da6eb73b33ca0db38fb26989c74159258e47"
env = { FLAGS = "-O2 'x y'" }
check = "import torch_scatter as s; assert s.__version__ == '2.1.2'"
[[companions.extension]]
name = "far"
git = { url = "https://example.org/far.git", ref = "main" }
""",
}


@pytest.fixture(params=[*PRESETS, *GENERATED], ids=lambda item: getattr(item, "stem", item))
def case(
    request: pytest.FixtureRequest, planned: Callable[[str | Path], tuple[Plan, Recipe]]
) -> tuple[Plan, Recipe]:
    return planned(GENERATED.get(request.param, request.param))


def passes(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_bash_and_shellcheck_accept_the_script(case: tuple[Plan, Recipe], tmp_path: Path) -> None:
    script = tmp_path / "plan.sh"
    script.write_text(render_script(case[0], "test"))
    passes("bash", "-n", script)
    passes("shellcheck", script)


def test_hadolint_accepts_the_dockerfiles(case: tuple[Plan, Recipe], tmp_path: Path) -> None:
    for name, content in dockerfile_context(*case, "test").items():
        if name.rpartition("/")[2].startswith("Dockerfile"):
            file = tmp_path / "Dockerfile"
            file.write_bytes(content)
            passes("hadolint", file)


def test_shellcheck_accepts_the_conda_build_scripts(
    case: tuple[Plan, Recipe], tmp_path: Path
) -> None:
    files = {**render_conda(case[0]), **case[0].files}
    for number, (name, content) in enumerate(files.items()):
        if name.endswith("build.sh"):
            script = tmp_path / f"build-{number}.sh"
            script.write_bytes(content)
            passes("shellcheck", script)


def test_rattler_build_reads_the_conda_recipes(case: tuple[Plan, Recipe]) -> None:
    from rattler_build import RenderConfig, Stage0Recipe, VariantConfig

    plan, _ = case
    files = {**render_conda(plan), **plan.files}
    builds = {resolution.conda_build for resolution in plan.variants}
    for name, content in files.items():
        if not name.endswith("recipe.yaml"):
            continue
        recipe = Stage0Recipe.from_yaml(content.decode())
        (rendered,) = recipe.render(VariantConfig(), RenderConfig())
        package = rendered.recipe.package
        if package.name == "pytorch":
            assert package.version in {resolution.torch for resolution in plan.variants}
            assert rendered.recipe.build.string in builds
            needs = [str(item) for item in rendered.recipe.requirements.run]
            pythons = {f"python {resolution.python}.*" for resolution in plan.variants}
            assert pythons & set(needs)
            assert any(item.startswith("numpy") for item in needs)
        elif not package.name.startswith("magma-cuda"):
            # Built against the torch beside it, and for no other.
            exact = {
                f"pytorch =={resolution.torch} {resolution.conda_build}"
                for resolution in plan.variants
            }
            assert exact & {str(item) for item in rendered.recipe.requirements.run}
            assert rendered.recipe.build.string in builds
