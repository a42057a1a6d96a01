"""Signed statements: a DSSE envelope a line, beside the artifact they are about.

https://github.com/secure-systems-lab/dsse and
https://github.com/in-toto/attestation/blob/main/spec/v1/bundle.md
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from torchsmith.errors import UsageError, VerificationError
from torchsmith.files import write_result
from torchsmith.foreign import decode
from torchsmith.package.keys import PublicKey, signer
from torchsmith.plan.attest import attestations
from torchsmith.sources.tree import file_hash
from torchsmith.verify.report import Report, beside, content_beside

if TYPE_CHECKING:
    from securesystemslib.dsse import Envelope
    from securesystemslib.signer import Signer

PAYLOAD_TYPE = "application/vnd.in-toto+json"
STATEMENT = "https://in-toto.io/Statement/v1"
PROVENANCE = "https://slsa.dev/provenance/v1"
_LARGEST = 64 << 20


class SignatureError(VerificationError):
    """No trusted signature covers an artifact; `state` says in a word what is wrong."""

    def __init__(self, state: str, message: str, hint: str) -> None:
        super().__init__(message, hint)
        self.state = state


class _Subject(Struct, frozen=True):
    name: str
    digest: Mapping[str, str]


class _Statement(Struct, frozen=True, rename={"type": "_type", "predicate_type": "predicateType"}):
    """The parts of a statement that say what it is about."""

    type: str
    subject: tuple[_Subject, ...]
    predicate_type: str
    predicate: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement, and the numbers of the keys that are said to have signed it."""

    keys: tuple[str, ...]
    predicate_type: str
    predicate: Mapping[str, object]
    subjects: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Signed:
    """A statement about a file, and the trusted key that signed it."""

    claim: Claim
    signer: PublicKey


def envelope_path(artifact: Path) -> Path:
    """Where what is signed about an artifact lies."""
    return artifact.with_name(attestations(artifact.name)[1])


def bill_path(artifact: Path) -> Path:
    """Where an artifact's bill of materials lies."""
    return artifact.with_name(attestations(artifact.name)[0])


def seal(statement: bytes, signer: Signer) -> bytes:
    """A statement in an envelope, as one line."""
    from securesystemslib.dsse import Envelope

    envelope = Envelope(statement, PAYLOAD_TYPE, {})
    envelope.sign(signer)
    return _line(envelope)


def _line(envelope: Envelope) -> bytes:
    return json.dumps(envelope.to_dict(), separators=(",", ":")).encode() + b"\n"


def _open(path: Path) -> tuple[Envelope, ...]:
    from securesystemslib.dsse import Envelope
    from securesystemslib.exceptions import FormatError

    broken = SignatureError(
        "broken",
        f"{path.name} is not a signed envelope: it is damaged, or another file was put there",
        "Get it again from whoever built the artifact.",
    )
    try:
        # Neither what never ends nor what would fill the memory.
        if path.stat().st_size > _LARGEST or not path.is_file():
            raise broken
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        raise SignatureError(
            "unsigned",
            f"{path.name.removesuffix('.intoto.jsonl')} is not signed: there is no {path.name} "
            "beside it",
            "Artifacts that torchsmith builds have one; copy it along with the artifact.",
        ) from None
    except OSError as error:
        raise SignatureError(
            "broken", f"{path} cannot be read: {error.strerror}", "Check its rights."
        ) from None
    try:
        found = tuple(Envelope.from_dict(json.loads(line)) for line in lines if line.strip())
    except (ValueError, KeyError, TypeError, AttributeError, FormatError, RecursionError):
        raise broken from None
    names = [name for envelope in found for name in envelope.signatures]
    if not found or not all(isinstance(name, str) for name in names):
        raise broken
    return found


