"""What programs in containers are told of how this machine reaches the network."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchsmith.engine.places import passed, pip_conf
from torchsmith.images.build import secrets_of
from torchsmith.images.tools import Build, Podman, Secret
from torchsmith.plan.images import ImageTask

pytestmark = pytest.mark.unit


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a mirror in its pip.conf and a folder of wheels."""
    for name in ("PIP_FIND_LINKS", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    conf = tmp_path / "pip.conf"
    conf.write_text(
        "[global]\nindex-url = https://ann:word@mirror.example/simple\n"
        "find-links = /opt/wheels https://wheels.example/\nrequire-virtualenv = true\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(conf))
    return conf


def test_an_image_build_is_told_of_indexes_and_of_no_folder_here(settings: Path) -> None:
    told = pip_conf({"PIP_CONFIG_FILE": str(settings), "PIP_TRUSTED_HOST": "mirror.example"}, "/c")
    lines = told.splitlines()
    assert lines[0] == "[global]"
    assert "index-url = https://ann:word@mirror.example/simple" in lines
    assert "find-links = https://wheels.example/" in lines
    assert "trusted-host = mirror.example" in lines
    assert lines[-1] == "cert = /c"
    assert "virtualenv" not in told


def test_a_variable_goes_before_the_file(settings: Path) -> None:
    caller = {"PIP_CONFIG_FILE": str(settings), "PIP_INDEX_URL": "https://other.example/simple"}
    assert "index-url = https://other.example/simple" in pip_conf(caller, "")
    assert "cert" not in pip_conf(caller, "")


def test_the_settings_travel_as_a_file_nobody_else_reads(settings: Path, tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir()
    task = ImageTask(name="lab", stage="runtime", context=".", record="r", secrets=("TOKEN",))
    given = secrets_of(task, private)
    assert given[0] == Secret("TOKEN", "TOKEN")
    assert (private / "pip.conf").stat().st_mode & 0o777 == 0o600
    file = tmp_path / "Dockerfile"
    file.write_text("FROM scratch\n")
    words = Podman("podman").build_options(Build(tmp_path, "lab", file, secrets=given))
    assert f"id=pip.conf,src={private}/pip.conf" in words
    assert "id=TOKEN,env=TOKEN" in words
    assert not any("ann:word" in word for word in words)


def test_proxies_pass_and_other_variables_do_not() -> None:
    caller = {"HTTPS_PROXY": "p", "PIP_CERT": "c", "AWS_SECRET_ACCESS_KEY": "x", "HOME": "/root"}
    assert passed(caller) == {"HTTPS_PROXY": "p", "PIP_CERT": "c"}
