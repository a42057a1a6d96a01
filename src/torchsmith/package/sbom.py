"""The bill of materials of an artifact, as CycloneDX JSON: https://cyclonedx.org/docs/1.6/json/

The same artifact, built of the same things, has the same bill: its number is the hash of what
stands in it, its date that of the source. Another bill travels inside a wheel (PEP 770).
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import (
    Commit,
    Component,
    ComponentScope,
    ComponentType,
    Diff,
    Patch,
    PatchClassification,
    Pedigree,
)
from cyclonedx.output.json import JsonV1Dot6
from msgspec.structs import replace
from packageurl import PackageURL
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from torchsmith import __version__
from torchsmith.package.contents import Contents
from torchsmith.package.materials import (
    Materials,
    Owner,
    Part,
    Tree,
    installed,
    is_vendored,
    planned_tree,
)
from torchsmith.plan.attest import Attest, Change


def bill(materials: Materials) -> bytes:
    """Write the bill of an artifact."""
    made = _bom(materials)
    made.serial_number = uuid.UUID(int=0)
    content = hashlib.sha256(JsonV1Dot6(made).output_as_string().encode()).digest()
    # Version 8 is the one whose bits are the maker's own: RFC 9562.
    made.serial_number = _numbered(content[:16])
    return (JsonV1Dot6(made).output_as_string(indent=2) + "\n").encode()


def _numbered(content: bytes) -> uuid.UUID:
    number = bytearray(content)
    number[6] = number[6] & 0x0F | 0x80
    number[8] = number[8] & 0x3F | 0x80
    return uuid.UUID(bytes=bytes(number))


def _bom(materials: Materials) -> Bom:
    artifact = _artifact(materials.contents, materials.subject.project)
    runtime = [*_linked(materials), *_required(materials.contents)]
    sources = list(_sources(materials))
    bom = Bom(
        components=[*runtime, *sources, *_built_with(materials)],
        metadata=BomMetaData(
            component=artifact,
            timestamp=datetime.fromtimestamp(materials.date, UTC),
        ),
    )
    bom.metadata.tools.components.add(
        Component(name="torchsmith", version=__version__, type=ComponentType.APPLICATION)
    )
    bom.register_dependency(artifact, [*runtime, *sources])
    return bom


def _hashes(sha256: str) -> list[HashType]:
    return [HashType(alg=HashAlgorithm.SHA_256, content=sha256)] if sha256 else []


def _properties(**known: str | Iterable[str]) -> list[Property]:
    """What CycloneDX has no field for, under names of ours."""
    return [
        Property(name=f"torchsmith:{name}", value=value)
        for name, values in known.items()
        for value in ([values] if isinstance(values, str) else values)
        if value
    ]


def artifact_purl(contents: Contents) -> PackageURL:
    """An artifact's address among all packages."""
    if contents.kind == "wheel":
        return PackageURL("pypi", None, contents.name, contents.version)
    if contents.kind == "conda package":
        qualifiers = {"build": contents.build, "subdir": contents.subdir}
        return PackageURL("conda", None, contents.name, contents.version, qualifiers)
    return PackageURL("generic", None, contents.name, contents.version)


def _artifact(contents: Contents, project: str) -> Component:
    inside = [
        Component(
            type=ComponentType.FILE,
            name=packed.library.path,
            bom_ref=f"file:{packed.library.path}",
            hashes=_hashes(packed.sha256),
            properties=_properties(
                role="vendored" if is_vendored(packed.library.path, project) else "built"
            ),
        )
        for packed in contents.libraries
    ]
    return Component(
        type=ComponentType.LIBRARY,
        name=contents.name,
        version=contents.version,
        bom_ref="artifact",
        purl=artifact_purl(contents),
        hashes=_hashes(contents.sha256),
        properties=_properties(file=contents.path.name, tag=contents.tags),
        components=inside,
    )


def _linked(materials: Materials) -> Iterator[Component]:
    """The system's packages whose libraries it needs; libraries nobody owns by themselves."""
    packages: dict[Owner, list[str]] = {}
    for library, owner in materials.owners:
        if owner is not None:
            packages.setdefault(owner, []).append(library)
            continue
        yield Component(
            type=ComponentType.LIBRARY,
            name=library,
            bom_ref=f"library:{library}",
            properties=_properties(role="linked"),
        )
    distribution = materials.system.partition("-")[0] or "linux"
    for owner, libraries in sorted(packages.items()):
        qualifiers = {"arch": owner.architecture, "distro": materials.system}
        yield Component(
            type=ComponentType.LIBRARY,
            name=owner.name,
            version=owner.version,
            bom_ref=f"system:{owner.name}:{owner.architecture}",
            purl=PackageURL("deb", distribution, owner.name, owner.version, qualifiers),
            properties=_properties(role="linked", library=libraries, source=owner.source),
        )


