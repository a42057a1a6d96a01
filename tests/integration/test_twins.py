"""Every kind of task, done by torchsmith and by its twin in plain shell: they leave the same."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import Struct
from msgspec.structs import replace
from tests.containers import EngineHere
from tests.integration.conftest import Planned
from tests.integration.test_conda_step import make_wheel, unpacked
from tests.integration.test_finish_wheel import compile_library, pack
from tests.integration.test_libtorch_program import MACHINE
from tests.integration.test_libtorch_program import repaired as repaired
from tests.integration.test_render_conda import make_channel
from tests.integration.test_render_sources import ALLOW, debian_mirror
from tests.integration.test_render_sources import repository as repository
from tests.plans import Ended, run_step, run_twin
from tests.registries import RegistryHere
from tests.tiny_packages import conda, wheel
from tests.unit.test_sources_sdist import GOOD, HASH, Index
from tests.unit.test_sources_sdist import index as index

from torchsmith.plan.attest import Attest, Subject
from torchsmith.plan.conda import conda_subdir
from torchsmith.plan.expects import Expects, Linking
from torchsmith.plan.images import ImageTask
from torchsmith.plan.models import Fetch, Kind, Plan, Step, Task
from torchsmith.plan.packages import Finishing, Libtorch
from torchsmith.plan.publish import Delivery, Shipment
from torchsmith.plan.render.twins import twin
from torchsmith.resolve.models import SourceChoice
from torchsmith.sources.tree import tree_hash

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("rendering_tools")]

Planner = Callable[[str | Path], Planned]
NOTHING = Plan("lab", (), ())
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


class Two:
    """Two work folders of one plan: torchsmith's, and that of a shell."""

    def __init__(self, folder: Path) -> None:
        self.project = folder / "the project"
        self.ours = folder / "ours"
        # A space in the path: everything below has to be quoted.
        self.shells = folder / "the shells"
        for place in (self.project, self.ours, self.shells):
            place.mkdir()

    def give(self, file: Path, into: str) -> None:
        """Have a file in both."""
        for work in (self.ours, self.shells):
            (work / into).mkdir(parents=True, exist_ok=True)
            shutil.copy2(file, work / into)

    def run(
        self, name: str, given: Struct, plan: Plan = NOTHING, **env: str
    ) -> tuple[Ended, Ended]:
        """Do a task in both."""
        kinds: dict[str, Kind] = {"fetch": "fetch", "verify": "verify"}
        variant = plan.variants[0].variant if plan.variants else ""
        task = Task(name, given)
        step = Step("one", kinds.get(name, "package"), "One", variant=variant, task=task)
        return self.run_step(step, plan, **env)

    def run_step(self, step: Step, plan: Plan = NOTHING, **env: str) -> tuple[Ended, Ended]:
        """Run a step in both."""
        told = {"PROJECT": str(self.project), **env}
        return run_step(step, self.ours, **told), run_twin(plan, step, self.shells, **told)

    def done(self, name: str, given: Struct, plan: Plan = NOTHING, **env: str) -> None:
        """Do a task in both; both have to be done."""
        ended(*self.run(name, given, plan, **env))


def ended(*runs: Ended) -> None:
    for run in runs:
        assert run.returncode == 0, run.stdout + run.stderr


@pytest.fixture
def two(tmp_path: Path) -> Two:
    return Two(tmp_path)


