"""One recipe by `build`, by its script and by its Dockerfile: the same wheel, whoever made it."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
from tests.containers import EngineHere
from tests.integration.test_places import project

from torchsmith.images.tools import Build

pytestmark = [pytest.mark.integration, pytest.mark.long, pytest.mark.usefixtures("rendering_tools")]


def members(wheel: Path) -> dict[str, str]:
    """What is in a wheel; a library is told by its code, which knows no folder and no time."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            name: hashlib.sha256(archive.read(name)).hexdigest()
            for name in archive.namelist()
            # The second one tells whether there was a network, as an engine's own builds have.
            if not name.endswith(("/RECORD", "near_where.py"))
        }


def test_build_script_and_dockerfile_make_the_same_wheel(
    podman: EngineHere, tmp_path: Path
) -> None:
    here = project(tmp_path, podman)
    here("build", "--quiet")
    (ours,) = (here.project / "dist").glob("*.whl")

    here("plan", "--as", "script", "--output", "plan.sh")
    steps = json.loads(here("plan", "--json"))["steps"]
    made = ("base", "fetch", "environment", "compile")
    wanted = [step["id"] for step in steps if step["kind"] in made]
    work = here.project / "by script"
    for expected in (0, len(wanted)):
        done = subprocess.run(
            ["bash", "plan.sh", *wanted],
            cwd=here.project,
            env={**podman.env, "WORK": str(work), "ENGINE": "podman"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.count("done before") == expected

    here("plan", "--as", "dockerfile", "--output", "context")
    context = here.project / "context"
    shutil.copytree(here.project / "near", context / "near")
    podman.engine.build(Build(context, "three:ways", context / "Dockerfile", target="build-near"))
    podman(
        *("run", "--rm", "--volume", f"{here.project}:/recipe", "three:ways", "sh", "-euc"),
        "mkdir /recipe/by-docker; cp dist/*/*.whl /recipe/by-docker/",
    )

    for pattern in ("by script/dist/*/*.whl", "by-docker/*.whl"):
        (theirs,) = here.project.glob(pattern)
        assert theirs.name == ours.name
        assert members(theirs) == members(ours), pattern
