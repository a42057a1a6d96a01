"""Images written down for compose and for Apptainer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import yaml

from torchsmith.errors import UsageError
from torchsmith.facts.files import shipped
from torchsmith.host.models import Host
from torchsmith.images.render import render
from torchsmith.plan.build import make_plan
from torchsmith.plan.models import Plan
from torchsmith.recipe.load import parse_recipe
from torchsmith.recipe.matrix import expand
from torchsmith.recipe.models import Recipe
from torchsmith.resolve.models import Resolution
from torchsmith.resolve.resolve import resolve

pytestmark = pytest.mark.unit

LAB = """
name = "Lab"
torch = { release = "2.13.0", use = "wheel" }
python = "3.11"
system = "debian-12"
[image]
name = "lab"
shm_size = "4G"
apt = ["git"]
[[image.client]]
files = ["client.run"]
run = ["sh client.run"]
[[image.train]]
name = "ann"
user = "ann"
uid = 1234
gid = 1235
timezone = "Asia/Seoul"
pip = ["pillow"]
[[image.train]]
name = "bob"
"""
PUSHED = '[publish]\nregistry = "reg.example.org/team"\n'

Planning = Callable[[str], tuple[Plan, Recipe]]


@pytest.fixture
def planned() -> Planning:
    def plan(text: str) -> tuple[Plan, Recipe]:
        recipe = parse_recipe(text, "test", None).recipe
        host = Host(platform="linux-x86_64", cores=8)
        found = [resolve(item, shipped(), host, {}) for item in expand(recipe)]
        resolved = [item for item in found if isinstance(item, Resolution)]
        assert len(resolved) == len(found), found
        return make_plan(recipe, resolved, shipped(), "test"), recipe

    return plan


def services(planned: Planning, text: str) -> dict[str, dict[str, object]]:
    files = render(*planned(text), "compose", "test")
    return dict(yaml.safe_load(files["docker-compose.yaml"])["services"])


def test_every_training_image_is_a_service_that_can_be_built(planned: Planning) -> None:
    files = render(*planned(LAB), "compose", "test")
    found = yaml.safe_load(files["docker-compose.yaml"])
    assert found["name"] == "lab"
    assert list(found["services"]) == ["ann", "bob"]
    ann, bob = found["services"]["ann"], found["services"]["bob"]
    assert ann["image"] == "lab:ann"
    assert ann["build"] == {"context": "./image", "target": "train-ann"}
    assert ann["shm_size"] == "4g"
    assert ann["environment"] == {"TZ": "Asia/Seoul"}
    assert "deploy" not in ann
    # The numbers of whoever builds it.
    assert bob["build"]["args"] == {"UID": "${UID:-1000}", "GID": "${GID:-1000}"}
    assert b"AS train-bob" in files["image/Dockerfile"]


def test_compose_takes_the_pushed_image_and_every_gpu(planned: Planning) -> None:
    text = LAB.replace('system = "debian-12"', 'cuda = "12.6"').replace("2.13.0", "2.6.0")
    ann = services(planned, text + PUSHED)["ann"]
    assert ann["image"] == "reg.example.org/team/lab:ann"
    assert ann["ulimits"] == {"memlock": -1, "stack": 64 << 20}
    (device,) = ann["deploy"]["resources"]["reservations"]["devices"]  # type: ignore[index]
    assert device == {"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}


def test_variants_have_services_and_contexts_of_their_own(planned: Planning) -> None:
    text = LAB.replace('"3.11"', '["3.11", "3.12"]').replace('system = "debian-12"\n', "")
    found = services(planned, text)
    assert list(found) == ["ann-Lab_py3.11", "bob-Lab_py3.11", "ann-Lab_py3.12", "bob-Lab_py3.12"]
    assert found["bob-Lab_py3.12"]["build"]["context"] == "./image/Lab_py3.12"  # type: ignore[index]


def sections(text: str) -> dict[str, str]:
    """The parts of a definition file, as Apptainer's own reader splits it."""
    head, *parts = ("\n" + text).split("\n%")
    return {"": head} | {name: body for name, _, body in (part.partition("\n") for part in parts)}


def test_an_apptainer_image_comes_from_the_pushed_one(planned: Planning) -> None:
    files = render(*planned(LAB + PUSHED), "apptainer", "test")
    assert list(files) == ["lab-ann.def", "lab-bob.def"]
    found = sections(files["lab-ann.def"].decode())
    assert "Bootstrap: docker\nFrom: reg.example.org/team/lab:ann" in found[""]
    assert list(found) == ["", "environment", "labels", "test", "runscript"]
    assert "export TZ=Asia/Seoul" in found["environment"]


def test_an_apptainer_image_is_made_of_wheels_where_nothing_is_pushed(planned: Planning) -> None:
    found = sections(render(*planned(LAB), "apptainer", "test")["lab-ann.def"].decode())
    assert "From: docker.io/library/debian:12" in found[""]
    assert "client.run" in found["files"]
    # The published torch is pip's to bring: there are no wheels of ours.
    assert "wheels" not in found["files"]
    post = found["post"]
    assert "torch==2.13.0" in post
    assert " git" in post
    assert "pip install pillow" in post
    assert post.index("cd /opt/client") < post.index("sh client.run") < post.index("rm -rf")
    assert 'PATH="/opt/venv/bin:$PATH"' in found["environment"]

    own = LAB.replace(', use = "wheel"', "")
    found = sections(render(*planned(own), "apptainer", "test")["lab-ann.def"].decode())
    assert "wheels /opt/wheels" in found["files"]
    assert "/opt/wheels/*.whl" in found["post"]
    asked = render(*planned(LAB + PUSHED), "apptainer", "test", "wheels")
    assert "%post" in asked["lab-ann.def"].decode()


def test_what_cannot_be_written_is_refused(planned: Planning) -> None:
    plan = planned(LAB)
    for runtime, start, said in (
        ("flatpak", "", "not a runtime"),
        ("compose", "wheels", "--from wheels means nothing"),
        ("apptainer", "thin air", "--from thin air means nothing"),
        ("apptainer", "image", "names no registry"),
    ):
        with pytest.raises(UsageError, match=said):
            render(*plan, runtime, "test", start)


def test_the_same_plan_gives_the_same_bytes(planned: Planning) -> None:
    for runtime in ("compose", "apptainer", "dockerfile"):
        assert render(*planned(LAB), runtime, "t") == render(*planned(LAB), runtime, "t")
