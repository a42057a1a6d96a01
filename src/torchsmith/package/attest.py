"""The documents on the artifacts of a plan.

    python -m torchsmith.package.attest < ATTEST

The engine runs this in the plan's work folder as the task of its attest step. What the plan
knows comes as JSON on standard input, what only the run knows in a variable.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import msgspec

from torchsmith.errors import OutputError
from torchsmith.files import write_result
from torchsmith.package.contents import read_contents
from torchsmith.package.envelope import envelope_path, seal
from torchsmith.package.keys import signer
from torchsmith.package.materials import Beside, gather
from torchsmith.package.origins import installed, read_tree, taken_for
from torchsmith.package.provenance import statement
from torchsmith.package.sbom import bill, bill_path
from torchsmith.plan.attest import HISTORY, Attest, History
from torchsmith.sources.tree import file_hash
from torchsmith.tasks import run_task
from torchsmith.verify.report import beside as report_beside


def _files(pattern: str) -> list[Path]:
    path = Path(pattern)
    found = [path] if path.is_file() else sorted(Path().glob(pattern))
    if not found:
        raise OutputError(
            f"there is no {pattern} to write about", "Run the same command again: it is built anew."
        )
    return found


def attest(told: Attest, history: History) -> list[Path]:
    """Write a bill of materials and signed provenance beside each artifact; returns them all."""
    # First: a key that cannot be used should be known before anything is written.
    signs = signer()
    trees = tuple(map(read_tree, told.origins))
    written: list[Path] = []
    for subject in told.subjects:
        tools = installed(subject.environments)
        taken = taken_for(subject.environments)
        against = tuple(
            Beside(file.name, file_hash(file)) for name in subject.beside for file in _files(name)
        )
        for artifact in _files(subject.artifact):
            contents = read_contents(artifact)
            materials = gather(told, subject, contents, trees, tools, against, taken)
            content = bill(materials)
            byproducts = {bill_path(artifact).name: hashlib.sha256(content).hexdigest()}
            report = report_beside(artifact)
            if report.is_file():
                byproducts[report.name] = file_hash(report)
            sealed = seal(statement(materials, history, byproducts), signs)
            write_result(bill_path(artifact), content)
            write_result(envelope_path(artifact), sealed)
            written += [bill_path(artifact), envelope_path(artifact)]
    return written


def _attest(told: Attest) -> None:
    history = msgspec.json.decode(os.environ.get(HISTORY) or "{}", type=History)
    for path in attest(told, history):
        print(path, flush=True)


if __name__ == "__main__":
    run_task(Attest, _attest)
