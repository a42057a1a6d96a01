"""The verify step of a plan, run by the engine on the published torch."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from email.parser import HeaderParser
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from tests.conftest import PUBLISHED_TORCH

from torchsmith.engine import events
from torchsmith.engine.journal import Journal
from torchsmith.engine.runner import RunResult, run_plan
from torchsmith.engine.store import Store
from torchsmith.errors import ProofFailed
from torchsmith.facts.models import Mode
from torchsmith.plan.build import with_keys
from torchsmith.plan.models import Plan, Step, Task
from torchsmith.plan.torch import verify_step
from torchsmith.recipe.models import Recipe
from torchsmith.verify.report import Report, from_json

pytestmark = pytest.mark.integration

Planned = tuple[Plan, Recipe]
RECIPE = f"""
name = "published"
torch = "{PUBLISHED_TORCH.partition("+")[0]}"
python = "{sys.version_info.major}.{sys.version_info.minor}"
cuda = "none"
"""


class Bench:
    """A store and a work folder in which the step is run on the published wheel."""

    def __init__(self, place: Path, wheel: Path, environment: Path, plan: Plan) -> None:
        self.place = place
        self.wheel = wheel
        self.environment = environment
        self.resolution = plan.variants[0]
        self.told: list[events.Event] = []
        # Which label and which CUDA the publisher gave it differs by platform. Some were given
        # a name that promises more than they keep; as they were built they are called by WHEEL.
        with zipfile.ZipFile(wheel) as archive:
            text = archive.read("torch/version.py").decode()
            (about,) = [name for name in archive.namelist() if name.endswith(".dist-info/WHEEL")]
            built = HeaderParser().parsestr(archive.read(about).decode())
        self.name = "-".join([*wheel.name.split("-")[:2], f"{built['Tag']}.whl"])
        said: dict[str, object] = {}
        exec(text, said)
        self.version = str(said["__version__"])
        self.cuda = str(said["cuda"] or "")

    def plan(
        self, decided: Sequence[tuple[str, Mode]], version: str = "", *, fresh: bool = False
    ) -> Plan:
        """A wheel that appears instead of being compiled, and the real verify step.

        Not `fresh`, the environment lies on the one in which this very torch is installed.
        """
        environment = Step(
            id="environment",
            kind="environment",
            title="Environment",
            commands=(f"'{sys.executable}' -m venv env/published",),
            outputs=("env/published",),
        )
        compiled = Step(
            id="compile",
            kind="compile",
            title="Compile",
            commands=("mkdir -p dist/published", f"cp '{self.wheel}' dist/published/{self.name}"),
            outputs=(f"dist/published/{self.name}",),
        )
        verify = verify_step(self.resolution, compiled, environment)
        assert verify.expects is not None
        expects = replace(
            verify.expects,
            version=version or self.version,
            cuda=self.cuda,
            features=tuple(decided),
            decided=tuple(name for name, _ in decided),
        )
        if not fresh:
            expects = replace(expects, environment=str(self.environment), layered=True)
        steps = (environment, compiled, replace(verify, task=Task("verify", expects)))
        return with_keys(Plan("published", (self.resolution,), steps), {})

    def run(self, plan: Plan) -> RunResult:
        journal = Journal(self.place / "store/journal.db")
        self.told.clear()
        try:
            return run_plan(
                plan,
                Store(self.place / "store"),
                journal,
                work=self.place / "work",
                on_event=self.told.append,
            )
        finally:
            journal.close()

    @property
    def document(self) -> Path:
        return self.place / "work/dist/published" / f"{self.name}.verify.json"

    @property
    def report(self) -> Report:
        return from_json(self.document.read_bytes())


@pytest.fixture(scope="module")
def bench(
    tmp_path_factory: pytest.TempPathFactory,
    published_wheel: Path,
    published_torch: Path,
    planned: Callable[[str | Path], Planned],
) -> Bench:
    place = tmp_path_factory.mktemp("bench")
    return Bench(place, published_wheel, published_torch, planned(RECIPE)[0])


def test_a_wheel_that_is_what_was_asked_for_is_proven_and_its_report_kept(bench: Bench) -> None:
    plan = bench.plan([("openmp", "on"), ("distributed", "on"), ("rocm", "off")], fresh=True)
    result = bench.run(plan)
    assert result.steps[plan.steps[-1].id] == "done"
    # The wheel is the result; its reports lie beside it.
    assert [path.name for path in result.artifacts["compile"]] == [bench.name]
    assert list(result.artifacts) == ["compile"]
    report = bench.report
    assert report.failed == ()
    assert report.torch == bench.version
    assert list(report.wheels) == [bench.name]
    proven = {check.name: check.status for check in report.checks}
    for name in (
        *("record", "tag", "tag asked for", "extension names", "extension name", "version"),
        *("search paths", "needed libraries", "paths in its build settings"),
        *("feature openmp", "feature distributed", "feature rocm", "cuda", "python"),
        *("tensors", "autograd", "training", "serialization", "data loader", "matmul", "svd"),
    ):
        assert proven[name] in ("pass", "warn"), name
    text = bench.document.with_suffix(".txt").read_text(encoding="utf-8")
    assert re.search(r"^ok +data loader", text, re.MULTILINE)
    # True of the wheel wherever it lies: no path of this machine is in it.
    assert str(bench.place) not in text + bench.document.read_text(encoding="utf-8")
    # The environment it was tried in is gone.
    assert not (bench.place / "work/verify/published").exists() or not list(
        (bench.place / "work/verify/published").iterdir()
    )

    # Kept in the store as well: a report that was lost comes back without proving again.
    bench.document.unlink()
    again = bench.run(plan)
    assert set(again.steps.values()) == {"cached"}
    assert bench.report == report


def test_a_feature_the_wheel_lacks_fails_the_step_with_code_9(bench: Bench) -> None:
    plan = bench.plan([("openmp", "on"), ("ucc", "on")])
    with pytest.raises(ProofFailed) as caught:
        bench.run(plan)
    failure = caught.value
    assert failure.exit_code == 9
    assert failure.excerpt == ("asked for, feature ucc: not there, wanted: on",)
    assert [check.name for check in bench.report.failed] == ["feature ucc"]
    assert str(bench.document) in failure.hint
    told = [event for event in bench.told if isinstance(event, events.StepFailed)]
    assert [event.excerpt for event in told] == [failure.excerpt]
    # Nothing that was not proven is kept.
    store = Store(bench.place / "store")
    assert store.get(plan.steps[-1].key, bench.place / "work", "") is None


def test_the_program_alone_ends_with_9_too(bench: Bench) -> None:
    plan = bench.plan([], version="2.0.0+other")
    bench.run(replace(plan, steps=plan.steps[:2]))
    done = subprocess.run(
        [sys.executable, "-m", "torchsmith.verify.verify"],
        input=msgspec.json.encode(plan.steps[-1].expects),
        cwd=bench.place / "work",
        capture_output=True,
        check=False,
    )
    assert done.returncode == 9, done.stderr
    assert json.loads(bench.document.read_bytes())["rating"] == "fail"
    assert [check.name for check in bench.report.failed] == ["version"]
