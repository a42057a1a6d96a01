"""The documents on the artifacts of a plan.

    python -m torchsmith.package.attest < ATTEST

The engine runs this in the plan's work folder as the task of its attest step. What the plan
knows comes as JSON on standard input, what only the run knows in a variable.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

import msgspec

from torchsmith import __version__
from torchsmith.errors import OutputError
from torchsmith.files import write_result
from torchsmith.package.contents import read_contents
from torchsmith.package.envelope import PROVENANCE, STATEMENT, bill_path, envelope_path, seal
from torchsmith.package.keys import signer
from torchsmith.package.materials import (
    Beside,
    Materials,
    Tree,
    gather,
    installed,
    read_tree,
    taken_for,
)
from torchsmith.package.sbom import bill
from torchsmith.plan.attest import HISTORY, Attest, History, Made
from torchsmith.sources.addresses import shown
from torchsmith.sources.tree import file_hash
from torchsmith.tasks import run_task
from torchsmith.verify.report import beside as report_beside

BUILD_TYPE = "https://torchsmith.dev/build/v1"
BUILDER = "https://torchsmith.dev/builder"

Descriptor = dict[str, object]


# An in-toto statement with SLSA provenance:
# https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md and
# https://slsa.dev/spec/v1.0/provenance. Only `runDetails` says when and where: the rest is the same
# for everybody who builds the same.


def statement(materials: Materials, history: History, byproducts: Mapping[str, str]) -> bytes:
    """Write what will be signed; `byproducts` has the sha256 of each document beside it."""
    contents, subject, plan = materials.contents, materials.subject, materials.plan
    made = history.steps.get(subject.step, Made())
    whole = {
        "_type": STATEMENT,
        "subject": [{"name": contents.path.name, "digest": {"sha256": contents.sha256}}],
        "predicateType": PROVENANCE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {"recipe": plan.recipe, "variant": plan.variant},
                "internalParameters": {
                    "step": subject.step,
                    "key": made.key,
                    "env": dict(subject.env),
                    "resolution": plan.resolution,
                },
                "resolvedDependencies": list(_dependencies(materials)),
            },
            "runDetails": {
                "builder": {"id": BUILDER, "version": {"torchsmith": __version__}},
                "metadata": {
                    "invocationId": made.run or history.run,
                    **_times(made),
                    **({"torchsmith_network": made.network} if made.network else {}),
                    **({"torchsmith_files": made.files} if made.files else {}),
                    "torchsmith_system": materials.system,
                },
                "byproducts": [
                    {"name": name, "digest": {"sha256": digest}}
                    for name, digest in sorted(byproducts.items())
                ],
            },
        },
    }
    return json.dumps(_without_passwords(whole), sort_keys=True, separators=(",", ":")).encode()


def _times(made: Made) -> dict[str, str]:
    named = {"startedOn": made.started, "finishedOn": made.ended}
    return {
        name: datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for name, time in named.items()
        if time is not None
    }


def _without_passwords(value: object) -> object:
    """The same with no name and password in any address."""
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, Mapping):
        return {name: _without_passwords(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_passwords(item) for item in value]
    return value


def _dependencies(materials: Materials) -> Iterator[Descriptor]:
    for tree in materials.trees:
        yield _source(tree)
        for part in tree.parts:
            if part.commit:
                yield {
                    "name": f"{tree.origin.project}/{part.path}",
                    "uri": f"git+{part.url}@{part.commit}",
                    "digest": {"gitCommit": part.commit},
                }
    for change in materials.changes:
        annotations = {"project": change.project, "why": change.why, "lender": change.lender}
        yield {
            "name": change.name,
            "digest": {"sha256": change.sha256},
            "annotations": {name: text for name, text in annotations.items() if text},
        }
    for item in materials.beside:
        yield {"name": item.name, "digest": {"sha256": item.sha256}}
    if materials.plan.torch:
        yield _package(materials, "torch", materials.plan.torch)
    for name, digest in materials.plan.images:
        yield {"name": name, "digest": {"sha256": digest.removeprefix("sha256:")}}
    kind, version = materials.compiler
    if kind:
        yield {"name": kind, "annotations": {"version": version, "role": "compiler"}}
    for name, version in materials.tools:
        if (name, materials.plan.torch) != ("torch", version):
            yield _package(materials, name, version)


def _package(materials: Materials, name: str, version: str) -> Descriptor:
    """A Python package; with the hash of its file where pip reported one."""
    files = [item for item in materials.taken if (item.name, item.version) == (name, version)]
    known = files[0] if files else None
    return {
        "name": name,
        "uri": f"pkg:pypi/{name}@{quote(version)}",
        **({"digest": {"sha256": known.sha256}} if known and known.sha256 else {}),
        **({"downloadLocation": known.url} if known and known.url else {}),
    }


def _source(tree: Tree) -> Descriptor:
    source = tree.origin.source
    annotations = {
        "kind": tree.kind,
        "ref": source.ref if source is not None else "",
        "folder": tree.origin.folder,
        "tree-sha256": tree.sha256,
    }
    # A commit is named as pip and SLSA do; anything else as package addresses do.
    uri = f"git+{tree.url}@{tree.commit}" if tree.commit else tree.purl.to_string()
    return {
        "name": tree.name,
        "uri": uri,
        **({"digest": tree.digest} if tree.digest else {}),
        "annotations": {name: text for name, text in annotations.items() if text},
    }


def _files(pattern: str) -> list[Path]:
    path = Path(pattern)
    found = [path] if path.is_file() else sorted(Path().glob(pattern))
    if not found:
        raise OutputError(
            f"there is no {pattern} to write about", "Run the same command again: it is built anew."
        )
    return found


def attest(plan: Attest, history: History) -> list[Path]:
    """Write a bill of materials and signed provenance beside each artifact; returns them all."""
    # First: a key that cannot be used should be known before anything is written.
    signs = signer()
    trees = tuple(map(read_tree, plan.origins))
    written: list[Path] = []
    for subject in plan.subjects:
        tools = installed(subject.environments)
        taken = taken_for(subject.environments)
        against = tuple(
            Beside(file.name, file_hash(file)) for name in subject.beside for file in _files(name)
        )
        for artifact in _files(subject.artifact):
            contents = read_contents(artifact)
            materials = gather(plan, subject, contents, trees, tools, against, taken)
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


def _attest(plan: Attest) -> None:
    history = msgspec.json.decode(os.environ.get(HISTORY) or "{}", type=History)
    for path in attest(plan, history):
        print(path, flush=True)


if __name__ == "__main__":
    run_task(Attest, _attest)
