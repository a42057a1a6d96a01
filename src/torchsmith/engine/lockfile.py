"""Lock files: reading the one beside a recipe, and making one of what a run took."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from torchsmith.foreign import MalformedError, decode_toml
from torchsmith.inputs import why_unreadable
from torchsmith.plan.attest import Origin
from torchsmith.plan.lock import (
    FORMAT,
    Image,
    Install,
    Lock,
    LockError,
    Package,
    Source,
    asked_of,
    is_locked_source,
)
from torchsmith.plan.models import Plan, Step
from torchsmith.plan.shell import reported

_MOST_BYTES = 16 << 20
# pip's own words for a file with other bytes than its requirement names.
_MISMATCH = re.compile(
    r"^[ \t]*(?P<what>\S[^\n]*):\n\s+Expected sha256 (?P<wanted>[0-9a-f]{64})\n"
    r"(?:\s+Expected[^\n]*\n)*\s+Got\s+(?P<found>[0-9a-f]{64})",
    re.MULTILINE,
)


def lock_file(recipe: Path) -> Path:
    """The path of a recipe's lock: beside it."""
    name = "torchsmith" if recipe.name == "recipe.toml" else recipe.stem
    return recipe.with_name(f"{name}.lock")


def read_lock(path: Path) -> Lock:
    """Read a lock; a damaged lock is an error, never ignored."""
    hint = "`torchsmith lock` writes one."
    if reason := why_unreadable(path):
        raise LockError(f"{path} {reason}", hint)
    try:
        with path.open("rb") as file:
            lock = decode_toml(file.read(_MOST_BYTES + 1), Lock, _MOST_BYTES)
    except OSError as error:
        raise LockError(f"{path} cannot be read: {error.strerror}", hint) from None
    except MalformedError as error:
        raise LockError(f"{path} is not a lock: {error}", hint) from None
    if lock.format != FORMAT:
        raise LockError(
            f"{path} has the format {lock.format}, this torchsmith reads {FORMAT}", hint
        )
    for value, form in _forms(lock):
        if not form.fullmatch(value):
            raise LockError(f"{path} is not a lock: {value!r} cannot stand in one", hint)
    return lock


_SHA256 = re.compile(r"[0-9a-f]{64}")
_COMMIT = re.compile(r"(?:[0-9a-f]{40})?")
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*", re.ASCII)
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+!_-]*", re.ASCII)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def _forms(lock: Lock) -> Iterator[tuple[str, re.Pattern[str]]]:
    """Every value that becomes part of a command, with the form it must have."""
    for install in lock.install:
        for package in install.packages:
            yield package.name, _NAME
            yield package.version, _VERSION
            yield package.sha256, _SHA256
    for source in lock.source:
        yield source.tree, _SHA256
        yield source.commit, _COMMIT
    for image in lock.image:
        yield image.digest, _DIGEST


def what_was_taken(plan: Plan, work: Path, images: tuple[Image, ...] = ()) -> Lock:
    """A lock of what lies in the work folder after a run."""
    installs = [item for step in plan.steps for item in _installs(step, work)]
    sources = [
        _source(step, work)
        for step in plan.steps
        if is_locked_source(step) and (work / step.outputs[0]).is_dir()
    ]
    return Lock(install=tuple(installs), source=tuple(sources), image=images)


def _installs(step: Step, work: Path) -> Iterator[Install]:
    # Reading trees and reports takes imports that no plan needs.
    from torchsmith.package.materials import read_report

    lines = [found for line in step.commands if (found := reported(line))]
    if not all((work / report).is_file() for report, _ in lines):
        return
    for report, asked in lines:
        # What was built here lies in the work folder.
        here = f"{work.resolve().as_uri()}/"
        taken = [item for item in read_report(work / report) if not item.url.startswith(here)]
        for item in taken:
            if not item.sha256:
                raise LockError(
                    f"pip reports no sha256 of {item.name} {item.version}",
                    "Take it from an index or as a file, not from a repository or a folder.",
                )
        packages = tuple(Package(item.name, item.version, item.sha256, item.url) for item in taken)
        yield Install(step.id, tuple(asked), packages)


def _source(step: Step, work: Path) -> Source:
    from torchsmith.package.materials import read_tree

    assert step.source is not None
    tree = read_tree(Origin(step.project, str(work / step.outputs[0]), step.source))
    return Source(
        step=step.id,
        asked=asked_of(step),
        tree=tree.sha256,
        kind=tree.kind,
        url=tree.url,
        commit=tree.commit,
        version=tree.version,
        sha256=tree.digest.get("sha256", ""),
    )


def changed_bytes(log: Path) -> str:
    """The sentence about a file with other bytes than the lock names; empty if the log has none."""
    try:
        found = _MISMATCH.search(log.read_text("utf-8", "replace"))
    except OSError:
        return ""
    if found is None:
        return ""
    what = found["what"].partition(" from ")[0]
    return (
        f"{what} is not the file the lock names: expected sha256 "
        f"{found['wanted']}, found {found['found']}"
    )
