"""A verify step is proven by torchsmith itself, and what it failed on is read off its report."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from torchsmith.checks import Check
from torchsmith.engine.execute import read_proof
from torchsmith.engine.schedule import final_steps
from torchsmith.engine.shell import step_script
from torchsmith.engine.work import WorkFolder
from torchsmith.errors import ProofFailed
from torchsmith.plan.attest import attestations
from torchsmith.plan.expects import Expects
from torchsmith.plan.models import Step, Task
from torchsmith.plan.render.twins import twin
from torchsmith.plan.torch import reports
from torchsmith.verify.report import Report, keep_beside
from torchsmith.verify.verify import without

pytestmark = pytest.mark.unit

WHEEL = "dist/v/tiny-1.0-*.whl"
VERIFY = Step(
    id="verify",
    kind="verify",
    title="Verify tiny",
    task=Task(
        "verify",
        Expects(
            package="tiny",
            wheel=WHEEL,
            environment="env/v",
            folder="verify/v/tiny",
            check="import tiny",
        ),
    ),
    outputs=reports(WHEEL),
)
GOOD = Check("behaviour", "tensors", "pass")
BAD = Check("asked for", "feature ucc", "fail", "not there", "on", cure="build it with ucc")
MUTE = Check("python", "import tiny", "fail", detail="Traceback\nImportError: no libx.so")


def kept(work: Path, *checks: Check) -> Path:
    wheel = work / "dist/v/tiny-1.0-py3-none-any.whl"
    wheel.parent.mkdir(parents=True, exist_ok=True)
    wheel.touch()
    document, text = keep_beside(Report((wheel.name,), "0", checks), wheel)
    assert text.read_text(encoding="utf-8").startswith(wheel.name)
    return document


def test_the_engine_proves_with_its_own_program_and_others_with_a_shell() -> None:
    script = step_script(VERIFY)
    program, told = script.splitlines()[1:3]
    assert "-m torchsmith.verify.verify <<" in program
    assert msgspec.json.decode(told, type=Expects) == VERIFY.expects
    plain = twin(VERIFY, None).commands
    assert "torchsmith" not in " ".join(plain)
    assert plain[-1] == "bin/python -c 'import tiny'"


def test_the_checks_that_failed_are_named(tmp_path: Path) -> None:
    document = kept(tmp_path, GOOD, BAD, MUTE)
    proof = read_proof(VERIFY, tmp_path)
    assert proof is not None
    assert proof.report == document
    assert proof.failed == (
        "asked for, feature ucc: not there, wanted: on",
        "python, import tiny: ImportError: no libx.so",
    )
    failure = ProofFailed("verify", "Verify tiny", proof.failed, str(document), "a.log")
    assert failure.exit_code == 9
    assert failure.message == "Verify tiny: 2 checks failed"
    assert failure.excerpt[0].startswith("asked for, feature ucc")


def test_a_step_that_ended_badly_for_another_reason_has_no_proof(tmp_path: Path) -> None:
    assert read_proof(VERIFY, tmp_path) is None
    document = kept(tmp_path, GOOD)
    assert read_proof(VERIFY, tmp_path) is None
    document.write_bytes(document.read_bytes()[:40])
    assert read_proof(VERIFY, tmp_path) is None


def test_a_report_is_wanted_at_the_end_and_goes_with_its_wheel(tmp_path: Path) -> None:
    compiled = Step(id="compile", kind="compile", title="C", outputs=(WHEEL,))
    assert final_steps([compiled, VERIFY], None) == {"compile", "verify"}
    document = kept(tmp_path, GOOD)
    for name in attestations(str(document).removesuffix(".verify.json")):
        Path(name).write_text("of the old one", encoding="utf-8")
    WorkFolder(tmp_path).clear(compiled, trees=True)
    assert list((tmp_path / "dist/v").iterdir()) == []


def test_a_report_names_no_folder_of_the_build(tmp_path: Path) -> None:
    place = f'{tmp_path}/a "quoted" one'
    noisy = Check("python", "import torch", "warn", detail=f"{place}/verify/x.py: a warning")
    told = without(Report(("x.whl",), "0", (noisy,)), place)
    assert told.checks[0].detail == "$WORK/verify/x.py: a warning"
    assert json.loads(msgspec.json.encode(told))["subjects"] == ["x.whl"]
