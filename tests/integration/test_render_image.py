"""The Dockerfile builds with podman, from a base image made here, and its user is who was asked."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from torchsmith.plan.models import Plan
from torchsmith.plan.render.dockerfile import dockerfile_context
from torchsmith.recipe.models import Recipe

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("rendering_tools")]

Planner = Callable[[str | Path], tuple[Plan, Recipe]]

RECIPE = """
name = "lab"
torch = { release = "2.13.0", use = "wheel" }
python = "3.11"
system = "debian-12"
[image]
name = "lab"
env = { ODD = 'a "b" $HOME \\ c' }
[[image.train]]
name = "ann"
user = "ann"
uid = 1234
gid = 1235
groups = ["video", "lab"]
timezone = "Asia/Seoul"
"""

# Podman as it runs inside a container: see each setting's own reason in containers.conf(5).
CONTAINERS_CONF = """
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=32768:32768"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
"""


class Podman:
    """The engine with a store of its own, so that nothing of this machine's is touched."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        conf = folder / "containers.conf"
        conf.write_text(CONTAINERS_CONF)
        self.env = {**os.environ, "CONTAINERS_CONF": str(conf)}
        self.store = ["--root", str(folder / "store"), "--runroot", str(folder / "run")]

    def __call__(self, *words: str | Path) -> str:
        done = subprocess.run(
            ["podman", *self.store, *words],
            env=self.env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        return done.stdout

    def build(self, context: Path, target: str, name: str) -> None:
        """Build with this machine's way to PyPI, which no product of the build keeps."""
        volumes: list[str] = []
        for source, there in self.way_to_pypi():
            volumes += ["--volume", f"{source}:{there}:ro"]
        self("build", *volumes, "--target", target, "--tag", name, context)

    def way_to_pypi(self) -> Iterator[tuple[Path | str, str]]:
        settings = {"cert": "", "find-links": "", "extra-index-url": "", "index-url": ""}
        listed = subprocess.run(
            ["python3", "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
        )
        for line in listed.stdout.splitlines():
            name, _, value = line.partition("=")
            option = name.rpartition(".")[2]
            if option in settings:
                settings[option] = value.strip("'\"").replace("\\n", " ")
        if settings["cert"]:
            yield settings["cert"], "/run/host-ca.crt"
            settings["cert"] = "/run/host-ca.crt"
        for option in ("find-links", "extra-index-url", "index-url"):
            for place in settings[option].split():
                folder = Path(place.removeprefix("file://").removesuffix("/simple"))
                if folder.is_absolute() and folder.exists():
                    yield folder, str(folder)
        conf = self.folder / "pip.conf"
        lines = [f"{option} = {value}" for option, value in settings.items() if value]
        conf.write_text("\n".join(["[global]", *lines, ""]))
        yield conf, "/etc/pip.conf"


@pytest.fixture(scope="module")
def podman(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Podman]:
    engine = Podman(tmp_path_factory.mktemp("podman"))
    sites = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    mirror = next(site for site in sites if site.rstrip("/").endswith("/debian"))
    base = engine.folder / "base.tar"
    subprocess.run(
        [
            *("mmdebstrap", "--quiet", "--variant=minbase", "--include=ca-certificates"),
            *("bookworm", base, mirror),
        ],
        check=True,
    )
    engine("import", "--quiet", base, "docker.io/library/debian:12")
    base.unlink()
    yield engine
    engine("system", "reset", "--force")


def test_the_image_has_torch_and_the_person_it_is_for(
    podman: Podman, planned: Planner, tmp_path: Path
) -> None:
    for name, content in dockerfile_context(*planned(RECIPE), "test").items():
        (tmp_path / name).write_bytes(content)
    podman.build(tmp_path, "train-ann", "lab:ann")
    asked = (
        'id; date +%Z; pwd; echo "$ODD"; touch /workspace/mine; '
        "python -c 'import torch; print(torch.__version__, torch.ones(2).sum().item())'; "
        "test -w /opt/venv/lib/python3.11/site-packages; ! command -v gcc; "
        "test ! -e /etc/pip.conf -o ! -s /etc/pip.conf"
    )
    said = podman("run", "--rm", "--shm-size=64m", "lab:ann", "sh", "-euc", asked).splitlines()
    assert said[0].startswith("uid=1234(ann) gid=1235(ann)")
    assert "44(video)" in said[0]
    assert "(lab)" in said[0]
    assert said[1:4] == ["KST", "/workspace", 'a "b" $HOME \\ c']
    assert said[4].startswith("2.13.0")
    assert said[4].endswith(" 2.0")

    # Only the numbers change: every layer up to the person is taken again.
    podman("build", "--build-arg", "UID=0", "--target", "train-ann", "--tag", "lab:root", tmp_path)
    assert podman("run", "--rm", "lab:root", "id", "-u").strip() == "0"
