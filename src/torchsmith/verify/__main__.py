"""The proof of one step of a plan.

    python -m torchsmith.verify < EXPECTS

It runs in the plan's work folder; what is expected comes as JSON on standard input. The reports
are left beside the wheel.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from torchsmith.errors import VerificationError
from torchsmith.inputs import one_file
from torchsmith.plan.expects import Expects
from torchsmith.tasks import run_task
from torchsmith.verify.archive import verify_archive
from torchsmith.verify.report import Report, from_json, keep_beside, lines
from torchsmith.verify.report import as_json as report_json
from torchsmith.verify.target import Options
from torchsmith.verify.verify import verify


def without(report: Report, place: str) -> Report:
    """The report with no path of the work folder in it: it is true of the wheel anywhere."""
    text = report_json(report).decode()
    return from_json(text.replace(msgspec.json.encode(place).decode()[1:-1], "$WORK").encode())


def prove(expects: Expects) -> Report:
    """Prove one wheel of a plan, or a static library, in the current folder."""
    wheel = one_file(expects.wheel)
    if expects.symbols:
        report = verify_archive(wheel, expects)
        folder = Path(expects.folder)
        folder.mkdir(parents=True, exist_ok=True)
        keep_beside(report, folder / wheel.name)
        return report
    options = Options(
        python=f"{expects.environment}/bin/python",
        folder=Path(expects.folder),
        layered=expects.layered,
        beside=tuple(map(one_file, expects.beside)),
        numpy=expects.numpy,
    )
    made = verify(
        [wheel], options=options, asked=[expects], say=lambda text: print(text, flush=True)
    )
    made = without(msgspec.structs.replace(made, subjects=(wheel.name,)), str(Path.cwd()))
    keep_beside(made, wheel)
    return made


def _prove(expects: Expects) -> int:
    made = prove(expects)
    print("\n".join(lines(made, everything=True)), flush=True)
    return VerificationError.exit_code if made.rating == "fail" else 0


if __name__ == "__main__":
    run_task(Expects, _prove)
