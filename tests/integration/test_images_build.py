"""Images of one torch build for several people, by each engine; and what stops a build."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.containers import CONTAINERS_CONF, EngineHere, reset
from tests.lab import Torchsmith, in_folder

from torchsmith.engine.journal import journal_of
from torchsmith.engine.store import Store
from torchsmith.images.tools import Build

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("rendering_tools")]

COMMON = """
name = "lab"
python = "3.11"
[[companions.extension]]
name = "near"
folder = "near"
check = "import near; assert near.answer() == 42"
"""
TWO_PEOPLE = """
[image]
name = "lab"
build = "wheels"
secrets = ["LICENCE"]
healthcheck = "python -c 'import torch'"
[[image.client]]
files = ["install-client"]
run = ["./install-client $(uname -m)"]
[[image.train]]
name = "alice"
user = "alice"
uid = 1201
gid = 1301
groups = ["video"]
timezone = "Asia/Seoul"
apt = ["less"]
[[image.train]]
name = "bob"
user = "bob"
uid = 1202
gid = 1302
timezone = "America/Los_Angeles"
locale = "en_GB.UTF-8"
pip = ["packaging"]
workdir = "/home/bob"
"""
INSIDE = """
[image]
name = "hermetic"
build = "inside"
[[image.train]]
name = "carol"
user = "carol"
uid = 1203
gid = 1303
timezone = "Europe/Berlin"
"""
ASK = (
    "id -un; id -u; id -g; date +%Z; pwd; python -c 'import torch, near; "
    'print(torch.__version__.split("+")[0], near.answer() * torch.ones(1).item())\'; '
    "! command -v gcc; test -w ."
)


@pytest.fixture(scope="module")
def lab(
    podman: EngineHere, published_torch: Path, tmp_path_factory: pytest.TempPathFactory
) -> Torchsmith:
    """Alice's and Bob's images, built by podman of wheels that were built here."""
    torch = (
        f'torch = {{ release = "2.13.0", use = "installed", environment = "{published_torch}" }}'
    )
    here = in_folder(
        tmp_path_factory.mktemp("lab"),
        f"{torch}\n{COMMON}{TWO_PEOPLE}",
        podman,
        LICENCE="open-sesame",
    )
    built = json.loads(here("image", "build", "--json"))["images"]
    assert [image["name"] for image in built] == ["lab:alice", "lab:bob", "lab:wheels"]
    return here


def test_each_person_is_who_the_recipe_says(podman: EngineHere, lab: Torchsmith) -> None:
    alice = podman("run", "--rm", "lab:alice", "sh", "-euc", ASK).splitlines()
    assert alice == ["alice", "1201", "1301", "KST", "/workspace", "2.13.0 42.0"]
    bob = podman("run", "--rm", "lab:bob", "sh", "-euc", ASK).splitlines()
    assert bob[:3] == ["bob", "1202", "1302"]
    assert bob[3] in ("PST", "PDT")
    assert bob[4:] == ["/home/bob", "2.13.0 42.0"]
    assert "client 9.0 beside" in podman("run", "--rm", "lab:bob", "vendor-client")
    podman("run", "--rm", "lab:alice", "sh", "-euc", "less --version; id -nG | grep video")
    podman("run", "--rm", "lab:bob", "sh", "-euc", "! command -v less; locale -a | grep en_GB")


def test_torch_is_one_layer_that_both_have(podman: EngineHere, lab: Torchsmith) -> None:
    context = lab.store / "work/lab/image/lab"
    shared = podman.engine.build(
        Build(context, "lab:shared", context / "Dockerfile", target="shared")
    )
    lower = podman.engine.inspect(shared).layers
    podman("run", "--rm", "lab:shared", "python", "-c", "import torch, near")
    alice, bob = podman.engine.inspect("lab:alice"), podman.engine.inspect("lab:bob")
    assert alice.layers[: len(lower)] == bob.layers[: len(lower)] == lower
    assert alice.layers[len(lower)] != bob.layers[len(lower)]
    # Its name stays: podman 4.3 drops the layers it caches together with one.


def test_a_second_build_is_the_engines_cache(podman: EngineHere, lab: Torchsmith) -> None:
    before = {name: podman.engine.inspect(name).id for name in ("lab:alice", "lab:bob")}
    again = json.loads(lab("image", "build", "--json"))["images"]
    first, second = sorted((lab.store / "logs").glob("*/image-train-alice-lab.log"))[:2]
    assert "Installing collected packages" in first.read_text()
    assert "Installing collected packages" not in second.read_text()
    assert second.read_text().count("Using cache") > 10
    assert {image["name"]: image["id"] for image in again if image["name"] in before} == before
    # And the journal knows them.
    journal = journal_of(Store(lab.store))
    events = [event for run in journal.runs() for event in journal.events(run.id)]
    noted = [event for event in events if event["event"] == "image-built"]
    assert {(item["name"], item["id"], item["engine"]) for item in noted} >= {
        (name, identity, "podman") for name, identity in before.items()
    }


def test_an_image_says_where_it_comes_from_and_keeps_no_secret(
    podman: EngineHere, lab: Torchsmith
) -> None:
    info = podman.engine.inspect("lab:alice")
    assert info.user == "alice"
    assert info.labels["org.opencontainers.image.version"] == "2.13.0+cpu"
    assert info.labels["dev.torchsmith.recipe"] == "lab"
    assert len(info.labels["dev.torchsmith.recipe-sha256"]) == 64
    told = podman("image", "inspect", "lab:alice") + podman("history", "--no-trunc", "lab:alice")
    assert "open-sesame" not in told
    assert "HEALTHCHECK" in told
    podman(
        "run", "--rm", "lab:alice", "sh", "-c", 'test ! -e /run/secrets/LICENCE -a -z "$LICENCE"'
    )
    logs = "".join(path.read_text() for path in (lab.store / "logs").rglob("*.log"))
    assert "open-sesame" not in logs


def test_wheels_come_out_of_an_image_as_they_went_in(
    podman: EngineHere, lab: Torchsmith, tmp_path: Path
) -> None:
    lab("image", "wheels", "lab:alice", "--output", str(tmp_path / "out"))
    (wheel,) = (tmp_path / "out").iterdir()
    (built,) = lab.store.glob("work/lab/dist/lab/near-*.whl")
    assert wheel.name == built.name
    assert wheel.read_bytes() == built.read_bytes()
    assert podman.left() == []


def test_buildah_makes_the_same_image_of_the_same_layers(
    buildah: EngineHere, lab: Torchsmith
) -> None:
    before = buildah.engine.inspect("lab:bob")
    done = lab("image", "build", "--engine", "buildah", "--only", "bob", "--json")
    (made,) = json.loads(done)["images"]
    assert made["engine"] == "buildah"
    after = buildah.engine.inspect("lab:bob")
    assert after.layers == before.layers
    assert (after.user, after.workdir) == ("bob", "/home/bob")


def test_docker_builds_everything_inside(
    docker: EngineHere, tmp_path_factory: pytest.TempPathFactory
) -> None:
    torch = 'torch = { release = "2.13.0", use = "wheel" }\nsystem = "debian-12"\n'
    folder = tmp_path_factory.mktemp("hermetic")
    here = in_folder(folder, torch + COMMON.replace('"lab"', '"hermetic"') + INSIDE, docker)
    built = json.loads(here("image", "build", "--network", "host", "--json"))["images"]
    assert [image["name"] for image in built] == ["hermetic:carol", "hermetic:wheels"]
    said = docker("run", "--rm", "--network=host", "hermetic:carol", "sh", "-euc", ASK)
    assert said.splitlines() == ["carol", "1203", "1303", "CET", "/workspace", "2.13.0 42.0"]
    # Nothing was compiled on this machine itself.
    assert list(here.store.glob("work/hermetic/.torchsmith/containers/compile-near-*/outcome"))
    out = folder / "out"
    here("image", "wheels", "hermetic:carol", "--output", str(out))
    assert [path.name.split("-")[0] for path in out.iterdir()] == ["near"]
    again = json.loads(here("image", "build", "--network", "host", "--json"))["images"]
    assert [image["id"] for image in again] == [image["id"] for image in built]
    assert docker.left() == []


PLAIN = """
name = "plain"
torch = { release = "2.13.0", use = "wheel" }
python = "3.11"
system = "debian-12"
[image]
name = "plain"
"""


@pytest.fixture(params=["podman", "docker"])
def engine(request: pytest.FixtureRequest) -> EngineHere:
    found = request.getfixturevalue(request.param)
    assert isinstance(found, EngineHere)
    return found


def test_a_base_image_that_does_not_exist_is_named(engine: EngineHere, tmp_path: Path) -> None:
    here = in_folder(tmp_path, f'{PLAIN}base = "127.0.0.1:9/no/such:1"\n', engine)
    done = here.tried("image", "build", "--network", "host")
    assert done.returncode == 6
    assert "the base image 127.0.0.1:9/no/such:1 is not here and could not be pulled" in done.stderr
    assert f"{engine.engine.name} pull 127.0.0.1:9/no/such:1" in done.stderr
    assert engine.left() == []


def test_ctrl_c_leaves_no_container_and_no_image(engine: EngineHere, tmp_path: Path) -> None:
    here = in_folder(tmp_path, PLAIN.replace("plain", "stopped"), engine)
    process = subprocess.Popen(
        here.command("image", "build", "--network", "host"),
        cwd=here.project,
        env=here.env,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        # The first command of all, and a layer nobody has yet: it takes a while.
        if "torchsmith-apt" in line:
            break
    time.sleep(1)
    os.kill(process.pid, signal.SIGINT)
    rest = process.stderr.read()
    assert process.wait(90) == 130, rest
    assert "stopped" in rest
    assert engine.left() == []
    assert engine.engine.find("stopped:latest") is None


def test_a_daemon_that_is_down_is_said_before_anything_is_built(
    docker: EngineHere, tmp_path: Path
) -> None:
    here = in_folder(tmp_path, PLAIN, docker, DOCKER_HOST=f"unix://{tmp_path}/nobody.sock")
    done = here.tried("image", "build")
    assert done.returncode == 4
    assert "docker is installed but not running" in done.stderr
    assert "systemctl start docker" in done.stderr


def test_a_full_disk_is_a_full_disk(podman: EngineHere, base_archive: Path, tmp_path: Path) -> None:
    """The engine's store on a disk where the base image fits and nothing else."""
    small = tmp_path / "small"
    small.mkdir()
    size = base_archive.stat().st_size + (40 << 20)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(small)]
    subprocess.run(mount, check=True)
    try:
        conf = tmp_path / "storage.conf"
        conf.write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{small}/store"\nrunroot = "{small}/run"\n'
        )
        # apt itself does not end where there is no room, so it is not asked.
        foundation = '[image.foundation]\nname = "small/base"\nfrom = "debian:12"\n'
        fill = 'run = ["dd if=/dev/zero of=/large bs=1M count=400"]\n'
        recipe = f"{PLAIN}{foundation}{fill}"
        # The other engine's notes on what runs are not for this one to reset.
        own_conf = tmp_path / "containers.conf"
        own_conf.write_text(CONTAINERS_CONF.format(folder=tmp_path))
        settings = {"CONTAINERS_CONF": str(own_conf), "CONTAINERS_STORAGE_CONF": str(conf)}
        here = in_folder(tmp_path, recipe, podman, **settings)
        own = EngineHere(podman.engine, here.env)
        own("import", "--quiet", base_archive, "docker.io/library/debian:12")
        done = here.tried("image", "build", "--only", "small/base")
        assert done.returncode == 7, done.stderr
        assert "no room left in the container tool's store" in done.stderr
        assert "prune" in done.stderr
        assert own.left() == []
        reset(own)
    finally:
        subprocess.run(["umount", "--lazy", small], check=True)
