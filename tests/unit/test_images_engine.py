"""Which engine is used, who an image is for, and what a refusal means."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from torchsmith.engine.failure import explain, ran_out_of_room
from torchsmith.errors import ContainerToolError, NoContainerToolError, UsageError
from torchsmith.images.build import bases, engine_platform, explained, put_project_files, put_wheels
from torchsmith.images.select import caller_numbers
from torchsmith.images.tools import Build, ImageInfo, Podman, find_tool, with_own_cache

pytestmark = pytest.mark.unit


def program(folder: Path, name: str, script: str) -> None:
    """A stand-in for an engine: what it says when asked."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def bin_(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder


def environ(bin_: Path, **more: str) -> dict[str, str]:
    return {"PATH": str(bin_), **more}


ASKED = 'if [ "$1" = --version ]; then echo "Docker version 20.10.24"; exit; fi'
DOWN = f"{ASKED}\necho Cannot connect >&2\nexit 1"
UP = f"{ASKED}\necho 20.10.24"


def test_no_engine_at_all_says_what_to_install(bin_: Path) -> None:
    with pytest.raises(NoContainerToolError, match="no container engine") as caught:
        find_tool(environ=environ(bin_))
    assert "apt-get install podman" in caught.value.hint
    assert caught.value.exit_code == 4


def test_a_daemon_that_is_down_is_told_from_a_missing_program(bin_: Path) -> None:
    program(bin_, "docker", DOWN)
    with pytest.raises(NoContainerToolError, match="not running: Cannot connect") as caught:
        find_tool("docker", environ(bin_))
    assert "systemctl start docker" in caught.value.hint
    with pytest.raises(NoContainerToolError, match="podman is not installed") as caught:
        find_tool("podman", environ(bin_))
    assert "docker, which is here" in caught.value.hint


def test_the_first_engine_that_works_is_taken(bin_: Path) -> None:
    program(bin_, "docker", DOWN)
    program(bin_, "buildah", "echo buildah version 1.28.2")
    assert find_tool(environ=environ(bin_)).name == "buildah"
    program(bin_, "docker", UP)
    assert find_tool(environ=environ(bin_)).name == "docker"
    program(bin_, "podman", "echo podman version 4.3.1")
    assert find_tool(environ=environ(bin_)).name == "podman"
    assert find_tool(environ=environ(bin_, TORCHSMITH_ENGINE="docker")).name == "docker"


def test_an_engine_nobody_knows_is_a_plain_error(bin_: Path) -> None:
    with pytest.raises(UsageError, match="--engine: 'kaniko' is not a container tool") as caught:
        find_tool("kaniko", environ(bin_))
    assert "podman, docker, buildah" in caught.value.hint


def test_buildah_is_not_taken_to_start_containers(bin_: Path) -> None:
    program(bin_, "buildah", "echo buildah version 1.28.2")
    with pytest.raises(NoContainerToolError, match="no container engine"):
        find_tool(environ=environ(bin_), runs=True)
    with pytest.raises(NoContainerToolError, match="starts none"):
        find_tool("buildah", environ(bin_), runs=True)


def test_an_image_takes_the_callers_numbers_and_never_roots() -> None:
    assert caller_numbers(("UID", "GID"), {}, uid=1000, gid=100) == {"UID": "1000", "GID": "100"}
    assert caller_numbers((), {}, uid=0, gid=0) == {}
    with pytest.raises(UsageError, match="would be root") as caught:
        caller_numbers(("UID", "GID"), {}, uid=0, gid=0)
    assert "[[image.train]]" in caught.value.hint


def test_sudo_is_not_the_caller() -> None:
    behind = {"SUDO_UID": "1001", "SUDO_GID": "1002"}
    assert caller_numbers(("UID", "GID"), behind, uid=0, gid=0) == {"UID": "1001", "GID": "1002"}


def test_only_another_platform_is_told_to_the_engine() -> None:
    assert engine_platform("linux-x86_64", "x86_64") == ""
    assert engine_platform("linux-aarch64", "x86_64") == "linux/arm64"
    assert engine_platform("linux-x86_64", "aarch64") == "linux/amd64"


class Holding(Podman):
    """An engine that has these images and no others."""

    def __init__(self, *images: str) -> None:
        super().__init__("podman")
        self.held = images

    def find(self, image: str) -> ImageInfo | None:
        return ImageInfo(image) if image in self.held else None


@pytest.fixture
def wanted(tmp_path: Path) -> Build:
    file = tmp_path / "Dockerfile"
    file.write_text("FROM nosuch:1 AS a\nFROM scratch AS b\nFROM a AS c\nFROM debian:12\n")
    return Build(tmp_path, "lab:ann", file)


def test_a_dockerfiles_own_stages_are_no_base_images(wanted: Build) -> None:
    assert bases(wanted.file) == ("nosuch:1", "debian:12")


