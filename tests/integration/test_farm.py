"""The build farm on a real Slurm of two nodes: a matrix built, with a node lost in the middle."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml
from starlette.testclient import TestClient
from tests.conftest import PUBLISHED_TORCH
from tests.kubernetes_server import Step, kubernetes_server
from tests.slurm_cluster import Cluster, running_cluster, until

from torchsmith.engine.journal import journal_of
from torchsmith.engine.store import Store
from torchsmith.jobs.clients import render
from torchsmith.jobs.farm.request import Resources, Wanted, variant_jobs
from torchsmith.web.app import make_app
from torchsmith.web.portal import Portal

pytestmark = pytest.mark.integration

SETUP = """
from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

setup(
    name="tiny",
    version="1.0",
    packages=["tiny"],
    ext_modules=[CppExtension("tiny._C", ["tiny.cpp"])],
    cmdclass={"build_ext": BuildExtension},
)
"""
# Of torch only a small header: what is tested is the farm, not the compiler.
CODE = """
#include <Python.h>
#include <c10/core/DeviceType.h>
static PyObject* name(PyObject*, PyObject*) {
  return PyUnicode_FromString(c10::DeviceTypeName(c10::DeviceType::CPU).c_str());
}
static PyMethodDef methods[] = {{"name", name, METH_NOARGS, ""}, {nullptr, nullptr, 0, nullptr}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_C", "", -1, methods};
PyMODINIT_FUNC PyInit__C() { return PyModule_Create(&module); }
"""
RECIPE = """
name = "tiny"
torch = {{ release = "{release}", use = "installed", environment = "{environment}" }}
python = "host"

{more}

[[companions.extension]]
name = "tiny"
folder = "tiny"
"""
OTHER_CPU = "haswell" if platform.machine() == "x86_64" else "neoverse-n1"
MATRIX = f'[matrix]\ncpu = ["portable", "{OTHER_CPU}"]\nprofile = ["release", "debug"]'


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with running_cluster(tmp_path / "slurm") as made:
        yield made


class Project:
    """A recipe, the store its jobs share, and the command."""

    def __init__(
        self,
        folder: Path,
        torch: Path,
        more: str = "",
        to: str = "slurm",
        environ: dict[str, str] | None = None,
    ) -> None:
        self.to = to
        self.environ = {**os.environ, **(environ or {})}
        self.folder = folder / "project"
        self.store = folder / "shared"
        self.source = self.folder / "tiny/tiny.cpp"
        (self.folder / "tiny/tiny").mkdir(parents=True)
        (self.folder / "tiny/setup.py").write_text(SETUP, encoding="utf-8")
        self.source.write_text(CODE, encoding="utf-8")
        text = "import torch\nfrom tiny._C import name\n"
        (self.folder / "tiny/tiny/__init__.py").write_text(text, encoding="utf-8")
        text = RECIPE.format(release=PUBLISHED_TORCH, environment=torch, more=more)
        (self.folder / "recipe.toml").write_text(text, encoding="utf-8")

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = (sys.executable, "-m", "torchsmith", "build", "--on", self.to, *arguments)
        return subprocess.Popen(
            [*command, "--jobs", "1", "--memory", "3G", "--store", str(self.store)],
            cwd=self.folder,
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def build(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=1200)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def attempts(self) -> dict[str, Path]:
        """The last attempt at each variant."""
        found = sorted(self.store.glob("farm/*/variants/*/*"))
        return {path.parent.name: path for path in found}

    def compiles_on(self, node: str) -> bool:
        """Whether a variant is being compiled on a node."""
        for attempt in self.attempts().values():
            where, told = attempt / "node", attempt / "events.jsonl"
            if where.exists() and where.read_text().strip() == node and told.exists():
                text = told.read_text()
                last = [line for line in text.splitlines() if '"event": "step-' in line][-1:]
                if last and '"kind": "compile"' in last[0]:
                    return True
        return False


def events(process: subprocess.CompletedProcess[str], name: str) -> list[dict[str, Any]]:
    told = (json.loads(line) for line in process.stdout.splitlines())
    return [event for event in told if event["event"] == name]


def test_a_matrix_is_built_though_a_node_dies(
    cluster: Cluster, published_torch: Path, tmp_path: Path
) -> None:
    project = Project(tmp_path, published_torch, MATRIX)
    variants = {
        f"tiny_{cpu}_{profile}"
        for cpu in ("portable", OTHER_CPU)
        for profile in ("release", "debug")
    }
    process = project.start("--json")
    until(lambda: project.compiles_on("n1"), 600)
    cluster.kill_node("n1")
    out, err = process.communicate(timeout=1200)
    assert process.returncode == 0, out + err
    done = subprocess.CompletedProcess(process.args, 0, out, err)

    lost = events(done, "variant-lost")
    assert lost
    assert all(event["again"] for event in lost)
    built = {event["variant"]: event for event in events(done, "variant-built")}
    assert built.keys() == variants
    assert all(event["checks"] > 10 for event in built.values())
    assert all(built[event["variant"]]["node"] == "n2" for event in lost)
    (end,) = events(done, "farm-finished")
    assert (end["status"], set(end["built"])) == ("done", variants)

    # Every step was finished once: what variants share by one for all, what the dead node had
    # done was not done again.
    journal = journal_of(Store(project.store))
    steps = [step for run in journal.runs(100) for step in journal.steps(run.id)]
    finished = Counter(step.step for step in steps if step.status == "done")
    assert set(finished.values()) == {1}
    assert {name for name in finished if name.startswith("compile-")} == {
        f"compile-tiny-{variant}" for variant in variants
    }
    assert finished["fetch-extension-tiny"] == 1
    # The dead node's own could not say that it ended; until its silence is long enough it runs.
    assert any(
        step.step.startswith("compile-") and step.status in ("running", "interrupted")
        for step in steps
    )

    jobs = cluster.ask("squeue", "--states=all", "--noheader", "--format=%A").split()
    again = project.build()
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("(built before)") == 4
    assert sorted(again.stdout.split()) == sorted(
        path for event in built.values() for path in event["artifacts"]
    )
    assert jobs == cluster.ask("squeue", "--states=all", "--noheader", "--format=%A").split()


def test_a_farm_left_alone_is_found_again_and_a_failure_is_not_repeated(
    cluster: Cluster, published_torch: Path, tmp_path: Path
) -> None:
    project = Project(tmp_path, published_torch)
    shown = project.build("--dry-run", "--partition", "debug", "--time-limit", "2h")
    assert shown.returncode == 0, shown.stderr
    assert "#SBATCH --partition=debug" in shown.stdout
    assert "#SBATCH --time=0-02:00:00" in shown.stdout
    assert not project.store.exists()
    refused = project.build("--partition", "no such")
    assert refused.returncode == 2, refused.stderr
    assert not project.store.exists()
    assert not cluster.ask("squeue", "--states=all", "--noheader").strip()

    project.source.write_text(CODE.replace("CPU)", "NONE)"), encoding="utf-8")
    left = project.build("--detach")
    assert left.returncode == 0, left.stderr
    assert "1 job still running" in left.stderr
    (attempt,) = project.attempts().values()
    until((attempt / "ended").exists, 600)

    def jobs() -> int:
        return len(cluster.ask("squeue", "--states=all", "--noheader", "--format=%A").split())

    # What came to nothing meanwhile is told of, and tried again only when it was.
    found = project.build()
    assert found.returncode == 6, found.stderr
    assert "0 of them built before" in found.stderr
    assert "is not a member of" in found.stderr
    assert "the whole log: " in found.stderr
    assert jobs() == 1
    # The portal shows the same.
    portal = TestClient(make_app(Portal(store=project.store)), "http://127.0.0.1:8080")
    shown = portal.get("/matrix").text
    for word in ("tiny", "failed", "1 of 1: ", "is not a member of"):
        assert word in shown, word
    asked = project.build("--quiet")
    assert asked.returncode == 6, asked.stderr
    assert "is not a member of" in asked.stderr
    assert jobs() == 2


@pytest.mark.parametrize("release", ["1.25", "1.31", "1.37"])
def test_manifests_of_a_farm_pass_a_strict_validation(release: str, tmp_path: Path) -> None:
    what = Wanted("tiny", "", tmp_path, ("tiny_portable_release", f"tiny_{OTHER_CPU}_debug"))
    image = "registry.example.org/torchsmith:1"
    there = Resources(4, 8000, "python3", queue="builds", image=image, claim="store/torch")
    jobs = variant_jobs(Path("/srv/store"), Path("/srv/store/farm/tiny-1"), what, there)
    made = render(jobs, "kubernetes")
    assert len(made.files) == 2
    for content in made.files.values():
        for document in yaml.safe_load_all(content):
            kubernetes_validate.validate(document, release, strict=True)


@pytest.mark.usefixtures("rendering_tools")
def test_kubernetes_is_asked_for_a_pod_that_builds_a_variant(
    published_torch: Path, tmp_path: Path
) -> None:
    with kubernetes_server(tmp_path) as server:
        server.steps = [Step("Running")]
        way = {"KUBECONFIG": str(server.kubeconfig(tmp_path))}
        project = Project(tmp_path, published_torch, to="kubernetes", environ=way)
        alone = project.build()
        assert alone.returncode == 2, alone.stderr
        assert "needs --image and --claim" in alone.stderr
        where = ("--image", "registry.example.org/torchsmith:1", "--claim", "store")
        left = project.build(*where, "--detach")
        assert left.returncode == 0, left.stderr
        ((_, manifest),) = server.objects.items()
        pod = manifest["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert container["image"] == "registry.example.org/torchsmith:1"
        assert {mount["mountPath"] for mount in container["volumeMounts"]} >= {str(project.store)}

        # What the pod would do, done here: the volume it mounts is this very folder.
        ours = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        words = [*container["command"], *container.get("args", [])]
        done = subprocess.run(words, env={**os.environ, "PATH": ours}, check=False)
        assert done.returncode == 0
        ended = {"exitCode": 0, "reason": "Completed"}
        server.steps = [Step("Succeeded", terminated=ended, condition=("Complete", ""))]
        found = project.build(*where, "--json")
        assert found.returncode == 0, found.stderr
        (built,) = events(found, "variant-built")
        assert built["checks"] > 10
        assert len(server.objects) == 1