def files_below(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# --------------------------------------------------------------------------------- fetch


def fetched_alike(two: Two, source: SourceChoice, version: str = "1.2", **env: str) -> Path:
    two.done("fetch", Fetch(source, "sources/tree", version), NOTHING, **env)
    # dpkg-source's own notes on the patches it has applied.
    shutil.rmtree(two.shells / "sources/tree/.pc", ignore_errors=True)
    assert tree_hash(two.ours / "sources/tree") == tree_hash(two.shells / "sources/tree")
    return two.ours / "sources/tree"


def test_git_brings_the_same_tree(two: Two, repository: tuple[Path, str]) -> None:
    folder, commit = repository
    source = SourceChoice("git", url=f"file://{folder}", ref="v9", commit=commit)
    tree = fetched_alike(two, source, **ALLOW)
    assert (tree / "third_party/part/part.txt").read_text() == "one\n"


def test_an_archive_gives_the_same_tree(two: Two) -> None:
    (two.project / "a b.tar.gz").write_bytes(GOOD)
    fetched_alike(two, SourceChoice("archive", path="a b.tar.gz", sha256=HASH))


def test_a_folder_gives_the_same_tree(two: Two) -> None:
    folder = two.project / "src/my torch"
    (folder / "empty").mkdir(parents=True)
    (folder / "run").write_text("#!/bin/sh\n")
    (folder / "run").chmod(0o755)
    (folder / "link").symlink_to("run")
    fetched_alike(two, SourceChoice("folder", path="src/my torch"))


def test_an_sdist_gives_the_same_tree(two: Two, index: Index) -> None:
    index.offer(GOOD)
    source = SourceChoice("sdist", package="torch_tiny", ref="1.2", sha256=HASH)
    fetched_alike(two, source)
    # Indexes write the addresses of files in three ways.
    page = index.content["/simple/torch-tiny/"]
    host = index.url.removesuffix("/simple")
    for prefix in ("/files", f"{host}/files"):
        index.content["/simple/torch-tiny/"] = page.replace(b"../../files", prefix.encode())
        for work in (two.ours, two.shells):
            shutil.rmtree(work / "downloads")
        fetched_alike(two, source, PIP_INDEX_URL=f"{index.url}/")


@pytest.mark.parametrize("files", [(), ("src/hello.c", "lib/xalloc.h")], ids=["all", "some"])
def test_a_source_package_gives_the_same_tree(two: Two, files: tuple[str, ...]) -> None:
    source = SourceChoice("debian", suite="bookworm", package="hello", ref="2.10", files=files)
    tree = fetched_alike(two, source, "2.10", DEBIAN_MIRROR=debian_mirror())
    assert (tree / "src/hello.c").is_file()
    assert (tree / "configure").is_file() == (not files)


# -------------------------------------------------------------------------------- verify


def proof(two: Two, version: str) -> tuple[Ended, Ended]:
    expects = Expects(
        package="tiny-lib",
        version=version,
        python=PYTHON,
        wheel="dist/lab/tiny_lib-*.whl",
        environment="env/lab",
        layered=True,
        folder="verify/lab/tiny-lib",
        check="import tiny_lib",
    )
    return two.run("verify", expects)


def test_a_wheel_is_proven_by_both_and_another_version_by_neither(
    two: Two, published_torch: Path, tmp_path: Path
) -> None:
    two.give(wheel(tmp_path, "tiny-lib", "1.0+cpu"), "dist/lab")
    for work in (two.ours, two.shells):
        (work / "env").mkdir()
        (work / "env/lab").symlink_to(published_torch)
    ended(*proof(two, "1.0"))
    for run in proof(two, "1.1"):
        assert run.returncode != 0, run.stdout


def test_a_static_library_is_proven_by_both_and_one_without_a_function_by_neither(
    two: Two, tmp_path: Path
) -> None:
    (tmp_path / "a.c").write_text("int magma_init(void) { return 0; }\n")
    subprocess.run(["gcc", "-c", "a.c", "-o", "a.o"], cwd=tmp_path, check=True)
    subprocess.run(["ar", "rcs", "libmagma.a", "a.o"], cwd=tmp_path, check=True)
    two.give(tmp_path / "libmagma.a", "lib")
    given = Expects(
        package="magma", wheel="lib/libmagma.a", folder="verify/magma", symbols=("magma_init",)
    )
    two.done("verify", given)
    for run in two.run("verify", replace(given, symbols=("magma_gone",))):
        assert run.returncode != 0, run.stdout


@pytest.mark.parametrize(
    ("linking", "decided", "needed", "told"),
    [
        (("nccl", "system"), "nccl", ["nccl"], ""),
        (("nccl", "system"), "nccl", ["cudart"], "nccl is linked statically, not dynamically"),
        # Nobody decided: either is right.
        (("nccl", "system"), "", ["cudart"], ""),
        (("cuda runtime", "dynamic"), "static_cuda", ["cudart"], ""),
        (("cuda runtime", "dynamic"), "static_cuda", [], "cuda runtime is linked statically"),
        (("nccl", "static"), "nccl", [], ""),
        (("nccl", "static"), "nccl", ["nccl"], "nccl is linked dynamically, not statically"),
    ],
)
def test_a_shell_sees_which_libraries_a_torch_links_dynamically(
    linking: tuple[str, Linking], decided: str, needed: list[str], told: str, tmp_path: Path
) -> None:
    flags = [f"-Wl,-rpath,/x,-L{tmp_path}"]
    for name in needed:
        library = tmp_path / f"lib{name}.so"
        compile_library(library, "int f(void) { return 1; }", f"-Wl,-soname,lib{name}.so.2")
        flags.append(f"-l{name}")
    torch = tmp_path / f"lib/python{PYTHON}/site-packages/torch/lib/libtorch_cuda.so"
    compile_library(torch, "int g(void) { return 2; }", *flags)
    expects = Expects(folder="verify/lab", linking=(linking,), decided=(decided,))
    commands = twin(Step("one", "verify", "One", task=Task("verify", expects)), None).commands
    after = next(n for n, line in enumerate(commands) if line.startswith("bin/python -c"))
    done = subprocess.run(
        ["sh", "-euc", "\n".join(commands[after + 1 :])],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) == (not told), done.stderr
    assert told in done.stderr


# ------------------------------------------------------------------------------ packages


def test_a_wheel_is_finished_alike(two: Two, tmp_path: Path) -> None:
    outer, tree = tmp_path / "system/libword.so.2", tmp_path / "tree"
    compile_library(outer, "int word(void) { return 42; }", "-Wl,-soname,libword.so.2")
    inner = tree / "demo/lib/libinner.so"
    compile_library(inner, "int inner(void) { return 1; }", "-Wl,-soname,libinner.so")
    compile_library(
        tree / "demo/_ext.so",
        "int word(void); int inner(void); int answer(void) { return word() * inner(); }",
        f"-Wl,-rpath,{outer.parent}:$ORIGIN/lib",
        *(str(outer), str(inner)),
    )
    two.give(pack(tree, tmp_path / "dist", "demo", "1.0"), "dist/lab")
    output = "dist/lab/finished/demo-*.whl"
    two.done("finish", Finishing("dist/lab/demo-*.whl", output, libraries="vendor"))
    (ours,), (shells,) = (list(work.glob(output)) for work in (two.ours, two.shells))
    assert ours.name == shells.name

    def libraries(path: Path) -> list[str]:
        # The name of a library that was brought along holds a hash of its own making.
        with zipfile.ZipFile(path) as archive:
            found = [name for name in archive.namelist() if ".so" in name]
        return sorted(re.sub(r"-[0-9a-f]{8}\.", ".", name) for name in found)

    assert libraries(ours) == libraries(shells)
    assert "demo.libs/libword.so.2" in libraries(ours)


def test_libtorch_holds_the_same_files(
    two: Two, planned: Planner, repaired: Path, tmp_path: Path
) -> None:
    plan = planned('name = "lab"\ntorch = "2.6.0"\npython = "3.11"\ncuda = "none"\n')[0]
    two.give(repaired, "dist/lab")
    for work in (two.ours, two.shells):
        subprocess.run(
            [sys.executable, "-m", "venv", "--without-pip", work / "build/lab/env"], check=True
        )
    archive = f"dist/lab/libtorch-2.6.0-linux-{MACHINE}.zip"
    two.done("libtorch", Libtorch("dist/lab/torch-*.whl", archive), plan)
    for work in (two.ours, two.shells):
        with zipfile.ZipFile(work / archive) as opened:
            opened.extractall(work / "out")
    ours, shells = (files_below(work / "out/libtorch") for work in (two.ours, two.shells))
    # What torchsmith says of its own changes, only torchsmith can.
    del ours["README.txt"]
    assert set(ours) == set(shells)
    assert ours["build-hash"] == shells["build-hash"]
    for name in ("tool", "libtorch.so"):
        library = next((two.shells / "out/libtorch").rglob(name))
        library.chmod(0o755)
        said = subprocess.run(["ldd", library], capture_output=True, text=True, check=True).stdout
        assert "not found" not in said, said


@pytest.fixture
def rattler(tmp_path: Path, this_host: object) -> dict[str, str]:
    """rattler-build and rattler-index: the same code as a library, with a channel of ours."""
    channel = make_channel(tmp_path, conda_subdir(f"linux-{MACHINE}"))
    programs = tmp_path / "programs"
    programs.mkdir()
    build = f"""\
import argparse
from pathlib import Path
from rattler_build import Stage0Recipe, VariantConfig
asked = argparse.ArgumentParser()
asked.add_argument("build", choices=["build"])
for name in ("--recipe", "--output-dir", "--package-format"):
    asked.add_argument(name, required=True)
asked.add_argument("--no-build-id", action="store_true")
asked = asked.parse_args()
Stage0Recipe.from_file(Path(asked.recipe)).run_build(
    VariantConfig(),
    output_dir=asked.output_dir,
    channels=[{channel.as_uri()!r}],
    no_build_id=asked.no_build_id,
    package_format=asked.package_format.replace("tar-bz2", "tar.bz2"),
)
"""
    listing = """\
import asyncio, sys
from pathlib import Path
from rattler.index import index_fs
assert sys.argv[1] == "fs"
asyncio.run(index_fs(Path(sys.argv[2])))
"""
    for name, text in (("rattler-build", build), ("rattler-index", listing)):
        # Their threads may outlive Python's own end, and abort it.
        ending = "import os, sys\nsys.stdout.flush()\nos._exit(0)\n"
        (programs / name).write_text(f"#!{sys.executable}\n{text}{ending}")
        (programs / name).chmod(0o755)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "RATTLER_CACHE_DIR": str(tmp_path / "cache")}


