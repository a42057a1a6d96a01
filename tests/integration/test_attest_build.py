"""A real build ends with a bill of materials and provenance that others can check."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from msgspec.structs import replace

from torchsmith.engine.journal import Journal
from torchsmith.engine.runner import RunResult, run_plan
from torchsmith.engine.store import Store
from torchsmith.plan.build import with_keys
from torchsmith.plan.models import Plan, Step
from torchsmith.recipe.models import Recipe
from torchsmith.verify.wheelfile import read_wheel

pytestmark = pytest.mark.integration

Planned = tuple[Plan, Recipe]
RECIPE = """
name = "lab"
torch = {{ release = "2.6.0", use = "wheel" }}
python = "host"
cuda = "none"

[[companions.extension]]
name = "tiny"
git = {{ url = "file://{repository}", ref = "main" }}
"""
SETUP = """
from setuptools import Extension, setup
setup(name="tiny", version="1.0", install_requires=["torch==2.6.0"],
      ext_modules=[Extension("tiny", ["tiny.c"], libraries=["z", "m"])])
"""
CODE = """
#include <Python.h>
unsigned long crc32(unsigned long, const unsigned char *, unsigned);
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "tiny", NULL, -1, NULL};
PyMODINIT_FUNC PyInit_tiny(void) { crc32(0, 0, 0); return PyModule_Create(&module); }
"""


def git(folder: Path, *words: str) -> str:
    settings = [
        "user.name=Nobody",
        "user.email=nobody@example.invalid",
        "protocol.file.allow=always",
    ]
    options = [word for setting in settings for word in ("-c", setting)]
    command = ["git", "-C", str(folder), *options, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def repository(folder: Path, files: dict[str, str]) -> str:
    """A repository with one commit of these files."""
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message=all")
    return git(folder, "rev-parse", "HEAD")


class Bench:
    """A store, a work folder, and the plan of an extension with the torch left out."""

    def __init__(self, place: Path, plan: Plan) -> None:
        self.place = place
        (environment,) = [step for step in plan.steps if step.kind == "environment"]
        left = [step.id for step in plan.steps if step.kind == "verify"]
        steps = [_small(step) if step is environment else step for step in plan.steps]
        self.plan = with_keys(
            replace(
                plan,
                steps=tuple(
                    replace(step, needs=tuple(need for need in step.needs if need not in left))
                    for step in steps
                    if step.id not in left
                ),
            ),
            {},
        )

    def run(self, only: tuple[str, ...] | None = None) -> RunResult:
        journal = Journal(self.place / "store/journal.db")
        try:
            store = Store(self.place / "store")
            return run_plan(self.plan, store, journal, work=self.place / "work", only=only)
        finally:
            journal.close()

    def torchsmith(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "torchsmith", *words],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "COLUMNS": "120"},
        )


def _small(environment: Step) -> Step:
    """What an extension needs that is not built against torch after all."""
    (folder,) = environment.outputs
    return replace(
        environment,
        commands=(
            f"'{sys.executable}' -m venv {folder}",
            f"{folder}/bin/python -m pip install --quiet setuptools wheel",
        ),
    )


@pytest.fixture(scope="module")
def commits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """The extension's repository, its commit and that of the library in it."""
    place = tmp_path_factory.mktemp("sources")
    library = repository(place / "miniature", {"miniature.h": "#define ONE 1\n"})
    repository(place / "tiny", {"setup.py": SETUP, "tiny.c": CODE})
    git(place / "tiny", "submodule", "--quiet", "add", f"file://{place}/miniature", "third_party/m")
    git(place / "tiny", "commit", "--quiet", "--message=with a library")
    return place / "tiny", git(place / "tiny", "rev-parse", "HEAD"), library


@pytest.fixture(scope="module")
def bench(
    tmp_path_factory: pytest.TempPathFactory,
    commits: tuple[Path, str, str],
    planned: Callable[[str | Path], Planned],
) -> Bench:
    plan, _ = planned(RECIPE.format(repository=commits[0]))
    return Bench(tmp_path_factory.mktemp("bench"), plan)


