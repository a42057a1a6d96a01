"""Images go to a real registry and come back; what a registry refuses is explained."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.containers import EngineHere
from tests.registries import (
    RegistryHere,
    Stalling,
    free_port,
    login_file,
    own_certificate,
    password_file,
    serving,
)

from torchsmith.engine.events import Event, ImagePushed
from torchsmith.engine.journal import journal_of
from torchsmith.engine.runner import run_plan
from torchsmith.engine.store import Store
from torchsmith.plan.models import Plan
from torchsmith.recipe.models import Recipe

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("rendering_tools")]

Making = Callable[[EngineHere, str], str]


@pytest.fixture
def make(tmp_path: Path) -> Making:
    """Make an image of one layer that no other image has, a few MB of it."""

    def made(here: EngineHere, name: str) -> str:
        archive = tmp_path / "layer.tar"
        with tarfile.open(archive, "w") as tar:
            entry = tarfile.TarInfo("content")
            entry.size = 4 << 20
            tar.addfile(entry, io.BytesIO(os.urandom(entry.size)))
        return here("import", archive, name).strip().rpartition("\n")[2].removeprefix("sha256:")

    return made


def torchsmith(
    here: EngineHere, store: Path, *words: str | Path, **env: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torchsmith", *map(str, words)],
        env={**here.env, "TORCHSMITH_STORE": str(store), **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def journal(here: EngineHere, store: Path) -> list[dict[str, str]]:
    said = torchsmith(here, store, "log", "--json")
    return list(json.loads(said.stdout)["runs"])


@pytest.mark.parametrize("name", ["podman", "docker"])
def test_what_is_pushed_comes_back_by_its_digest_into_an_empty_store(
    name: str,
    request: pytest.FixtureRequest,
    second_podman: EngineHere,
    registry: RegistryHere,
    make: Making,
    tmp_path: Path,
) -> None:
    here: EngineHere = request.getfixturevalue(name)
    identity = make(here, f"tiny-{name}:1")
    to = f"{registry.address}/lab/tiny-{name}:1"
    dry = torchsmith(here, tmp_path, "image", "push", f"tiny-{name}:1", "--to", to, "--dry-run")
    assert "would be pushed" in dry.stdout, dry.stderr
    assert registry.digest(f"lab/tiny-{name}", "1") is None

    done = torchsmith(here, tmp_path, "image", "push", f"tiny-{name}:1", "--to", to, "--json")
    assert done.returncode == 0, done.stderr
    (pushed,) = json.loads(done.stdout)["images"]
    assert pushed["action"] == "pushed"
    assert pushed["digest"] == registry.digest(f"lab/tiny-{name}", "1")
    (run,) = journal(here, tmp_path)
    assert run["status"] == "done"
    steps = json.loads(torchsmith(here, tmp_path, "log", run["id"], "--json").stdout)["steps"]
    assert [(step["step"], step["key"]) for step in steps] == [(pushed["pinned"], pushed["digest"])]

    again = torchsmith(here, tmp_path, "image", "push", f"tiny-{name}:1", "--to", to)
    assert "already there" in again.stdout

    assert second_podman("images", "--quiet", to) == ""
    pulled = torchsmith(second_podman, tmp_path, "image", "pull", pushed["pinned"], "--json")
    assert pulled.returncode == 0, pulled.stderr
    assert json.loads(pulled.stdout)["id"] == identity
    by_tag = torchsmith(second_podman, tmp_path, "image", "pull", to)
    assert pushed["pinned"] in by_tag.stdout
    second_podman("image", "exists", to)


def test_buildah_pushes_what_podman_has(
    podman: EngineHere, buildah: EngineHere, registry: RegistryHere, make: Making, tmp_path: Path
) -> None:
    make(podman, "tiny-buildah:1")
    to = f"{registry.address}/lab/tiny-buildah:1"
    done = torchsmith(buildah, tmp_path, "image", "push", "tiny-buildah:1", "--to", to)
    assert done.returncode == 0, done.stderr
    assert str(registry.digest("lab/tiny-buildah", "1")) in done.stdout


def test_a_tag_that_means_another_image_is_left_alone_unless_told(
    podman: EngineHere, registry: RegistryHere, make: Making, tmp_path: Path
) -> None:
    to = f"{registry.address}/lab/taken:1"
    make(podman, "first:1")
    assert torchsmith(podman, tmp_path, "image", "push", "first:1", "--to", to).returncode == 0
    before = registry.digest("lab/taken", "1")
    make(podman, "second:1")
    refused = torchsmith(podman, tmp_path, "image", "push", "second:1", "--to", to)
    assert refused.returncode == 5
    assert "is another image" in refused.stderr
    assert "--replace" in refused.stderr
    assert registry.digest("lab/taken", "1") == before
    assert journal(podman, tmp_path)[0]["status"] == "failed"

    told = torchsmith(podman, tmp_path, "image", "push", "second:1", "--to", to, "--replace")
    assert told.returncode == 0, told.stderr
    assert registry.digest("lab/taken", "1") != before


def test_a_recipe_pushes_its_images_to_its_registry(
    podman: EngineHere, registry: RegistryHere, make: Making, tmp_path: Path
) -> None:
    recipe = tmp_path / "lab.toml"
    recipe.write_text(
        'name = "lab"\ntorch = { release = "2.13.0", use = "wheel" }\npython = "3.11"\n'
        '[image]\nname = "pushed"\n[[image.train]]\nname = "ann"\n[[image.train]]\nname = "bob"\n'
        f'[publish]\nregistry = "{registry.address}/lab"\n'
    )
    missing = torchsmith(podman, tmp_path, "image", "push", recipe)
    assert missing.returncode == 6
    assert "has no image pushed:ann" in missing.stderr
    make(podman, "pushed:ann")
    make(podman, "pushed:bob")
    done = torchsmith(podman, tmp_path, "image", "push", recipe, "--json")
    assert done.returncode == 0, done.stderr
    pushed = json.loads(done.stdout)["images"]
    assert [item["name"] for item in pushed] == [
        f"{registry.address}/lab/pushed:ann",
        f"{registry.address}/lab/pushed:bob",
    ]
    assert registry.digest("lab/pushed", "bob") == pushed[1]["digest"]


def test_a_build_that_pushes_its_images_keeps_their_digests(
    podman: EngineHere,
    registry: RegistryHere,
    make: Making,
    planned: Callable[[str], tuple[Plan, Recipe]],
    tmp_path: Path,
) -> None:
    plan, _ = planned(
        'name = "lab"\ntorch = { release = "2.13.0", use = "wheel" }\npython = "3.11"\n'
        '[image]\nname = "kept"\n[[image.train]]\nname = "ann"\n[[image.train]]\nname = "bob"\n'
        f'[publish]\nregistry = "{registry.address}/lab"\n'
    )
    # Images of a few MB instead of those with torch in them: the step's own work is the same.
    for name in ("kept:ann", "kept:bob"):
        make(podman, name)
    (step,) = (step for step in plan.steps if step.id == "publish-images-lab")
    alone = replace(plan, steps=(replace(step, needs=()),))
    store = Store(tmp_path / "store")
    seen: list[Event] = []
    with contextlib.closing(journal_of(store)) as kept:
        result = run_plan(alone, store, kept, on_event=seen.append, environment=podman.env)
        noted = [item for item in kept.events(result.run) if item["event"] == "image-pushed"]
    assert [(event.name, event.digest) for event in seen if isinstance(event, ImagePushed)] == [
        (f"{registry.address}/lab/kept:{who}", registry.digest("lab/kept", who))
        for who in ("ann", "bob")
    ]
    assert [item["digest"] for item in noted] == [
        registry.digest("lab/kept", who) for who in ("ann", "bob")
    ]


def test_a_registry_that_wants_a_login_gets_the_engines_own(
    podman: EngineHere, make: Making, tmp_path: Path
) -> None:
    make(podman, "locked:1")
    auth = password_file(tmp_path, "ann", "right")
    with serving(tmp_path / "registry", auth=auth) as here:
        words = ("image", "push", "locked:1", "--to", f"{here.address}/lab/locked:1")
        nobody = torchsmith(podman, tmp_path, *words, REGISTRY_AUTH_FILE="/dev/null")
        assert nobody.returncode == 5
        assert f"{here.address} wants a login" in nobody.stderr
        assert f"podman login {here.address}" in nobody.stderr

        wrong = login_file(tmp_path, here.address, "ann", "guessed")
        refused = torchsmith(podman, tmp_path, *words, REGISTRY_AUTH_FILE=str(wrong))
        assert refused.returncode == 5
        assert "refuses" in refused.stderr
        assert "guessed" not in refused.stdout + refused.stderr

        store = str(tmp_path / "login.json")
        login = ["login", "--tls-verify=false", "--authfile", store]
        podman(*login, "--username", "ann", "--password", "right", here.address)
        done = torchsmith(podman, tmp_path, *words, REGISTRY_AUTH_FILE=store)
        assert done.returncode == 0, done.stderr
        assert "right" not in done.stdout + done.stderr


def test_a_certificate_nobody_trusts_is_explained(
    podman: EngineHere, make: Making, tmp_path: Path
) -> None:
    # Under this name the machine is not known to be this one, and so has to prove who it is.
    host = socket.gethostname()
    make(podman, "private:1")
    tls = own_certificate(tmp_path, host)
    with serving(tmp_path / "registry", socket.gethostbyname(host), tls=tls) as here:
        place = f"{host}:{here.address.rpartition(':')[2]}"
        words = ("image", "push", "private:1", "--to", f"{place}/lab/private:1")
        refused = torchsmith(podman, tmp_path, *words)
        assert refused.returncode == 5
        assert f"the certificate of {place} is not one this machine trusts" in refused.stderr
        assert f"/etc/containers/certs.d/{place}/ca.crt" in refused.stderr
        done = torchsmith(podman, tmp_path, *words, "--insecure")
        assert done.returncode == 0, done.stderr


def test_a_registry_without_tls_is_used_only_when_asked(
    podman: EngineHere, make: Making, tmp_path: Path
) -> None:
    host = socket.gethostname()
    make(podman, "plain:1")
    with serving(tmp_path / "registry", socket.gethostbyname(host)) as here:
        place = f"{host}:{here.address.rpartition(':')[2]}"
        words = ("image", "push", "plain:1", "--to", f"{place}/lab/plain:1")
        refused = torchsmith(podman, tmp_path, *words)
        assert refused.returncode == 5
        assert "does not speak HTTPS" in refused.stderr
        assert torchsmith(podman, tmp_path, *words, "--insecure").returncode == 0


def test_a_registry_or_an_image_that_is_not_there_is_said_so(
    podman: EngineHere, registry: RegistryHere, make: Making, tmp_path: Path
) -> None:
    make(podman, "lonely:1")
    nowhere = f"127.0.0.1:{free_port()}"
    gone = torchsmith(podman, tmp_path, "image", "push", "lonely:1", "--to", f"{nowhere}/a/b:1")
    assert gone.returncode == 8
    assert f"the registry {nowhere} cannot be reached" in gone.stderr
    absent = torchsmith(podman, tmp_path, "image", "pull", f"{registry.address}/lab/never:1")
    assert absent.returncode == 5
    assert "has no" in absent.stderr
    unsaid = torchsmith(podman, tmp_path, "image", "push", "lonely:1")
    assert unsaid.returncode == 2
    assert "which registry" in unsaid.stderr
    bad = torchsmith(podman, tmp_path, "image", "push", "lonely:1", "--to", "UPPER/Case:1:2")
    assert bad.returncode == 2
    assert "is not the name of an image" in bad.stderr


def test_an_engine_that_is_not_running_is_said_so(podman: EngineHere, tmp_path: Path) -> None:
    env = {"DOCKER_HOST": f"unix://{tmp_path}/none.sock", "TORCHSMITH_ENGINE": "docker"}
    for words in (["image", "push", "a:1", "--to", "localhost:1/a:1"], ["run", "a:1"]):
        said = torchsmith(podman, tmp_path, *words, **env)
        assert said.returncode == 4
        assert "docker is installed but not running" in said.stderr


class Pushing:
    """A push that is under way and does not get on."""

    def __init__(self, here: EngineHere, store: Path, proxy: Stalling, image: str) -> None:
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "torchsmith", "image", "push", image),
                *("--to", f"{proxy.address}/lab/stopped:1"),
            ],
            env={**here.env, "TORCHSMITH_STORE": str(store)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert proxy.stalled.wait(60)
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        (self.client,) = map(int, children.read_text().split())

    def end(self) -> tuple[int, str]:
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("how", ["client", "ctrl-c", "term"])
def test_a_push_that_is_stopped_in_the_middle_is_no_success_and_leaves_no_tag(
    how: str, podman: EngineHere, registry: RegistryHere, make: Making, tmp_path: Path
) -> None:
    make(podman, "stopped:1")
    with Stalling(registry.address, 1 << 20) as proxy:
        pushing = Pushing(podman, tmp_path, proxy, "stopped:1")
        if how == "client":
            os.kill(pushing.client, signal.SIGKILL)
        elif how == "ctrl-c":
            os.killpg(pushing.process.pid, signal.SIGINT)
        else:
            os.kill(pushing.process.pid, signal.SIGTERM)
        code, said = pushing.end()
    until = time.monotonic() + 60
    while is_there(pushing.client) and time.monotonic() < until:
        time.sleep(0.05)
    assert not is_there(pushing.client)
    assert registry.digest("lab/stopped", "1") is None
    assert code == {"client": 5, "ctrl-c": 130, "term": 143}[how], said
    assert journal(podman, tmp_path)[0]["status"] == (
        "failed" if how == "client" else "interrupted"
    )
    if how == "client":
        assert "was not pushed" in said
