"""Base images as apt really makes them: NCCL that an image holds, and the release asked for."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest
from tests.containers import BASE, EngineHere

from torchsmith.plan.render.instructions import Pin, apt_install

pytestmark = pytest.mark.integration

HELD = "2.23.4-1+cuda12.6"
RELEASES = ("2.21.5-1+cuda12.6", HELD, "2.24.3-1+cuda12.8")
NCCL = ("libnccl2", "libnccl-dev")


def package(folder: Path, name: str, version: str) -> str:
    """Make a package with nothing in it; returns its entry of the index."""
    tree = folder / "tree"
    (tree / "DEBIAN").mkdir(parents=True, exist_ok=True)
    fields = [f"Package: {name}", f"Version: {version}", "Architecture: all"]
    fields += ["Maintainer: Nobody <nobody@example.org>", "Description: nothing"]
    if name == "libnccl-dev":
        fields.append(f"Depends: libnccl2 (= {version})")
    (tree / "DEBIAN/control").write_text("\n".join([*fields, ""]))
    file = folder / f"{name}_{version}.deb"
    subprocess.run(["dpkg-deb", "--build", tree, file], check=True, capture_output=True)
    content = file.read_bytes()
    fields += [f"Filename: ./{file.name}", f"Size: {len(content)}"]
    return "\n".join([*fields, f"SHA256: {hashlib.sha256(content).hexdigest()}", "", ""])


@pytest.fixture(scope="module")
def holding(podman: EngineHere, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image that holds NCCL as NVIDIA's do, with newer and older ones to be had."""
    folder = tmp_path_factory.mktemp("holding")
    repository = folder / "repository"
    repository.mkdir()
    entries = [package(repository, name, version) for name in NCCL for version in RELEASES]
    (repository / "Packages").write_text("".join(entries))
    (folder / "Dockerfile").write_text(
        f"FROM docker.io/library/{BASE} AS offering\n"
        "COPY repository /repository\n"
        "RUN rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/*; \\\n"
        "    echo 'deb [trusted=yes] file:/repository ./' > /etc/apt/sources.list.d/nccl.list\n"
        "FROM offering AS holding\n"
        f"RUN apt-get update && apt-get install --yes libnccl2={HELD} && apt-mark hold libnccl2\n"
    )
    for name in ("offering", "holding"):
        podman("build", "--quiet", "--target", name, "--tag", name, folder)
    return "localhost/holding"


def installed(podman: EngineHere, folder: Path, base: str, pin: Pin) -> list[str]:
    lines = [f"FROM {base}", *apt_install(NCCL, {"nccl": pin})]
    (folder / "Dockerfile").write_text("\n".join([*lines, ""]))
    podman("build", "--quiet", "--tag", "installed", folder)
    show = ("dpkg-query", "--show", "--showformat=${Package} ${Version}\\n", *NCCL)
    return podman("run", "--rm", "localhost/installed", *show).splitlines()


def both(version: str) -> list[str]:
    return [f"libnccl-dev {version}", f"libnccl2 {version}"]


def test_apt_refuses_to_change_what_an_image_holds(podman: EngineHere, holding: str) -> None:
    install = "apt-get update && apt-get install --yes libnccl2 libnccl-dev"
    command = podman.engine.command("run", "--rm", holding, "sh", "-c", install)
    done = subprocess.run(command, env=podman.env, capture_output=True, text=True, check=False)
    assert "Held packages were changed and -y was used" in done.stdout + done.stderr


def test_nccl_that_an_image_holds_is_kept_and_its_headers_match(
    podman: EngineHere, holding: str, tmp_path: Path
) -> None:
    assert installed(podman, tmp_path, holding, Pin("*+cuda12.6")) == both(HELD)


def test_nccl_that_is_asked_for_replaces_what_an_image_holds(
    podman: EngineHere, holding: str, tmp_path: Path
) -> None:
    found = installed(podman, tmp_path, holding, Pin("2.21.*+cuda12.6", asked=True))
    assert found == both("2.21.5-1+cuda12.6")


@pytest.mark.usefixtures("holding")
def test_nccl_of_an_image_without_it_is_the_newest_for_its_cuda(
    podman: EngineHere, tmp_path: Path
) -> None:
    assert installed(podman, tmp_path, "localhost/offering", Pin("*+cuda12.6")) == both(HELD)
