"""A lock names every file a plan takes from elsewhere, and a plan held to it takes no other."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.plans import run_step

from torchsmith.engine.door import Wanted, from_bundle, plan_recipe
from torchsmith.engine.lockfile import changed_bytes, lock_file, read_lock, what_was_taken
from torchsmith.engine.store import Store
from torchsmith.host.models import Host
from torchsmith.package.materials import taken_for
from torchsmith.plan.build import with_keys
from torchsmith.plan.lock import (
    Image,
    Lock,
    LockError,
    Package,
    Source,
    asked_of,
    base_images,
    is_lock,
    with_lock,
)
from torchsmith.plan.models import Fetch, Plan, Step, Task
from torchsmith.plan.render.stages import uv_commands
from torchsmith.plan.shell import pip_install
from torchsmith.recipe.load import load_recipe, parse_recipe
from torchsmith.resolve.models import SourceChoice
from torchsmith.sources.bundle import write_bundle
from torchsmith.sources.tree import tree_hash

pytestmark = pytest.mark.unit


def wheel(folder: Path, content: str = "") -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "tiny-1.0-py3-none-any.whl"
    about = "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n"
    files = {
        "tiny.py": content,
        "tiny-1.0.dist-info/METADATA": about,
        "tiny-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nTag: py3-none-any\n"
        "Root-Is-Purelib: true\n",
        "tiny-1.0.dist-info/RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as file:
        for name, text in files.items():
            file.writestr(name, text)
    return path


def tree(folder: Path, text: str = "one\n") -> Path:
    folder.mkdir(parents=True)
    (folder / "setup.py").write_text(text, encoding="utf-8")
    return folder


def plan(source: SourceChoice | None = None, asked: str = "tiny") -> Plan:
    steps = [
        Step(
            "environment-x",
            "environment",
            "An environment",
            variant="x",
            commands=(
                "mkdir -p build/x/env",
                pip_install(sys.executable, "build/x/env", asked),
            ),
            outputs=("build/x/env",),
            pip=(asked,),
        )
    ]
    if source is not None:
        task = Task("fetch", Fetch(source, "sources/near"))
        fetch = Step(
            "fetch-near", "fetch", "", project="near", task=task, outputs=("sources/near",)
        )
        steps.append(fetch)
    return with_keys(Plan("x", (), tuple(steps)), {})


def locked(sha256: str, asked: str = "tiny") -> Lock:
    text = f"""
        format = 1
        [[install]]
        step = "environment-x"
        asked = ["{asked}"]
        [[install.packages]]
        name = "tiny"
        version = "1.0"
        sha256 = "{sha256}"
        url = "https://example.invalid/tiny-1.0-py3-none-any.whl"
    """
    return read(text)


def read(text: str) -> Lock:
    import tempfile

    with tempfile.NamedTemporaryFile("w", suffix=".lock") as file:
        file.write(text)
        file.flush()
        return read_lock(Path(file.name))


def offline(folder: Path) -> dict[str, str]:
    return {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder), "PIP_CONFIG_FILE": os.devnull}


def installed(made: Plan, work: Path, wheels: Path) -> subprocess.CompletedProcess[str]:
    work.mkdir(exist_ok=True)
    for name, content in made.files.items():
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_bytes(content)
    # A folder in place of an environment, which takes long to make.
    settings = {**offline(wheels), "PIP_TARGET": str(work / "build/x/env/site")}
    return run_step(made.steps[0], work, **settings)


def test_what_pip_took_is_locked_and_other_bytes_are_refused(tmp_path: Path) -> None:
    first = wheel(tmp_path / "wheels")
    digest = hashlib.sha256(first.read_bytes()).hexdigest()
    assert installed(plan(), tmp_path / "work", tmp_path / "wheels").returncode == 0
    lock = what_was_taken(plan(), tmp_path / "work")
    assert lock.install[0].packages == (Package("tiny", "1.0", digest, first.as_uri()),)
    assert read(lock.toml()) == lock
    assert [item.sha256 for item in taken_for([str(tmp_path / "work/build/x/env")])] == [digest]

    held = with_lock(plan(), lock)
    assert held.steps[0].key != plan().steps[0].key
    assert installed(held, tmp_path / "again", tmp_path / "wheels").returncode == 0

    other = wheel(tmp_path / "others", "print('not what was locked')")
    done = installed(held, tmp_path / "third", tmp_path / "others")
    assert done.returncode != 0
    assert not (tmp_path / "third/build/x/env/site/tiny.py").exists()
    (tmp_path / "log").write_text(done.stdout + done.stderr, encoding="utf-8")
    said = changed_bytes(tmp_path / "log")
    found = hashlib.sha256(other.read_bytes()).hexdigest()
    assert "tiny" in said
    assert said.endswith(f"expected sha256 {digest}, found {found}")


def test_a_lock_for_other_requirements_is_refused() -> None:
    with pytest.raises(LockError, match="asks pip for tiny>=2, the lock was made for tiny"):
        with_lock(plan(asked="tiny>=2"), locked("0" * 64))
    with pytest.raises(LockError, match="does not name what pip installs"):
        with_lock(plan(), Lock())


@pytest.mark.parametrize(
    ("asked", "fits"),
    [
        *(("tiny==1.0", True), ("Tiny[x]==1.0", True), ("tiny==1.0.0", True), ("tiny==1.*", True)),
        *(("tiny==1.1", False), ("other==1.0", False), ("tiny==2.*", False)),
    ],
)
def test_a_lock_does_not_overrule_a_version_that_is_asked_for(asked: str, fits: bool) -> None:
    if fits:
        with_lock(plan(asked=asked), locked("0" * 64, asked))
        return
    with pytest.raises(LockError, match=f"asks pip for {asked}, the lock names another"):
        with_lock(plan(asked=asked), locked("0" * 64, asked))


def test_a_lock_does_not_overrule_a_commit_that_the_recipe_pins() -> None:
    pinned = SourceChoice("git", url="https://example.invalid/x", ref="v1", commit="a" * 40)
    made = plan(pinned)
    source = Source("fetch-near", asked_of(made.steps[1]), "0" * 64, commit="b" * 40)
    lock = replace(locked("0" * 64), source=(source,))
    with pytest.raises(LockError, match=f"pinned to the commit {'a' * 40}, the lock names b"):
        with_lock(made, lock)
    with_lock(made, replace(lock, source=(replace(source, commit="a" * 40),)))


def test_a_lock_that_cannot_be_read_is_never_a_reason_to_go_without(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('torch = "2.6.0"\npython = "3.11"\n', encoding="utf-8")
    lock = tmp_path / "torchsmith.lock"
    makers: dict[str, Callable[[], None]] = {
        "is not a file": lambda: os.mkfifo(lock),
        "does not exist": lambda: lock.symlink_to("nowhere"),
        "is a folder": lock.mkdir,
    }
    for reason, make in makers.items():
        make()
        with pytest.raises(LockError, match=reason):
            plan_recipe(load_recipe(recipe), Host(platform="linux-x86_64"), Store(tmp_path / "s"))
        lock.rmdir() if lock.is_dir() else lock.unlink()


@pytest.mark.parametrize(
    "text",
    [
        "format = 2",
        "format = ",
        'format = 1\n[[image]]\nname = "debian"\ndigest = "latest"',
        'format = 1\n[[source]]\nstep = "s"\nasked = ""\ntree = "../x"',
        'format = 1\n[[install]]\nstep = "s"\nasked = []\n[[install.packages]]\nname = "a --pre"\n'
        f'version = "1"\nsha256 = "{"0" * 64}"',
        'format = 1\n[[install]]\nstep = "s"\nasked = []\n[[install.packages]]\nname = "a"\n'
        'version = "1"\nsha256 = ""',
    ],
)
def test_whatever_is_wrong_with_a_lock_is_an_error(text: str) -> None:
    with pytest.raises(LockError):
        read(text)


def test_a_source_is_held_to_its_tree_and_commit(tmp_path: Path) -> None:
    repository = tree(tmp_path / "repository")
    git = ["git", "-C", str(repository), "-c", "user.name=N", "-c", "user.email=n@e.invalid"]
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True)
    made = plan(SourceChoice("git", url=repository.as_uri(), ref="main"))
    work = tmp_path / "work"
    work.mkdir()
    assert run_step(made.steps[1], work).returncode == 0
    lock = replace(what_was_taken(made, work), install=locked("0" * 64).install)
    assert read(lock.toml()) == lock

    # The branch goes on; what is locked stays.
    (repository / "setup.py").write_text("two\n", encoding="utf-8")
    subprocess.run([*git, "commit", "-qam", "two"], check=True)
    held = with_lock(made, lock)
    (tmp_path / "again").mkdir()
    done = run_step(held.steps[1], tmp_path / "again")
    assert done.returncode == 0, done.stderr
    brought = tmp_path / "again/sources/near/setup.py"
    assert brought.read_text(encoding="utf-8") == "one\n"

    strange = replace(lock, source=(replace(lock.source[0], tree="0" * 64),))
    (tmp_path / "third").mkdir()
    done = run_step(with_lock(made, strange).steps[1], tmp_path / "third")
    assert done.returncode != 0
    assert f"expected the tree {'0' * 64}, found {lock.source[0].tree}" in done.stderr
    assert not list((tmp_path / "third/sources/near").iterdir())

    moved = plan(SourceChoice("git", url=repository.as_uri(), ref="other"))
    with pytest.raises(LockError, match="another source"):
        with_lock(moved, lock)


def test_a_bundle_is_held_to_the_lock(tmp_path: Path) -> None:
    honest, forged = tree(tmp_path / "honest"), tree(tmp_path / "forged", "forged\n")
    for folder in (honest, forged):
        write_bundle({"near": folder}, {}, tmp_path / f"{folder.name}.bundle")
    made = plan(SourceChoice("sdist", package="near", ref="1.0", sha256="1" * 64))
    lock = locked("0" * 64)
    (tmp_path / "sources").mkdir()
    tree(tmp_path / "sources/near")
    lock = replace(lock, source=what_was_taken(made, tmp_path).source)
    held = with_lock(made, lock)
    taken = from_bundle(held, tmp_path / "honest.bundle")
    # Known by the lock, wherever it comes from.
    assert [step.key for step in taken.steps] == [step.key for step in held.steps]
    with pytest.raises(LockError) as caught:
        from_bundle(held, tmp_path / "forged.bundle")
    assert tree_hash(honest) in caught.value.message
    assert tree_hash(forged) in caught.value.message


def test_base_images_are_held_to_their_digests() -> None:
    text = "FROM debian:12 AS build\nRUN true\nFROM build AS next\nFROM debian:12-slim\n"
    made = replace(plan(), files={"image/x/Dockerfile": text.encode()})
    assert list(base_images(made.files)) == ["debian:12", "debian:12-slim"]
    digest = f"sha256:{'a' * 64}"
    lock = replace(locked("0" * 64), image=(Image("debian:12", digest),))
    with pytest.raises(LockError, match="does not name the base image debian:12-slim"):
        with_lock(made, lock)
    slim = Image("debian:12-slim", f"sha256:{'b' * 64}")
    lock = replace(lock, image=(*lock.image, slim))
    lines = with_lock(made, lock).files["image/x/Dockerfile"].decode().splitlines()
    assert lines[0] == f"FROM debian:12@{digest} AS build"
    assert lines[2:] == ["FROM build AS next", f"FROM debian:12-slim@{slim.digest}"]


def test_a_recipe_has_one_lock_beside_it() -> None:
    assert lock_file(Path("a/recipe.toml")) == Path("a/torchsmith.lock")
    assert lock_file(Path("a/cuda.toml")) == Path("a/cuda.lock")
    assert is_lock("lock/environment-x-1.txt")
    assert not is_lock("patches/lock")


@pytest.mark.parametrize("platform", ["linux-x86_64", "linux-aarch64"])
def test_uv_is_unpacked_only_once_its_hash_was_checked(platform: str) -> None:
    lines = uv_commands(platform)
    check = next(index for index, line in enumerate(lines) if "sha256sum --check" in line)
    unpack = next(index for index, line in enumerate(lines) if line.startswith("unzip"))
    assert check < unpack
    assert not [line for line in lines if "install.sh" in line or "/tmp/" in line]


def test_the_same_bytes_are_promised_only_with_a_lock(tmp_path: Path) -> None:
    text = 'torch = "2.6.0"\npython = "3.11"\ncuda = "none"\n'
    recipe = parse_recipe(text, str(tmp_path / "recipe.toml"), None)
    host, store = Host(platform="linux-x86_64", system="debian-12"), Store(tmp_path / "store")
    wanted = Wanted(elsewhere=True, reproducible=True)
    with pytest.raises(LockError, match=r"no torchsmith\.lock beside the recipe") as refused:
        plan_recipe(recipe, host, store, wanted)
    assert "`torchsmith lock`" in refused.value.hint
    assert plan_recipe(recipe, host, store, dataclasses.replace(wanted, lock=False)).steps