@pytest.fixture(scope="module")
def built(bench: Bench) -> Path:
    """The wheel, built once."""
    result = bench.run()
    assert set(result.steps.values()) == {"done"}
    # The documents lie beside the wheel, and are no results by themselves.
    (wheel,) = [path for paths in result.artifacts.values() for path in paths]
    assert wheel.name.startswith("tiny-1.0-cp3")
    return wheel


@pytest.fixture
def copied(built: Path, tmp_path: Path) -> Path:
    """The wheel and what lies beside it, to be tampered with."""
    for path in built.parent.iterdir():
        shutil.copy2(path, tmp_path)
    return tmp_path / built.name


def beside(wheel: Path, end: str) -> Path:
    return wheel.with_name(wheel.name + end)


def statement(wheel: Path) -> dict[str, Any]:
    (line,) = beside(wheel, ".intoto.jsonl").read_text(encoding="utf-8").splitlines()
    read: dict[str, Any] = json.loads(base64.b64decode(json.loads(line)["payload"]))
    return read


def test_the_bill_is_valid_and_names_what_only_the_run_could_know(
    built: Path, commits: tuple[Path, str, str]
) -> None:
    text = beside(built, ".cdx.json").read_text(encoding="utf-8")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    found = {item["bom-ref"]: item for item in json.loads(text)["components"]}
    # A branch was asked for; the commit it was at is what was built.
    source = found["source:sources/extension/tiny"]
    assert source["pedigree"]["commits"][0]["uid"] == commits[1]
    part = found["part:sources/extension/tiny/third_party/m"]
    assert part["version"] == commits[2]
    libraries = [
        value["value"]
        for item in found.values()
        for value in item.get("properties", ())
        if value["name"] == "torchsmith:library"
    ]
    if shutil.which("dpkg-query"):
        assert "libz.so.1" in libraries
        assert any(name.startswith("system:zlib1g:") for name in found)
    assert "requirement:torch==2.6.0" in found
    assert any(name.startswith("tool:setuptools@") for name in found)
    assert found["compiler"]["name"] in ("gcc", "clang")


def test_the_wheel_holds_a_bill_of_what_it_was_made_of(built: Path) -> None:
    with zipfile.ZipFile(built) as archive:
        # https://peps.python.org/pep-0770/
        text = archive.read("tiny-1.0.dist-info/sboms/torchsmith.cdx.json").decode()
        record = archive.read("tiny-1.0.dist-info/RECORD").decode()
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    assert "tiny-1.0.dist-info/sboms/torchsmith.cdx.json,sha256=" in record
    assert {check.status for check in read_wheel(built).checks} == {"pass"}
    told = json.loads(text)
    assert told["metadata"]["component"]["purl"] == "pkg:pypi/tiny@1.0"
    found = {item["bom-ref"]: item for item in told["components"]}
    assert found["source:tiny"]["version"] == "main"
    assert found["part:tiny/third_party/m"]["name"] == "m"
    assert found["tool:torch@2.6.0"]
    assert any(name.startswith("tool:setuptools@") for name in found)
    # What another machine that builds the same need not have.
    assert not any(name.startswith(("system:", "library:")) for name in found)


def test_a_wheel_is_the_same_whichever_steps_were_asked_for(
    bench: Bench, built: Path, tmp_path: Path
) -> None:
    alone = Bench.__new__(Bench)
    alone.place, alone.plan = tmp_path, bench.plan
    (compile_step,) = [step.id for step in bench.plan.steps if step.kind == "compile"]
    alone.run(only=(compile_step,))
    (wheel,) = (tmp_path / "work/dist").rglob("tiny-*.whl")
    assert wheel.read_bytes() == built.read_bytes()