def _read(envelope: Envelope, path: Path) -> Claim:
    try:
        if envelope.payload_type != PAYLOAD_TYPE:
            raise ValueError
        statement = decode(envelope.payload, _Statement)
        if statement.type != STATEMENT:
            raise ValueError
    except (ValueError, msgspec.MsgspecError):
        raise SignatureError(
            "broken",
            f"what is signed in {path.name} is not an in-toto statement",
            "Get it again from whoever built the artifact.",
        ) from None
    subjects = tuple((item.name, item.digest.get("sha256", "")) for item in statement.subject)
    return Claim(
        tuple(envelope.signatures), statement.predicate_type, statement.predicate, subjects
    )


def kinds_in(path: Path) -> list[tuple[bytes, str]]:
    """The lines of an envelope file, each with the type of its statement; none if there is none."""
    try:
        envelopes = _open(path)
    except SignatureError as problem:
        if problem.state == "unsigned":
            return []
        raise
    return [(_line(envelope), _read(envelope, path).predicate_type) for envelope in envelopes]


def claims(artifact: Path) -> tuple[Claim, ...]:
    """Every statement about an artifact, whether or not a trusted key signed it."""
    path = envelope_path(artifact)
    return tuple(_read(envelope, path) for envelope in _open(path))


def check(
    artifact: Path, keys: Sequence[PublicKey], digest: str = "", *, predicate: str = PROVENANCE
) -> Signed:
    """The statement about this very file that a trusted key signed.

    `digest` is the file's sha256 where it is known already; `predicate` is the type the statement
    must have: a report that it works does not say who made it. Raises `SignatureError`.
    """
    path = envelope_path(artifact)
    if not artifact.is_file():
        raise UsageError(f"{artifact} is not a file", "Name the artifact, not what lies beside it.")
    envelopes = _open(path)
    digest = digest or file_hash(artifact)
    problems: list[SignatureError] = []
    for envelope in envelopes:
        try:
            claim = _read(envelope, path)
            key = _signed_by(envelope, keys, path)
            if claim.predicate_type != predicate:
                raise SignatureError(
                    "another kind",
                    f"{path.name} holds a statement of another kind: {claim.predicate_type!r}",
                    f"One of the kind {predicate} is needed.",
                )
            _about(claim, artifact, digest)
            _with_its_bill(claim, artifact)
        except SignatureError as problem:
            problems.append(problem)
            continue
        return Signed(claim, key)
    # The one that came closest says most.
    raise max(problems, key=lambda problem: _ORDER.index(problem.state))


_ORDER = (
    "broken",
    "unknown key",
    "changed envelope",
    "another kind",
    "expired key",
    "revoked key",
    "another file",
    "renamed",
    "changed file",
    "changed bill",
)


def _signed_by(envelope: Envelope, keys: Sequence[PublicKey], path: Path) -> PublicKey:
    from securesystemslib.exceptions import UnverifiedSignatureError

    claimed = [key for key in keys if key.id in envelope.signatures]
    if not claimed:
        names = ", ".join(ascii(name[:16])[1:-1] for name in envelope.signatures) or "nobody"
        raise SignatureError(
            "unknown key",
            f"{path.name} is signed by {names}, whose key is not trusted here",
            "If you know whose it is: `torchsmith key trust FILE` with the public key.",
        )
    former: PublicKey | None = None
    for key in claimed:
        try:
            key.verifier.verify_signature(envelope.signatures[key.id], envelope.pae())
        except UnverifiedSignatureError:
            continue
        if not key.problem:
            return key
        former = key
    if former is not None:
        raise SignatureError(
            f"{former.problem} key",
            f"{path.name} is signed by {former.id[:16]}, whose key is {former.problem}",
            "`torchsmith key list` shows what is trusted here; ask for a newer build.",
        )
    raise SignatureError(
        "changed envelope",
        f"the signature in {path.name} does not fit: it was changed after it was signed",
        "Do not use the artifact; get both again from whoever built it.",
    )