# As torch 2.6.0 has them.
TORCH_NEEDS = (
    *("filelock", "fsspec", "jinja2", "networkx", "sympy==1.13.1"),
    "typing-extensions>=4.10.0",
)
# What pip notes down and compiles, and what torchsmith finds in the libraries.
OF_PIP = re.compile(r"info/|.*(/REQUESTED|/direct_url\.json|\.pyc)$").match
OF_US = re.compile(r"__|python_abi$").match
CONDA = """
name = "lab"
torch = "2.6.0"
python = "3.11"
cuda = "none"
companions = { vision = "match" }
packages = { conda = true, conda_format = "both" }
"""


def needed(about: dict[str, object]) -> list[str]:
    depends = about["depends"]
    assert isinstance(depends, list)
    return [item.split()[0] for item in depends]


def test_conda_packages_hold_the_same_files_and_ask_for_the_same(
    two: Two, planned: Planner, rattler: dict[str, str], tmp_path: Path
) -> None:
    plan = planned(CONDA)[0]
    (resolution,) = plan.variants
    libraries = ("torch/_C.cpython-311.so", "torch/lib/libtorch.so")
    version = resolution.version
    torch = make_wheel(tmp_path, "torch", version, tmp_path, *libraries, requires=TORCH_NEEDS)
    two.give(torch, "dist/lab")
    vision = make_wheel(tmp_path, "torchvision", "0.21.0+cpu", tmp_path, "torchvision/_C.so")
    two.give(vision, "dist/lab")
    steps = [step for step in plan.steps if step.task and step.task.name == "conda"]
    assert len(steps) == 2
    for step in steps:
        ended(*two.run_step(step, plan, **rattler))
        for pattern in step.outputs:
            told = []
            for work in (two.ours, two.shells):
                (package,) = work.glob(pattern)
                out, about = unpacked(package, work / "out" / package.name)
                told.append(
                    {
                        "package": package.name,
                        "version": about["version"],
                        "build": about["build"],
                        "files": sorted(name for name in files_below(out) if not OF_PIP(name)),
                        "depends": sorted(name for name in needed(about) if not OF_US(name)),
                    }
                )
            assert told[0] == told[1]


