"""A recipe that names a distribution is built in it: in a container, by what the plan says."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.containers import EngineHere
from tests.lab import Torchsmith, in_folder

from torchsmith.engine.door import Wanted, plan_recipe
from torchsmith.engine.places import make_kit, tie
from torchsmith.engine.store import Store
from torchsmith.host import read_host
from torchsmith.plan.models import as_json
from torchsmith.plan.shell import OURS
from torchsmith.recipe.load import load_recipe

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("rendering_tools")]

# It notes where it is compiled and whom it could reach, and takes its time if it is told to.
SETUP = """
import os, time
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension
inside = os.path.exists("/run/.containerenv") or os.path.exists("/.dockerenv")
with open("/etc/os-release") as file:
    system = [line.split("=")[1].strip().strip('"') for line in file if line.startswith("ID=")][0]
with open("/proc/net/dev") as file:
    links = [line.split(":")[0].strip() for line in file if ":" in line]
with open("near_where.py", "w") as file:
    file.write("inside = %r\\nsystem = %r\\nlinks = %r\\n" % (inside, system, links))
if os.path.exists(os.path.join(os.environ["WORK"], "slow")):
    open(os.path.join(os.environ["WORK"], "begun"), "w").close()
    time.sleep(600)
setup(
    name="near", version="1.0", cmdclass={"build_ext": BuildExtension}, py_modules=["near_where"],
    ext_modules=[CppExtension("near", ["near.cpp"])],
)
"""
RECIPE = """
name = "first"
system = "debian-12"
torch = { release = "2.13.0", use = "wheel" }
[[companions.extension]]
name = "near"
folder = "near"
check = 'import near, near_where as it; assert it.inside; assert it.links == ["lo"]; near.answer()'
"""


def project(folder: Path, engine: EngineHere) -> Torchsmith:
    here = in_folder(folder, RECIPE, engine)
    (here.project / "near/setup.py").write_text(SETUP)
    return here


def events(text: str, name: str) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == name]


def until(true: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)


def ours(engine: EngineHere) -> list[str]:
    """The containers that steps run in; what other tests left of image builds is theirs."""
    return engine("ps", "--all", "--quiet", "--filter", "name=torchsmith-").split()


@pytest.fixture(scope="module")
def built(podman: EngineHere, tmp_path_factory: pytest.TempPathFactory) -> Torchsmith:
    """An extension, built by podman in Debian 12 whatever this machine is."""
    here = project(tmp_path_factory.mktemp("places"), podman)
    here("build", "--quiet")
    return here


def test_the_wheel_lies_beside_the_recipe_and_is_the_callers(
    podman: EngineHere, built: Torchsmith
) -> None:
    (wheel,) = (built.project / "dist").glob("*.whl")
    assert wheel.name.startswith("near-1.0-cp311-")
    assert wheel.stat().st_uid == os.geteuid()
    owners = {path.lstat().st_uid for path in built.store.rglob("*")}
    assert owners == {os.geteuid()}
    # Its proof ran in the container too, and says where it was compiled.
    report = json.loads((wheel.parent / f"{wheel.name}.verify.json").read_text())
    assert report["rating"] in ("pass", "warn")
    assert not ours(podman)


def test_what_ran_is_what_the_plan_says(built: Torchsmith) -> None:
    loaded = load_recipe(built.project / "recipe.toml")
    plan = plan_recipe(loaded, read_host(built.project), Store(built.store), Wanted(tool="podman"))
    scripts = built.store / "work/first/.torchsmith/scripts"
    shown = {step["id"]: step for step in json.loads(built("plan", "--json"))["steps"]}
    for step in plan.steps:
        lines = (scripts / f"{step.id}.sh").read_text().splitlines()[1:]
        if step.task is None:
            assert lines == list(step.commands) == shown[step.id]["commands"]
        else:
            assert lines[0].startswith(f"{OURS} -m {step.task.module} ")
            assert lines[1] == step.task.text
            # Which program makes an image is said when it is made.
            shown[step.id]["task"]["arguments"].pop("engine", None)
            wanted = as_json(step.task)
            wanted["arguments"].pop("engine", None)
            assert shown[step.id]["task"] == wanted
        assert shown[step.id]["key"] == step.key
    kinds = {step.kind: step.place.system for step in plan.steps}
    assert kinds["compile"] == kinds["environment"] == kinds["verify"] == "debian-12"
    assert kinds["fetch"] == kinds["base"] == ""


def test_a_second_build_and_one_of_another_name_do_nothing(built: Torchsmith) -> None:
    again = events(built("build", "--json"), "run-started")
    assert [event["to_run"] for event in again] == [[]]
    other = built.project / "other-name.toml"
    other.write_text(RECIPE.replace('"first"', '"second"'))
    renamed = events(built("build", "other-name.toml", "--json"), "run-started")
    assert [event["to_run"] for event in renamed] == [[]]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_outlives_a_build_that_is_stopped_and_it_goes_on(
    number: signal.Signals, podman: EngineHere, built: Torchsmith
) -> None:
    # A folder that its container sees: the recipe's it does not.
    slow = built.store / "work/first/slow"
    slow.touch()
    (built.project / "near/near.cpp").open("a").write(f"// {number}\n")
    begun = built.store / "work/first/begun"
    begun.unlink(missing_ok=True)
    build = subprocess.Popen(
        built.command("build", "--quiet"), cwd=built.project, env=built.env, stderr=subprocess.PIPE
    )
    until(begun.exists, 300)
    assert ours(podman)
    build.send_signal(number)
    build.communicate(timeout=60)
    until(lambda: not ours(podman))
    slow.unlink()
    built("build", "--quiet")


def test_here_builds_on_this_machine(built: Torchsmith) -> None:
    shown = built("build", "--here", "--dry-run")
    assert "Make the image" not in shown
    assert "Make the image" in built("build", "--dry-run")


def test_docker_builds_the_same(docker: EngineHere, tmp_path: Path) -> None:
    here = project(tmp_path, docker)
    # The daemon of these tests has no network of its own for builds.
    here("build", "--quiet", "--network", "host")
    assert list((here.project / "dist").glob("near-1.0-*.whl"))
    assert not ours(docker)


def test_a_machine_without_a_container_tool_is_told_what_to_do(built: Torchsmith) -> None:
    (built.project / "near/near.cpp").open("a").write("// once more\n")
    env = {**built.env, "TORCHSMITH_ENGINE": "podman", "PATH": "/usr/bin:/bin"}
    nowhere = built.project / "bin"
    nowhere.mkdir(exist_ok=True)
    for name in ("bash", "git", "cp", "rm", "mkdir", "test"):
        (nowhere / name).unlink(missing_ok=True)
        (nowhere / name).symlink_to(f"/usr/bin/{name}")
    env["PATH"] = str(nowhere)
    told = Torchsmith(built.project, env, built.store).tried("build")
    assert told.returncode == 4
    assert "podman is not installed" in told.stderr
    assert "Traceback" not in told.stderr


def test_an_image_that_does_not_answer_is_said_in_one_sentence(built: Torchsmith) -> None:
    recipe = built.project / "elsewhere.toml"
    recipe.write_text(RECIPE.replace("debian-12", "debian-11").replace('"2.13.0"', '"2.6.0"'))
    told = built.tried("build", "elsewhere.toml")
    assert told.returncode != 0
    assert "docker.io/library/debian:11" in told.stderr
    assert "Traceback" not in told.stderr


def test_no_network_inside_is_said_in_one_sentence_and_the_same_command_goes_on(
    built: Torchsmith,
) -> None:
    recipe = built.project / "alone.toml"
    recipe.write_text(RECIPE.replace("[[comp", '[build]\napt = ["less"]\n[[comp'))
    told = built.tried("build", "alone.toml", "--network", "none")
    assert told.returncode == 6, told.stderr
    assert "a server could not be reached from inside the build of" in told.stderr
    assert "--network host" in told.stderr
    assert "Traceback" not in told.stderr
    built("build", "alone.toml", "--quiet")


def test_torchsmiths_python_runs_where_there_is_nothing_else(tmp_path: Path) -> None:
    kit = make_kit(tmp_path / "store")
    root = tmp_path / "root"
    # No C library, no loader, no Python: as old as a distribution can be.
    shutil.copytree(kit.folder, root / kit.folder.relative_to("/"))
    wanted = "ssl, sqlite3, msgspec, pydantic, torchsmith.verify.verify, torchsmith.package.attest"
    program = f"import {wanted}, sys; print(sys.executable)"
    done = subprocess.run(
        ["chroot", root, kit.python, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    assert done.stdout.strip() == str(kit.python)
    assert make_kit(tmp_path / "store") == kit


def test_a_python_with_fixed_addresses_comes_along_too(tmp_path: Path) -> None:
    # Debian's own is such a one.
    told = subprocess.run(["ldd", "/usr/bin/python3"], capture_output=True, text=True, check=True)
    beside = tmp_path / "a folder whose name is longer than that of the system's own libraries"
    beside.mkdir()
    for library in re.findall(r"(/\S+) \(0x", told.stdout):
        shutil.copy(library, beside)
    python = tmp_path / "python3"
    shutil.copy("/usr/bin/python3", python)
    tie(python, next(beside.glob("ld-*")))
    program = "print(open('/proc/self/maps').read())"
    done = subprocess.run([python, "-I", "-S", "-c", program], capture_output=True, text=True)
    assert done.returncode == 0
    assert f"{beside}/libc" in done.stdout
