"""Finding packages in the portal."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from tests.tiny_packages import conda, wheel

from torchsmith.facts.files import shipped
from torchsmith.ship.catalogue import Asked, asked_in, search
from torchsmith.ship.publish import Places, publish, yank
from torchsmith.web.app import make_app
from torchsmith.web.portal import Portal

pytestmark = pytest.mark.unit

RTX, CPU, OLD = "2.6.0+cu126.sm86", "2.6.0+cpu", "2.5.1+cu124.sm70"
BOTH, CONDA = "2.6.0+cu126.sm70.sm80", "2.6.0"


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    folder = tmp_path_factory.mktemp("shop")
    found = Places(folder / "index", folder / "channel")
    files = [
        *(wheel(folder / "made", "torch", version) for version in (RTX, CPU, OLD, BOTH)),
        wheel(folder / "made", "tiny-lib", "1.0"),
        conda(folder / "made", "pytorch", "2.6.0", build="py3.11_cuda12.6_0"),
    ]
    publish(files, found)
    return found


def reader(places: Places, tmp_path: Path) -> TestClient:
    return TestClient(make_app(Portal(places=places, store=tmp_path)), "http://127.0.0.1:8080")


@pytest.mark.parametrize(
    ("asked", "versions"),
    [
        (Asked(gpu="RTX 3090", name="torch", cuda="12.6"), {RTX, BOTH, CONDA}),
        (Asked(gpu="V100", torch="2.5"), {OLD}),
        (Asked(gpu="7.0", torch="2.6"), {BOTH, CONDA}),
        (Asked(torch="2.6.0+cpu"), {CPU}),
        (Asked(torch="2.6", cuda="none"), {CPU}),
        (Asked(torch="2.6", python="3.12", cuda="12.6", gpu="RTX 3090"), {RTX, BOTH}),
        (Asked(name="tiny"), {"1.0"}),
        (Asked(torch="2"), {RTX, CPU, OLD, BOTH, CONDA}),
        (Asked(torch="3"), set()),
    ],
)
def test_what_fits_is_found(places: Places, asked: Asked, versions: set[str]) -> None:
    assert {item.version for item in search(places, asked, shipped())} == versions


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("RTX 3090, 3.11", Asked(gpu="RTX 3090", python="3.11")),
        ("V100,2.6, CUDA 12.6", Asked(gpu="V100", torch="2.6", cuda="12.6")),
        ("torch 2.6.0+cpu, python=3.12", Asked(torch="2.6.0+cpu", python="3.12")),
        ("12.6, torchvision", Asked(cuda="12.6", name="torchvision")),
        ("RTX 3091", Asked(gpu="RTX 3091")),
        (" , ,", Asked()),
    ],
)
def test_words_between_commas_are_understood(words: str, asked: Asked) -> None:
    assert asked_in(words, shipped()) == asked


def test_words_find_a_package(places: Places, tmp_path: Path) -> None:
    text = reader(places, tmp_path).get("/packages", params={"words": "RTX 3090, 3.11"}).text
    assert f"torch {RTX}" in text
    assert OLD not in text
    assert "Looked for: gpu RTX 3090, python 3.11" in text
    nothing = reader(places, tmp_path).get("/packages", params={"words": "no such thing"}).text
    assert "Nothing published fits" in nothing


def test_a_line_is_what_docker_is_told(tmp_path: Path) -> None:
    """Run by a shell, with a docker that writes down its words and its file."""
    docker = tmp_path / "docker"
    docker.write_text('#!/bin/sh\necho words: "$@"\ncat\n')
    docker.chmod(0o755)
    places = Places(tmp_path / "index", tmp_path / "channel")
    made = [
        wheel(tmp_path / "made", "torch", RTX),
        conda(tmp_path / "made", "pytorch", "2.6.0", build="py3.11_cuda12.6_0"),
    ]
    publish(made, places)
    first, second = search(places, Asked(torch="2.6"), shipped())
    items = {item.kind: item for item in (first, second)}

    def told(kind: str, server: str, *, token: bool) -> str:
        line = items[kind].install_lines(server, token=token)["docker"]
        done = subprocess.run(
            ["sh", "-c", line],
            env={"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": "/home/me"},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    here = told("wheel", "http://127.0.0.1:8080", token=True)
    index = f"pip install --extra-index-url http://127.0.0.1:8080/simple/ torch=={RTX}"
    assert here == (
        "words: build --network host --secret id=netrc,src=/home/me/.netrc"
        " --tag torch:2.6.0-cu126.sm86 -\nFROM docker.io/library/python:3-slim\n"
        f"RUN --mount=type=secret,id=netrc,target=/root/.netrc {index}\n"
    )
    away = told("wheel", "http://forge:8080", token=False)
    # pip takes nothing from an index without TLS on another machine unless told so.
    assert f"/simple/ --trusted-host forge:8080 torch=={RTX}\n" in away
    assert "--network" not in away
    boxed = told("conda", "http://forge:8080", token=False)
    assert "RUN conda install --yes --channel http://forge:8080/channel pytorch=2.6.0=" in boxed


def test_the_page_gives_the_line_of_every_client(places: Places, tmp_path: Path) -> None:
    text = reader(places, tmp_path).get("/packages", params={"gpu": "RTX 3090"}).text
    index = "--extra-index-url http://127.0.0.1:8080/simple/ torch==2.6.0+cu126.sm86"
    assert f"pip install {index}" in text
    assert f"uv pip install {index}" in text
    channel = "conda install --channel http://127.0.0.1:8080/channel"
    assert f"{channel} pytorch=2.6.0=py3.11_cuda12.6_0" in text
    assert OLD not in text
    tiny = reader(places, tmp_path).get("/packages", params={"name": "tiny"}).text
    assert "--index-url http://127.0.0.1:8080/simple/ tiny-lib==1.0" in tiny
    assert "extra" not in tiny


def test_a_gpu_nobody_knows_is_asked_back(places: Places, tmp_path: Path) -> None:
    answer = reader(places, tmp_path).get("/packages", params={"gpu": "RTX <b>3091"})
    assert answer.status_code == 200
    assert "is no GPU that is known" in answer.text
    assert "3090" in answer.text
    assert "<b>" not in answer.text


def test_a_package_tells_what_is_in_it_and_who_vouches(places: Places, tmp_path: Path) -> None:
    address = "simple/torch/torch-2.6.0+cpu-py3-none-any.whl"
    answer = reader(places, tmp_path).get("/package", params={"file": address})
    assert answer.status_code == 200
    for word in ("sha256", "unsigned", "No report lies beside it", "No provenance", "4"):
        assert word in answer.text
    for odd in ("", "simple/../../etc/passwd", "/etc/passwd", "channel/%00", "x" * 5000):
        missing = reader(places, tmp_path).get("/package", params={"file": odd})
        assert missing.status_code == 404


def test_a_wheel_says_which_torch_it_fits(places: Places, tmp_path: Path) -> None:
    client = reader(places, tmp_path)
    address = {"file": "simple/tiny-lib/tiny_lib-1.0-py3-none-any.whl"}
    assert "data-fill" in client.get("/package", params=address).text
    assert "no compiled libraries" in client.get("/package/fits", params=address).text
    assert client.get("/package/fits", params={"file": "none"}).status_code == 404
    # Torch itself is no question of fitting.
    own = {"file": "simple/torch/torch-2.6.0+cpu-py3-none-any.whl"}
    assert "data-fill" not in client.get("/package", params=own).text
    assert "is torch itself" in client.get("/package/fits", params=own).text


def test_a_yanked_file_is_marked(tmp_path: Path) -> None:
    places = Places(tmp_path / "index")
    publish([wheel(tmp_path / "made", "tiny-lib", "1.0")], places)
    yank("tiny-lib==1.0", places)
    assert "yanked" in reader(places, tmp_path).get("/packages").text


def test_an_index_that_is_half_written_is_said_to_be(tmp_path: Path) -> None:
    places = Places(tmp_path / "index")
    publish([wheel(tmp_path / "made", "tiny-lib", "1.0")], places)
    (tmp_path / "index/simple/tiny-lib/index.json").write_text('{"files": [')
    answer = reader(places, tmp_path).get("/packages")
    assert answer.status_code == 503
    assert "index.json" in answer.text


def test_without_anything_published_it_says_how(tmp_path: Path) -> None:
    client = TestClient(make_app(Portal(store=tmp_path)), "http://127.0.0.1:8080")
    assert "--index" in client.get("/packages").text
    assert client.get("/package", params={"file": "x"}).status_code == 404