# --------------------------------------------------------------------------------- ship


def test_an_index_has_the_same_pages_and_files(two: Two, tmp_path: Path) -> None:
    for name, version in (("tiny-lib", "1.0+cpu"), ("tiny-lib", "1.1"), ("Other.Lib", "2.0")):
        two.give(wheel(tmp_path, name, version), "dist/lab")
    step = Step("one", "publish", "One", task=Task("ship", Shipment(("dist/lab/*.whl",), "idx")))
    told = []
    for run, work in ((run_step, two.ours), (run_twin_alone, two.shells)):
        project = work / "project"
        project.mkdir()
        ended(run(step, work, PROJECT=str(project)))
        pages = {
            page.parent.name: sorted(re.findall(r'href="([^"]+)"', page.read_text()))
            for page in (project / "idx/simple").rglob("index.html")
        }
        names = [path.name for path in (project / "idx").rglob("*.whl")]
        told.append((pages, sorted(names)))
    assert told[0] == told[1]
    assert set(told[0][0]) == {"simple", "tiny-lib", "other-lib"}


def run_twin_alone(step: Step, work: Path, **env: str) -> Ended:
    return run_twin(NOTHING, step, work, **env)


def test_a_channel_lists_the_same_packages(
    two: Two, rattler: dict[str, str], tmp_path: Path
) -> None:
    two.give(conda(tmp_path, "tiny", "1.0"), "channel/lab/noarch")
    two.give(conda(tmp_path, "tiny", "1.1", form=".tar.bz2"), "channel/lab/noarch")
    files = ("channel/lab/*/*.conda", "channel/lab/*/*.tar.bz2")
    step = Step("one", "publish", "One", task=Task("ship", Shipment(files, channel="ch")))
    told = []
    for run, work in ((run_step, two.ours), (run_twin_alone, two.shells)):
        ended(run(step, work, PROJECT=str(work), **rattler))
        listed = json.loads((work / "ch/noarch/repodata.json").read_bytes())
        told.append(
            {
                name: (entry["sha256"], entry["depends"])
                for group in ("packages", "packages.conda")
                for name, entry in listed[group].items()
            }
        )
    assert told[0] == told[1]
    assert set(told[0]) == {"tiny-1.0-0.conda", "tiny-1.1-0.tar.bz2"}