def _required(contents: Contents) -> Iterator[Component]:
    """What it asks to be installed with."""
    for line in sorted(set(contents.requires)):
        name, version, optional = line.split(" ")[0], "", False
        purl = None
        if contents.kind == "wheel":
            try:
                asked = Requirement(line)
            except InvalidRequirement:
                continue
            name = canonicalize_name(asked.name)
            exact = [item.version for item in asked.specifier if item.operator == "=="]
            version = exact[0] if exact and "*" not in exact[0] else ""
            optional = "extra" in str(asked.marker or "")
            purl = PackageURL("pypi", None, name, version or None)
        yield Component(
            type=ComponentType.LIBRARY,
            name=name,
            version=version or None,
            bom_ref=f"requirement:{line}",
            purl=purl,
            scope=ComponentScope.OPTIONAL if optional else ComponentScope.REQUIRED,
            properties=_properties(role="requirement", requirement=line),
        )


def _sources(materials: Materials) -> Iterator[Component]:
    for tree in materials.trees:
        source = tree.origin.source
        ref = source.ref if source is not None else ""
        changes = [item for item in materials.changes if item.project == tree.name]
        yield Component(
            type=ComponentType.LIBRARY,
            name=tree.name,
            version=tree.version or ref or tree.commit or None,
            bom_ref=f"source:{tree.origin.tree}",
            purl=tree.purl,
            hashes=_hashes(tree.digest.get("sha256", "")),
            pedigree=_pedigree(tree, changes),
            properties=_properties(
                role="source",
                kind=tree.kind,
                ref=ref,
                folder=tree.origin.folder,
                **{"tree-sha256": tree.sha256},
            ),
        )
        for part in tree.parts:
            yield _part(part, tree)
    for item in materials.beside:
        yield Component(
            type=ComponentType.LIBRARY,
            name=item.name,
            bom_ref=f"beside:{item.name}",
            hashes=_hashes(item.sha256),
            properties=_properties(role="built against"),
        )


def _part(part: Part, tree: Tree) -> Component:
    return Component(
        type=ComponentType.LIBRARY,
        name=part.name,
        version=part.version or part.commit or None,
        bom_ref=f"part:{tree.origin.tree}/{part.path}",
        purl=part.purl,
        properties=_properties(role="third party", path=part.path),
    )


def _pedigree(tree: Tree, changes: Iterable[Change]) -> Pedigree | None:
    own = list(changes)
    patches = [*(sha256 for _, sha256 in tree.series), *(item.sha256 for item in own)]
    if not tree.commit and not patches:
        return None
    url = XsUri(tree.url) if tree.url else None
    notes = [f"{name} sha256:{sha256}" for name, sha256 in tree.series]
    notes += [
        f"{item.name} sha256:{item.sha256}"
        + (f" lent by {item.lender}" if item.lender else f" {item.why}" if item.why else "")
        for item in own
    ]
    return Pedigree(
        commits=[Commit(uid=tree.commit, url=url)] if tree.commit else None,
        patches=[
            Patch(
                type=PatchClassification.UNOFFICIAL,
                diff=Diff(url=XsUri(f"urn:sha256:{sha256}")),
            )
            for sha256 in patches
        ],
        notes="\n".join(notes) or None,
    )


def _built_with(materials: Materials) -> Iterator[Component]:
    """What was there while it was built, and is not in it."""
    kind, version = materials.compiler
    if kind:
        yield Component(
            type=ComponentType.APPLICATION,
            name=kind,
            version=version or None,
            bom_ref="compiler",
            scope=ComponentScope.EXCLUDED,
            properties=_properties(role="compiler"),
        )
    for name, version in materials.tools:
        yield Component(
            type=ComponentType.APPLICATION,
            name=name,
            version=version,
            bom_ref=f"tool:{name}@{version}",
            purl=PackageURL("pypi", None, name, version),
            scope=ComponentScope.EXCLUDED,
            properties=_properties(role="build tool"),
        )


def inner_bill(plan: Attest, wheel: Path, date: int) -> bytes:
    """Write the bill that travels inside a wheel that was just compiled in this folder (PEP 770).

    What the wheel says of itself elsewhere it leaves out, and what differs between two machines:
    the same inputs still make the same bytes, and finishing the wheel makes none of it wrong.
    """
    name, version, *_ = parse_wheel_filename(wheel.name)
    (subject,) = plan.subjects
    # Named by the project: the folder of a build has the name somebody gave the variant.
    trees = tuple(
        replace(planned_tree(item, read=True), origin=replace(item, tree=item.project))
        if item.tree in subject.trees
        else planned_tree(item, read=False)
        for item in plan.origins
    )
    # A torch that is not built here is no tool, but nothing says better what it was made with.
    torch = (("torch", plan.torch),) if plan.torch else ()
    contents = Contents(
        # A name without tag and label, which may be changed yet.
        path=Path(name),
        kind="wheel",
        name=name,
        version=version.public,
        size=0,
        sha256="",
        files=0,
        unpacked=0,
        libraries=(),
    )
    return bill(
        Materials(
            plan=plan,
            subject=subject,
            contents=contents,
            trees=trees,
            changes=plan.changes,
            beside=(),
            tools=tuple(sorted({*installed(subject.environments), *torch})),
            owners=(),
            system="",
            date=date,
        )
    )