def _about(claim: Claim, artifact: Path, digest: str) -> None:
    digests = dict(claim.subjects)
    if (artifact.name, digest) in claim.subjects:
        return
    if digest in digests.values():
        names = [name for name, sha256 in claim.subjects if sha256 == digest]
        raise SignatureError(
            "renamed",
            f"{artifact.name} was signed under another name: {', '.join(names)}",
            "A name says what an installer takes it for: give it back the one it was signed with.",
        )
    if artifact.name in digests:
        raise SignatureError(
            "changed file",
            f"{artifact.name} is not the file that was signed: its sha256 is {digest}, signed was "
            f"{digests[artifact.name]}",
            "It was changed or damaged afterwards: do not use it.",
        )
    raise SignatureError(
        "another file",
        f"{envelope_path(artifact).name} is about another file: {', '.join(digests) or 'none'}",
        "Put the envelope beside the artifact it belongs to.",
    )


class Source(Struct, frozen=True):
    """A source, as provenance names it."""

    name: str = ""
    uri: str = ""
    digest: Mapping[str, str] = {}
    annotations: Mapping[str, str] = {}


class _Compiler(Struct, frozen=True):
    kind: str = ""
    version: str = ""


class _Resolution(Struct, frozen=True):
    compiler: _Compiler = _Compiler()


class _Internal(Struct, frozen=True):
    env: Mapping[str, str] = {}
    resolution: _Resolution = _Resolution()


class _External(Struct, frozen=True):
    recipe: Mapping[str, object] = {}
    variant: str = ""


class _Definition(Struct, frozen=True, rename="camel"):
    external_parameters: _External = _External()
    internal_parameters: _Internal = _Internal()
    resolved_dependencies: tuple[Source, ...] = ()


class _Builder(Struct, frozen=True):
    version: Mapping[str, str] = {}


class _Metadata(
    Struct, frozen=True, rename={"started_on": "startedOn", "finished_on": "finishedOn"}
):
    started_on: str = ""
    finished_on: str = ""
    torchsmith_network: str = ""


class _RunDetails(Struct, frozen=True):
    builder: _Builder = _Builder()
    metadata: _Metadata = _Metadata()


class Predicate(Struct, frozen=True, rename="camel"):
    """What SLSA provenance says, as far as it is read here."""

    build_definition: _Definition = _Definition()
    run_details: _RunDetails = _RunDetails()


def read_predicate(claim: Claim) -> Predicate | None:
    """The provenance in a statement; None where it is not of that form."""
    try:
        return msgspec.convert(claim.predicate, Predicate)
    except msgspec.ValidationError:
        return None


class _File(Struct, frozen=True):
    name: str = ""
    digest: dict[str, str] = {}


class _Byproducts(Struct, frozen=True):
    byproducts: tuple[_File, ...] = ()


def byproducts(claim: Claim) -> dict[str, str]:
    """The documents a statement vouches for: the sha256 of each, by its name."""
    try:
        details = msgspec.convert(claim.predicate.get("runDetails", {}), _Byproducts)
    except msgspec.ValidationError:
        return {}
    files = details.byproducts
    names = {item.name.rpartition("/")[2]: item.digest.get("sha256", "") for item in files}
    return {name: sha256 for name, sha256 in names.items() if name not in ("", ".", "..")}


def _with_its_bill(claim: Claim, artifact: Path) -> None:
    """The bill of materials is vouched for by its hash; a report may be written anew any time."""
    for name, sha256 in byproducts(claim).items():
        path = artifact.with_name(name)
        if not name.endswith(".cdx.json") or not path.is_file():
            continue
        if file_hash(path) != sha256:
            raise SignatureError(
                "changed bill",
                f"{path.name} is not the bill of materials that was signed",
                "It was changed afterwards: get it again from whoever built the artifact.",
            )


# https://github.com/in-toto/attestation/blob/main/spec/predicates/test-result.md
TEST_RESULT = "https://in-toto.io/attestation/test-result/v0.1"
_RESULTS = {"pass": "PASSED", "warn": "WARNED", "fail": "FAILED"}


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
        found = hashlib.sha256(content_beside(artifact)).hexdigest()
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
