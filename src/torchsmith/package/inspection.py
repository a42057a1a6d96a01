"""Looking at an artifact: what it is, what it needs, and who says how it was made."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from torchsmith.errors import TorchsmithError
from torchsmith.package.contents import Contents, Kind, read_contents
from torchsmith.package.envelope import (
    PROVENANCE,
    Claim,
    SignatureError,
    Signed,
    Source,
    bill_path,
    check,
    claims,
    read_predicate,
    report_signer,
)
from torchsmith.package.keys import trusted_keys
from torchsmith.package.materials import outside
from torchsmith.verify.binary import Library, version_key
from torchsmith.verify.fatbin import order
from torchsmith.verify.linkage import baseline, newest
from torchsmith.verify.report import Report, content_beside, from_json, summary

# The oldest that PEP 600 has for machines other than x86.
_FIRST_ELSEWHERE = "2.17"
# What an envelope says is worth repeating where nobody has tampered with it.
_UNTOUCHED = ("trusted", "unknown key", "unchecked")


class Linkage(Struct, frozen=True):
    """What an artifact's libraries ask of a machine.

    `manylinux` is the lowest tag it could truly have; empty if it needs libraries that no such
    tag allows, which `foreign` names.
    """

    count: int = 0
    machines: tuple[str, ...] = ()
    outside: tuple[str, ...] = ()
    foreign: tuple[str, ...] = ()
    search: tuple[str, ...] = ()
    glibc: str = ""
    libstdcxx: str = ""
    manylinux: str = ""
    gpu: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()


class Provenance(Struct, frozen=True):
    """How it was made, as its provenance says."""

    recipe: Mapping[str, object]
    variant: str
    torchsmith: str
    sources: tuple[Source, ...]
    patches: tuple[Source, ...]
    compiler: str
    flags: Mapping[str, str]
    started: str = ""
    finished: str = ""


class Signature(Struct, frozen=True):
    """Whether anybody vouches for it: `trusted`, `unsigned`, `unknown key`, or what is wrong."""

    state: str
    key: str = ""
    own: bool = False
    message: str = ""


class Verification(Struct, frozen=True):
    """The report beside it; `fits` says whether it is about this very file."""

    rating: str
    summary: str
    fits: bool
    # The trusted key that signed it; empty: anybody may have written it.
    signer: str = ""


class Inspection(Struct, frozen=True):
    """Everything that is known of an artifact without running it."""

    file: str
    kind: Kind
    name: str
    version: str
    label: str
    tags: tuple[str, ...]
    build: str
    subdir: str
    python: str
    size: int
    sha256: str
    files: int
    unpacked: int
    libraries: Linkage
    requires: tuple[str, ...]
    signature: Signature
    made: Provenance | None = None
    verification: Verification | None = None
    bill: str = ""


def inspect(path: Path) -> Inspection:
    """Look at a wheel, a conda package or a libtorch archive, and at what lies beside it."""
    contents = read_contents(path)
    signature, claim, signed = _signature(path, contents.sha256)
    bill = bill_path(path)
    return Inspection(
        file=str(path),
        kind=contents.kind,
        name=contents.name,
        version=contents.version,
        label=contents.label,
        tags=contents.tags,
        build=contents.build,
        subdir=contents.subdir,
        python=_python(contents),
        size=contents.size,
        sha256=contents.sha256,
        files=contents.files,
        unpacked=contents.unpacked,
        libraries=_linkage(contents),
        requires=contents.requires,
        signature=signature,
        made=_provenance(claim) if claim is not None else None,
        verification=_verification(path, contents.sha256, signed),
        bill=bill.name if bill.is_file() else "",
    )


def _python(contents: Contents) -> str:
    """The Python it is for; empty where any will do, or none is needed."""
    words = [*contents.tags, contents.build]
    found = [match for word in words if (match := re.match(r"(?:cp|.*py)3\.?(\d+)", word))]
    return f"3.{found[0][1]}" if found else ""


def _linkage(contents: Contents) -> Linkage:
    libraries = [packed.library for packed in contents.libraries]
    whole = [library for library in libraries if not library.broken]
    base = baseline()
    needed = outside(contents)
    foreign = tuple(name for name in needed if name not in base.system | base.driver)
    machines = tuple(sorted({library.machine for library in whole}))
    return Linkage(
        count=len(libraries),
        machines=machines,
        outside=needed,
        foreign=foreign,
        search=tuple(sorted({entry for library in whole for entry in library.search})),
        glibc=newest(whole, "GLIBC")[0],
        libstdcxx=newest(whole, "GLIBCXX")[0],
        manylinux="" if foreign or len(machines) != 1 else lowest_tag(whole, machines[0]),
        gpu=tuple(sorted({name for library in whole for name in library.gpu}, key=order)),
        broken=tuple(f"{item.path}: {item.broken}" for item in libraries if item.broken),
    )


def lowest_tag(libraries: Sequence[Library], machine: str) -> str:
    """The lowest manylinux tag whose glibc and libstdc++ have all that libraries need."""
    glibc, libstdcxx = (newest(libraries, family)[0] for family in ("GLIBC", "GLIBCXX"))
    table = baseline().libstdcxx
    least = _FIRST_ELSEWHERE if machine != "x86_64" else min(table, key=version_key)
    floor = max((glibc or least, least), key=version_key)
    for name in sorted({*table, floor}, key=version_key):
        older = max(
            (key for key in table if version_key(key) <= version_key(name)), key=version_key
        )
        enough = version_key(libstdcxx) <= version_key(table[older])
        if version_key(name) >= version_key(floor) and enough:
            return f"manylinux_{name.replace('.', '_')}_{machine}"
    return ""


def _verification(path: Path, sha256: str, signed: Signed | None) -> Verification | None:
    try:
        report: Report = from_json(content_beside(path))
    except (OSError, msgspec.MsgspecError):
        return None
    try:
        signer = report_signer(path, trusted_keys(), sha256, signed)
    except TorchsmithError:
        # Our own key cannot be used; nothing is proven then.
        signer = ""
    fits = sha256 in report.wheels.values()
    return Verification(report.rating, summary(report), fits, signer)


def _signature(path: Path, sha256: str) -> tuple[Signature, Claim | None, Signed | None]:
    """Who vouches for it, and what they say."""
    try:
        signed = check(path, trusted_keys(), sha256)
    except SignatureError as error:
        state, message = error.state, error.message
    except TorchsmithError as error:
        # Our own key cannot be used; that says nothing about the artifact.
        state, message = "unchecked", error.message
    else:
        return Signature("trusted", signed.signer.id, signed.signer.own), signed.claim, signed
    claim: Claim | None = None
    if state in _UNTOUCHED:
        found = claims(path)
        claim = next((item for item in found if item.predicate_type == PROVENANCE), None)
        if claim is not None and sha256 not in dict(claim.subjects).values():
            claim = None
    keys = ", ".join(claim.keys) if claim else ""
    return Signature(state, keys, message=message), claim, None


def _provenance(claim: Claim) -> Provenance | None:
    predicate = read_predicate(claim)
    if predicate is None or not {"buildDefinition", "runDetails"} <= claim.predicate.keys():
        return None
    definition, run = predicate.build_definition, predicate.run_details
    compiler = definition.internal_parameters.resolution.compiler
    items = definition.resolved_dependencies
    return Provenance(
        recipe=definition.external_parameters.recipe,
        variant=definition.external_parameters.variant,
        torchsmith=run.builder.version.get("torchsmith", ""),
        sources=tuple(item for item in items if "tree-sha256" in item.annotations),
        patches=tuple(item for item in items if "project" in item.annotations),
        compiler=f"{compiler.kind} {compiler.version}".strip(),
        flags=definition.internal_parameters.env,
        started=run.metadata.started_on,
        finished=run.metadata.finished_on,
    )