def test_the_provenance_tells_how_and_when(built: Path, bench: Bench) -> None:
    made = statement(built)
    assert made["predicateType"] == "https://slsa.dev/provenance/v1"
    definition = made["predicate"]["buildDefinition"]
    assert definition["externalParameters"]["recipe"]["name"] == "lab"
    compiled = next(step for step in bench.plan.steps if step.kind == "compile")
    assert definition["internalParameters"]["key"] == compiled.key
    run = made["predicate"]["runDetails"]["metadata"]
    assert run["startedOn"] <= run["finishedOn"]
    assert (bench.place / "store/logs" / run["invocationId"]).is_dir()
    # True of the wheel wherever it lies.
    work = str(bench.place / "work")
    assert work not in json.dumps(made) + beside(built, ".cdx.json").read_text(encoding="utf-8")


def test_a_second_build_does_nothing_and_brings_back_what_was_lost(
    built: Path, bench: Bench
) -> None:
    before = beside(built, ".intoto.jsonl").read_bytes()
    beside(built, ".intoto.jsonl").unlink()
    again = bench.run()
    assert set(again.steps.values()) == {"cached"}
    assert beside(built, ".intoto.jsonl").read_bytes() == before


def test_inspect_and_verify_believe_it(built: Path, bench: Bench) -> None:
    shown = bench.torchsmith("inspect", str(built))
    assert shown.returncode == 0, shown.stderr
    assert "signed by this machine's key" in shown.stdout
    assert "libz.so.1" in shown.stdout
    told = json.loads(bench.torchsmith("inspect", "--json", str(built)).stdout)["artifact"]
    assert told["name"] == "tiny"
    assert told["signature"]["state"] == "trusted"
    assert told["made"]["sources"][0]["digest"]["gitCommit"]
    assert told["libraries"]["manylinux"].startswith("manylinux_2_")
    proven = bench.torchsmith("verify", "--signature", str(built))
    assert proven.returncode == 0, proven.stderr


def refused(bench: Bench, wheel: Path, words: str) -> None:
    said = bench.torchsmith("verify", "--signature", str(wheel))
    assert (said.returncode, said.stdout) == (9, "")
    assert words in " ".join(said.stderr.split())
    assert "Traceback" not in said.stderr


def test_a_byte_changed_in_the_wheel_is_seen(copied: Path, bench: Bench) -> None:
    content = bytearray(copied.read_bytes())
    content[100] ^= 1
    copied.write_bytes(content)
    refused(bench, copied, "is not the file that was signed")


def test_a_byte_changed_in_the_payload_is_seen(copied: Path, bench: Bench) -> None:
    envelope = beside(copied, ".intoto.jsonl")
    outer = json.loads(envelope.read_bytes())
    payload = base64.b64decode(outer["payload"]).replace(b'"lab"', b'"lib"', 1)
    outer["payload"] = base64.b64encode(payload).decode()
    envelope.write_text(json.dumps(outer), encoding="utf-8")
    refused(bench, copied, "changed after it was signed")


def test_a_byte_changed_in_the_signature_is_seen(copied: Path, bench: Bench) -> None:
    envelope = beside(copied, ".intoto.jsonl")
    outer = json.loads(envelope.read_bytes())
    raw = bytearray(base64.b64decode(outer["signatures"][0]["sig"]))
    raw[0] ^= 1
    outer["signatures"][0]["sig"] = base64.b64encode(raw).decode()
    envelope.write_text(json.dumps(outer), encoding="utf-8")
    refused(bench, copied, "changed after it was signed")


def test_an_envelope_put_beside_another_file_is_seen(copied: Path, bench: Bench) -> None:
    other = copied.with_name("other-1.0-py3-none-any.whl")
    other.write_bytes(copied.read_bytes() + b"x")
    shutil.copy(beside(copied, ".intoto.jsonl"), beside(other, ".intoto.jsonl"))
    refused(bench, other, f"is about another file: {copied.name}")


def test_a_private_key_that_all_can_read_ends_the_build(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, built: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert bench.torchsmith("key", "export").returncode == 0
    (tmp_path / "torchsmith/keys/signing.pem").chmod(0o644)
    step = next(step for step in bench.plan.steps if step.id == "attest-lab")
    assert step.task is not None
    said = subprocess.run(
        [sys.executable, "-m", step.task.module],
        input=step.task.text,
        cwd=bench.place / "work",
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == 4
    assert "others can read the signing key" in said.stderr
