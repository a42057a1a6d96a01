"""Programs run in real containers with what PyTorch needs, and leave no container behind."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.containers import BASE, EngineHere
from tests.integration.test_render_image import RECIPE
from tests.registries import RegistryHere

from torchsmith.images.tools import Build
from torchsmith.plan.models import Plan
from torchsmith.plan.render.dockerfile import dockerfile_context
from torchsmith.recipe.models import Recipe

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("rendering_tools")]

# Two workers that have a few batches of 4 MB ready at any time.
LOADING = """
import torch
from torch.utils.data import DataLoader, Dataset

class Numbers(Dataset):
    def __len__(self):
        return 64
    def __getitem__(self, index):
        return torch.full((1024, 256), float(index))

total = sum(batch.sum().item() for batch in DataLoader(Numbers(), batch_size=4, num_workers=2))
print("total", total)
"""


@pytest.fixture(scope="module")
def torch_image(
    podman: EngineHere,
    planned: Callable[[str | Path], tuple[Plan, Recipe]],
    tmp_path_factory: pytest.TempPathFactory,
) -> str:
    """The image ann works in, with torch in it; its layers are made once in a session."""
    folder = tmp_path_factory.mktemp("context")
    for name, content in dockerfile_context(*planned(RECIPE), "test").items():
        (folder / name).write_bytes(content)
    podman.engine.build(Build(folder, "lab:ann", folder / "Dockerfile", target="train-ann"))
    return "lab:ann"


def command(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "torchsmith", *map(str, words)]


def torchsmith(here: EngineHere, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*words),
        env=here.env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=900,
    )


def test_workers_that_fill_a_small_shm_are_explained_and_have_enough_by_default(
    podman: EngineHere, torch_image: str, tmp_path: Path
) -> None:
    (tmp_path / "load.py").write_text(LOADING)
    tmp_path.chmod(0o755)
    words = ("run", torch_image, "--mount", f"{tmp_path}:/data:ro")
    program = ("--", "python", "/data/load.py")
    small = torchsmith(podman, *words, "--shm-size", "1M", "--workers", "2", *program)
    assert small.returncode not in (0, 125)
    assert "note: 2 workers may fill 735 MiB of /dev/shm" in small.stderr
    assert "known: DataLoader workers ran out of shared memory" in small.stderr
    assert "/dev/shm had 1 MiB here" in small.stderr
    assert podman.left() == []

    # What an older torch dies of: it writes beyond the end of /dev/shm without a word.
    bus = (
        "import mmap; f = open('/dev/shm/x', 'w+b'); f.truncate(4 << 20); "
        "m = mmap.mmap(f.fileno(), 4 << 20); m[:] = bytes(4 << 20)"
    )
    died = torchsmith(podman, *words, "--shm-size", "1M", "--", "python", "-c", bus)
    assert died.returncode == 135
    assert "known: DataLoader workers ran out of shared memory" in died.stderr

    done = torchsmith(podman, *words, "--workers", "2", *program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["total", str(float(1024 * 256 * sum(range(64))))]
    assert "known:" not in done.stderr
    assert podman.left() == []


def test_an_image_from_a_registry_is_proven_inside_an_empty_store(
    podman: EngineHere,
    second_podman: EngineHere,
    registry: RegistryHere,
    torch_image: str,
    tmp_path: Path,
) -> None:
    (tmp_path / "lab.toml").write_text(RECIPE)
    to = f"{registry.address}/lab/torch:2.13"
    env = {**podman.env, "TORCHSMITH_STORE": str(tmp_path / "store")}
    here, there = (
        EngineHere(podman.engine, env),
        EngineHere(second_podman.engine, second_podman.env),
    )
    there.env["TORCHSMITH_STORE"] = str(tmp_path / "store")
    pushed = torchsmith(here, "image", "push", torch_image, "--to", to, "--json")
    assert pushed.returncode == 0, pushed.stderr
    pinned = json.loads(pushed.stdout)["images"][0]["pinned"]

    pulled = torchsmith(there, "image", "pull", pinned, "--verify", tmp_path / "lab.toml", "--json")
    assert pulled.returncode == 0, pulled.stderr
    report = json.loads(pulled.stdout)
    assert report["rating"] != "fail"
    assert report["torch"].startswith("2.13.0")
    checks = {check["name"]: check["status"] for check in report["checks"]}
    assert checks["data loader"] == "pass"
    assert checks["version"] == "pass"
    assert there.left() == []

    other = RECIPE.replace("2.13.0", "2.6.0")
    (tmp_path / "other.toml").write_text(other)
    wrong = torchsmith(there, "image", "pull", pinned, "--verify", tmp_path / "other.toml")
    assert wrong.returncode == 9
    assert "needed  2.6.0" in wrong.stdout

    (tmp_path / "load.py").write_text(LOADING)
    tmp_path.chmod(0o755)
    mount = f"{tmp_path}:/data"
    words = ("run", pinned, "-v", mount, "--shm-size", "8G", "--", "python", "/data/load.py")
    assert torchsmith(there, *words).stdout.startswith("total")


SEEN = (
    "id -u; id -g; date +%Z; df --output=size -B1 /dev/shm | tail -n 1; cat /data/note; "
    'echo "$WHO"; cat /proc/1/comm; exit 7'
)


@pytest.mark.parametrize("name", ["podman", "docker"])
def test_a_program_sees_what_was_asked_for_and_its_exit_code_is_passed_on(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    here: EngineHere = request.getfixturevalue(name)
    (tmp_path / "note").write_text("mine\n")
    tmp_path.chmod(0o755)
    done = torchsmith(
        here,
        *("run", BASE, "--user", "1234:1235", "--timezone", "Asia/Seoul", "--memory", "1G"),
        *("--shm-size", "48M", "-v", f"{tmp_path}:/data:ro", "--env", "WHO=ann", "--gpus", "none"),
        *("--", "sh", "-c", SEEN),
    )
    assert done.returncode == 7, done.stderr
    uid, gid, zone, shm, note, who, first = done.stdout.split()
    assert (uid, gid, int(shm), note, who) == ("1234", "1235", 48 << 20, "mine", "ann")
    # A base without tzdata knows only the name it was told.
    assert zone in ("KST", "Asia")
    assert first != "sh"
    assert here.left() == []


def test_what_is_piped_in_reaches_the_program(podman: EngineHere) -> None:
    done = subprocess.run(
        command("run", BASE, "--", "cat"),
        env=podman.env,
        input="across\n",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout == "across\n", done.stderr


def test_at_a_terminal_the_program_has_one(podman: EngineHere) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command("run", BASE, "--", "sh", "-c", "test -t 0 && test -t 1 && echo both"),
        env=podman.env,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    said = b""
    try:
        while piece := os.read(ours, 4096):
            said += piece
    except OSError:
        # The other end is closed.
        pass
    assert process.wait(60) == 0, said
    assert b"both" in said


class Running:
    """A program under way in a container."""

    def __init__(self, here: EngineHere) -> None:
        self.process = subprocess.Popen(
            command("run", BASE, "--", "sh", "-c", "echo begun; exec sleep 300"),
            env=here.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "begun\n"
        assert len(here.containers()) == 1


@pytest.fixture
def running(podman: EngineHere) -> Iterator[Running]:
    under_way = Running(podman)
    yield under_way
    under_way.process.kill()
    under_way.process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_container_is_left_however_we_are_ended(
    number: signal.Signals, podman: EngineHere, running: Running
) -> None:
    os.kill(running.process.pid, number)
    code = running.process.wait(60)
    assert code == (-number if number == signal.SIGKILL else 128 + number)
    assert podman.left() == []


def test_bad_wishes_are_explained_and_nothing_is_started(podman: EngineHere) -> None:
    for words, code, said in (
        (["nothing:1"], 6, "podman has no image nothing:1"),
        ([BASE, "--shm-size", "lots"], 2, "is not a size like 8G"),
        ([BASE, "--shm-size", "2G", "--memory", "1G"], 2, "is more than the 1 GiB of memory"),
        ([BASE, "--ipc", "host", "--shm-size", "1G"], 2, "both given"),
        ([BASE, "--gpus", "first"], 2, "names no GPUs"),
        ([BASE, "--timezone", "Mars/Olympus"], 2, "is not a time zone"),
        ([BASE, "--user", "a b"], 2, "is not a user"),
        ([BASE, "--mount", "/none/such:/data"], 2, "there is no /none/such"),
        ([BASE, "--mount", "here"], 2, "does not say what goes where"),
        ([BASE, "--engine", "buildah"], 4, "builds images and starts none"),
        (["Not An Image"], 2, "is not the name of an image"),
    ):
        done = torchsmith(podman, "run", *words)
        assert (done.returncode, said in done.stderr) == (code, True), done.stderr
    assert podman.left() == []


def test_an_image_without_python_is_no_side_of_a_comparison(podman: EngineHere) -> None:
    done = torchsmith(podman, "bench", f"a=image:{BASE}", f"b={sys.prefix}")
    assert done.returncode == 4
    assert "a: " in done.stderr
    assert "there is no Python in the image" in done.stderr
    assert podman.left() == []
