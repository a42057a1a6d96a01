"""Who may sign what: a file that says which keys are believed for which artifacts.

    [[allow]]
    artifact = "torch-*"                           # names of files, with * and ?
    keys = ["0123…"]                               # ids, as `torchsmith key list` shows them
    sources = ["git+https://github.com/pytorch/*"] # optional: every source must be one of these
    report = true                                  # optional: a signed report that it passed
    network = "none"                               # optional: it was compiled without a network
    hashed = true                                  # optional: every input is named by its hash

An artifact that no entry names is refused; of several that name it, one must hold.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from torchsmith.errors import UsageError
from torchsmith.foreign import MalformedError, decode_toml
from torchsmith.inputs import check_file
from torchsmith.package.envelope import (
    Predicate,
    SignatureError,
    Signed,
    Source,
    check,
    read_predicate,
    report_signer,
)
from torchsmith.package.keys import PublicKey
from torchsmith.sources.tree import file_hash
from torchsmith.verify.report import content_beside, from_json

_MOST_BYTES = 1 << 20
# https://host/trusted/../other/x is fetched from other.
_CLIMBS = re.compile(r"[/\\]\.{1,2}(?:[/\\?#@]|\Z)|%2e|%2f|%5c", re.IGNORECASE)


class Allowed(Struct, frozen=True, forbid_unknown_fields=True):
    """Keys that may sign artifacts of certain names."""

    artifact: Annotated[str, Meta(min_length=1, max_length=200)]
    keys: Annotated[tuple[Annotated[str, Meta(pattern="^[0-9a-f]{64}$")], ...], Meta(min_length=1)]
    sources: tuple[str, ...] = ()
    report: bool = False
    network: Literal["", "none"] = ""
    hashed: bool = False


class Policy(Struct, frozen=True, forbid_unknown_fields=True):
    """Every entry of a file."""

    allow: Annotated[tuple[Allowed, ...], Meta(min_length=1)]


def read_policy(path: Path) -> Policy:
    """Read a policy; a mistake in it is an error, never a permission."""
    check_file(path, "docs/provenance.md shows a policy.")
    try:
        with path.open("rb") as file:
            return decode_toml(file.read(_MOST_BYTES + 1), Policy, _MOST_BYTES)
    except MalformedError as error:
        raise UsageError(
            f"{path} is not a policy: {error}", "docs/provenance.md shows one."
        ) from None


def check_policy(artifact: Path, policy: Policy, keys: Sequence[PublicKey]) -> Signed:
    """The statement about an artifact that an entry of the policy allows."""
    entries = [entry for entry in policy.allow if fnmatchcase(artifact.name, entry.artifact)]
    if not entries:
        raise SignatureError(
            "not allowed",
            f"the policy names no signer for {artifact.name}",
            "Add an [[allow]] entry for it if you know whose it is.",
        )
    digest = file_hash(artifact) if artifact.is_file() else ""
    problem: SignatureError | None = None
    for entry in entries:
        mine = [key for key in keys if key.id in entry.keys]
        try:
            signed = check(artifact, mine, digest)
            # A statement that cannot be read says nothing.
            predicate = read_predicate(signed.claim) or Predicate()
            _sources(artifact, entry, predicate)
            _hermetic(artifact, entry, predicate)
            _report(artifact, entry, mine, digest, signed)
        except SignatureError as error:
            problem = error
            continue
        return signed
    assert problem is not None
    raise problem


def _hermetic(artifact: Path, entry: Allowed, predicate: Predicate) -> None:
    network = predicate.run_details.metadata.torchsmith_network
    if entry.network and network != entry.network:
        raise SignatureError(
            "not allowed",
            f"{artifact.name} was compiled with the network {network or 'unknown'}",
            "The policy allows what was compiled without one only.",
        )
    items = predicate.build_definition.resolved_dependencies
    loose = [item.name for item in items if not _is_hashed(item)]
    if entry.hashed and (loose or not items):
        raise SignatureError(
            "not allowed",
            f"{artifact.name} was made of {', '.join(loose) or 'nothing'} without a hash",
            "The policy asks for the hash of every input: build with `torchsmith lock`.",
        )


def _is_hashed(item: Source) -> bool:
    # A compiler is the system's, and pip the interpreter's: neither was fetched.
    own = item.annotations.get("role") == "compiler" or item.name in ("pip", "setuptools")
    return bool(item.digest or "tree-sha256" in item.annotations or own)


def _sources(artifact: Path, entry: Allowed, predicate: Predicate) -> None:
    if not entry.sources:
        return
    items = predicate.build_definition.resolved_dependencies
    sources = [item.uri for item in items if "tree-sha256" in item.annotations]
    strange = [
        uri
        for uri in sources
        if _CLIMBS.search(uri) or not any(fnmatchcase(uri, one) for one in entry.sources)
    ]
    if strange or not sources:
        raise SignatureError(
            "not allowed",
            f"{artifact.name} was made of {', '.join(strange) or 'no source that is named'}",
            "The policy allows other sources only.",
        )


def _report(
    artifact: Path, entry: Allowed, keys: Sequence[PublicKey], digest: str, signed: Signed
) -> None:
    if not entry.report:
        return
    try:
        rating = from_json(content_beside(artifact)).rating
    except (OSError, msgspec.MsgspecError):
        rating = "fail"
    if rating == "fail" or not report_signer(artifact, keys, digest, signed):
        raise SignatureError(
            "not allowed",
            f"no signed report beside {artifact.name} says that it passed",
            "`torchsmith verify --save` with the wheel writes and signs one.",
        )
