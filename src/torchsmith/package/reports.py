"""Signed verification reports: anybody can write a file that says "passed".

https://github.com/in-toto/attestation/blob/main/spec/predicates/test-result.md
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from torchsmith.files import write_result
from torchsmith.package.envelope import (
    STATEMENT,
    SignatureError,
    Signed,
    byproducts,
    check,
    envelope_path,
    kinds_in,
    seal,
)
from torchsmith.package.keys import PublicKey, signer
from torchsmith.sources.tree import file_hash
from torchsmith.verify.report import Report, beside

TEST_RESULT = "https://in-toto.io/attestation/test-result/v0.1"
_RESULTS = {"pass": "PASSED", "warn": "WARNED", "fail": "FAILED"}


class _File(Struct, frozen=True):
    name: str = ""
    digest: dict[str, str] = {}


class _Result(Struct, frozen=True):
    configuration: tuple[_File, ...] = ()


def sign_report(report: Report, artifact: Path) -> Path:
    """Sign the report that lies beside an artifact; the statement joins those about it."""
    document = beside(artifact)
    statement = {
        "_type": STATEMENT,
        "subject": [{"name": artifact.name, "digest": {"sha256": file_hash(artifact)}}],
        "predicateType": TEST_RESULT,
        "predicate": {
            "result": _RESULTS[report.rating],
            "configuration": [{"name": document.name, "digest": {"sha256": file_hash(document)}}],
        },
    }
    path = envelope_path(artifact)
    # An older report is replaced: it is about a file that is no longer there.
    kept = [line for line, kind in kinds_in(path) if kind != TEST_RESULT]
    sealed = seal(json.dumps(statement, sort_keys=True).encode(), signer())
    write_result(path, b"".join([*kept, sealed]))
    return path


def report_signer(
    artifact: Path, keys: Sequence[PublicKey], digest: str, made: Signed | None
) -> str:
    """The id of the trusted key that vouches for the report beside an artifact; empty if none.

    Whoever signed how it was made signed the report of that build, too.
    """
    try:
        found = hashlib.sha256(beside(artifact).read_bytes()).hexdigest()
    except OSError:
        return ""
    if made is not None and byproducts(made.claim).get(beside(artifact).name) == found:
        return made.signer.id
    try:
        signed = check(artifact, keys, digest, predicate=TEST_RESULT)
        result = msgspec.convert(signed.claim.predicate, _Result)
    except (SignatureError, msgspec.ValidationError):
        return ""
    digests = {item.digest.get("sha256") for item in result.configuration}
    return signed.signer.id if found in digests else ""