def test_the_hash_of_an_artifact_is_that_of_its_provenance(two: Two, tmp_path: Path) -> None:
    two.give(wheel(tmp_path, "tiny-lib", "1.0"), "dist/lab")
    subject = Subject("dist/lab/tiny_lib-*.whl", "tiny-lib", "compile")
    two.done("attest", Attest({}, "lab", {}, (subject,), (), ()))
    (envelope,) = two.ours.glob("dist/lab/*.intoto.jsonl")
    payload = base64.b64decode(json.loads(envelope.read_bytes())["payload"])
    (told,) = json.loads(payload)["subject"]
    (kept,) = two.shells.glob("dist/lab/*.whl.sha256")
    assert kept.read_text().split()[0] == told["digest"]["sha256"]
    assert kept.name == f"{told['name']}.sha256"


# -------------------------------------------------------------------------------- images


def held(podman: EngineHere, image: str, folder: Path) -> list[str]:
    """The files of an image that is never run."""
    made = podman("create", image, "nothing").strip()
    podman("export", "--output", folder / "image.tar", made)
    podman("rm", made)
    with tarfile.open(folder / "image.tar") as tar:
        return sorted(name for name in tar.getnames() if name.endswith((".whl", ".txt")))


def test_images_hold_the_same_and_are_pushed_under_the_same_names(
    two: Two, second_podman: EngineHere, registry: RegistryHere, tmp_path: Path
) -> None:
    podman = second_podman
    (two.project / "notes").mkdir()
    (two.project / "notes/a.txt").write_text("a\n")
    (tmp_path / "Dockerfile").write_text(
        "FROM scratch AS last\nCOPY wheels/*.whl /w/\nCOPY notes /\n"
    )
    two.give(tmp_path / "Dockerfile", "image/lab")
    two.give(wheel(tmp_path, "tiny-lib", "1.0+cpu"), "dist/lab")
    task = ImageTask(
        "lab:v1", "image/lab", "image/lab/made", "last", wheels="dist/lab/*.whl", reads=("notes",)
    )
    step = Step("one", "image", "One", task=Task("image", task))
    (tmp_path / "registries.conf").write_text(
        f'[[registry]]\nlocation = "{registry.address}"\ninsecure = true\n'
    )
    env = {
        **podman.env,
        "ENGINE": "podman",
        "PROJECT": str(two.project),
        "CONTAINERS_REGISTRIES_CONF": str(tmp_path / "registries.conf"),
    }
    told = []
    for name, run, work in (
        ("ours", run_step, two.ours),
        ("shells", run_twin_alone, two.shells),
    ):
        ended(run(step, work, **env))
        files = held(podman, "lab:v1", work)
        given = Delivery(("lab:v1",), f"{registry.address}/{name}", "image/lab/pushed")
        ended(run(Step("two", "publish", "Two", task=Task("push", given)), work, **env))
        assert registry.digest(f"{name}/lab", "v1")
        told.append(files)
        podman("rmi", "--all", "--force")
    assert told[0] == told[1] == ["a.txt", "w/tiny_lib-1.0+cpu-py3-none-any.whl"]