@pytest.mark.parametrize(
    "said",
    [
        'Error: creating build container: short-name "nosuch:1" did not resolve to an alias',
        "error: initializing source docker://nosuch:1: reading manifest 1: manifest unknown",
        "nosuch:1: pull access denied, repository does not exist or may require authorization",
    ],
)
def test_a_base_image_that_does_not_exist_is_named(wanted: Build, said: str) -> None:
    error = explained(
        ContainerToolError("x", output=("STEP 1", said)), Holding("debian:12"), wanted
    )
    assert error.message.startswith("the base image nosuch:1 is not here")
    assert "podman pull nosuch:1" in error.hint


@pytest.mark.parametrize(
    "said",
    [
        "Error: committing: write /var/lib/x: no space left on device",
        "E: You don't have enough free space in /var/cache/apt/archives/.",
    ],
)
def test_a_full_disk_is_known_by_the_words_the_runner_looks_for(wanted: Build, said: str) -> None:
    error = explained(
        ContainerToolError("x", output=(said,)), Holding("nosuch:1", "debian:12"), wanted
    )
    assert ran_out_of_room(explain([f"error: {error.message}"]))
    assert "prune" in error.hint


@pytest.mark.parametrize(
    "said",
    [
        "  Temporary failure resolving 'deb.debian.org'",
        "W: Failed to fetch http://deb.debian.org/x  Could not connect to deb.debian.org:80",
        "curl: (6) Could not resolve host: developer.download.nvidia.com",
        "fatal: unable to access 'https://github.com/x.git/': Could not resolve host: github.com",
        "  Something wicked happened resolving 'deb.debian.org:http' (-5 - No address associated)",
        "[Errno -3] Temporary failure in name resolution')': /simple/torch/",
    ],
)
def test_a_build_that_reaches_no_network_is_told_how(wanted: Build, said: str) -> None:
    lines = ("STEP 2/4", said, "E: Unable to locate package ccache", "Error: exit status 100")
    error = explained(
        ContainerToolError("x", output=lines), Holding("nosuch:1", "debian:12"), wanted
    )
    assert error.message.startswith(
        "a server could not be reached from inside the build of lab:ann"
    )
    assert said.strip() in error.message
    assert "--network host" in error.hint


def test_a_lost_server_is_found_before_all_that_followed_from_it(wanted: Build) -> None:
    lost = "Temporary failure resolving 'deb.debian.org'"
    unknown = [f"E: Unable to locate package p{number}" for number in range(100)]
    # A base image that the tool cannot be asked about takes nothing away from what was printed.
    error = explained(
        ContainerToolError("x", output=("STEP 2/4: RUN apt-get", lost, *unknown)), Holding(), wanted
    )
    assert error.message.endswith(lost)


def test_a_server_that_an_earlier_instruction_found_again_is_not_blamed(wanted: Build) -> None:
    lines = (
        *("STEP 2/4: RUN curl", "curl: (6) Could not resolve host: x.org", "retrying"),
        *("STEP 3/4: RUN make", "make: *** No rule to make target 'all'.  Stop."),
    )
    error = explained(
        ContainerToolError("x", output=lines), Holding("nosuch:1", "debian:12"), wanted
    )
    assert error.message == "podman could not build lab:ann"


def test_any_other_failure_points_at_the_lines_before_it(wanted: Build) -> None:
    error = explained(ContainerToolError("x", output=("E: Unable",)), Holding("nosuch:1"), wanted)
    assert error.message == "podman could not build lab:ann"


def test_a_context_holds_these_wheels_and_no_older_ones(tmp_path: Path) -> None:
    context = tmp_path / "context"
    wheels = [tmp_path / "a-1-py3-none-any.whl", tmp_path / "a-2-py3-none-any.whl"]
    for wheel in wheels:
        wheel.write_bytes(b"zip")
        os.utime(wheel, (1, 1))
        put_wheels([wheel], context)
    assert [path.name for path in (context / "wheels").iterdir()] == [wheels[1].name]
    assert (context / "wheels" / wheels[1].name).stat().st_mtime == 1


def test_a_file_the_recipe_names_and_nobody_has_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no .*client\.run"):
        put_project_files(["client.run"], tmp_path, tmp_path / "context")
    (tmp_path / "client.run").write_text("echo\n")
    put_project_files(["client.run"], tmp_path, tmp_path / "context")
    put_project_files(["client.run"], tmp_path, tmp_path / "context")
    assert (tmp_path / "context/client.run").read_text() == "echo\n"


def test_a_build_caches_where_its_user_may_write(tmp_path: Path) -> None:
    of_all = tmp_path / "buildah-cache"
    given = {"HOME": str(tmp_path / "home")}
    mine = tmp_path.stat().st_uid
    # Nobody has built yet, or this user has, or root builds.
    assert with_own_cache(given, mine + 1, of_all) == given
    of_all.mkdir()
    assert with_own_cache(given, mine, of_all) == given
    assert with_own_cache(given, 0, of_all) == given
    own = with_own_cache(given, mine + 1, of_all)["TMPDIR"]
    assert own == f"{tmp_path}/home/.cache/torchsmith"
    assert Path(own).is_dir()
    told = {**given, "TMPDIR": "/scratch"}
    assert with_own_cache(told, mine + 1, of_all) == told
