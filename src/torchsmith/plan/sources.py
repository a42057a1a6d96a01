"""The steps that fetch source trees and patch them."""

from __future__ import annotations

import json

from msgspec.structs import replace

from torchsmith.plan.models import Cost, Fetch, Step, Task, digest
from torchsmith.plan.shell import in_project, in_work, plain_name, sh, unless
from torchsmith.resolve.models import (
    CompanionChoice,
    PatchChoice,
    Resolution,
    SourceChoice,
    VendoredChoice,
)


def fetching(source: SourceChoice, folder: str, version: str = "") -> Task:
    """The task that brings a source into a folder."""
    return Task("fetch", Fetch(source, folder, version))


def folder_commands(folder: str, path: str) -> tuple[str, ...]:
    """Commands that copy a folder, so that building does not change the original."""
    return (
        unless(
            f"test -d {in_project(path)}",
            f"there is no folder {path}: PROJECT must be the folder the recipe lies in",
        ),
        sh("rm", "-rf", folder),
        sh("mkdir", "-p", folder),
        f"cp -a {in_project(path)}/. {sh(folder)}",
    )


# How a source is fetched, by its kind; the rest are folders.
_BRINGING = {
    "git": "a shallow clone",
    "debian": "a source package",
    "archive": "a download",
    "sdist": "a download",
}


def bringing(kind: str, seconds: float, disk_mb: int) -> Cost:
    """The cost of fetching a source, and what it rests on."""
    return Cost(
        core_seconds=seconds, disk_mb=disk_mb, basis=_BRINGING.get(kind, "a copy of a folder")
    )


def fetch_torch(resolution: Resolution) -> Step:
    """Bring torch's source."""
    source = resolution.source
    label = resolution.torch
    if source.kind == "git":
        label = plain_name(source.ref)
        if label != source.ref:
            label += f"-{digest(source.ref.encode())[:6]}"
    folder = f"sources/torch-{label.removeprefix('v')}"
    where = {
        "git": f"{source.url} at {source.ref}",
        "debian": f"Debian {source.suite}, source package {source.package}",
        "archive": source.url or source.path,
    }.get(source.kind, source.path)
    return Step(
        id=f"fetch-torch-{label}",
        kind="fetch",
        title=f"Fetch torch {label}",
        why=where,
        project="torch",
        reads=(source.path,) if source.path else (),
        # No fallback: the configuration of one source does not fit another.
        task=fetching(
            replace(source, suite="", package="") if source.kind == "git" else source,
            folder,
            resolution.torch,
        ),
        outputs=(folder,),
        cost=bringing(source.kind, 60, 3000),
        details=(("source", source.kind), ("commit", source.commit or "not pinned")),
    )


def fetch_companion(
    companion: CompanionChoice,
    debian: tuple[str, str] | None = None,
    *,
    instead: tuple[str, str] = ("", ""),
) -> Step:
    """Bring a companion's source: from git, or from the Debian suite torch came from.

    `instead` is the suite and package to use if git cannot be reached. Debian removes nothing from
    a companion's source: without Debian's own part it is upstream's.
    """
    folder = f"sources/{companion.name}-{companion.version}"
    if debian is None:
        repository = companion.repository.removesuffix(".git") + ".git"
        source = SourceChoice(
            "git",
            url=repository,
            ref=companion.tag,
            commit=companion.commit,
            suite=instead[0],
            package=instead[1],
            upstream_alone=bool(instead[0]),
        )
        why = f"{companion.repository} at {companion.tag}"
        if instead[0]:
            why += f"; where it cannot be reached, Debian {instead[0]} has the same release"
    else:
        source = SourceChoice(
            "debian",
            suite=debian[0],
            package=debian[1],
            ref=companion.version,
            upstream_alone=True,
        )
        why = f"Debian {debian[0]}, source package {debian[1]}"
    return Step(
        id=f"fetch-{companion.name}-{companion.version}",
        kind="fetch",
        title=f"Fetch {companion.package} {companion.version}",
        why=why,
        project=companion.name,
        task=fetching(source, folder, companion.version),
        outputs=(folder,),
        cost=bringing(source.kind, 5, 200),
    )


def lender_folder(lender: SourceChoice) -> str:
    """The folder of the files that another source package lends."""
    return f"sources/{plain_name(f'{lender.package}-{lender.ref}')}-lent"


def fetch_lender(lender: SourceChoice) -> Step:
    """Fetch a package that has a few files which torch's own source lacks."""
    folder = lender_folder(lender)
    named = f"{lender.package} {lender.ref}"
    files = "" if lender.files == (".",) else ", ".join(lender.files)
    return Step(
        id=f"fetch-lent-{plain_name(lender.package)}-{lender.ref}",
        kind="fetch",
        title=f"Fetch {files} of {named}" if files else f"Fetch {named}",
        why="torch's source comes without; "
        + {"debian": f"Debian {lender.suite}", "pool": "Debian"}.get(lender.kind, "PyPI")
        + f" has it in {named}"
        + (f": {files}" if files else ""),
        project="torch",
        task=fetching(lender, folder, lender.ref),
        outputs=(folder,),
        cost=Cost(core_seconds=10, disk_mb=1, basis="a source package"),
        details=(("source", lender.kind),),
    )


def patch_files(patches: tuple[PatchChoice, ...]) -> dict[str, bytes]:
    """Names that sort in the order of application and need no quoting, with their content."""
    return {
        f"{number:02}-{plain_name(patch.name)}": patch.content
        for number, patch in enumerate(patches, 1)
    }


def _apply(patch: PatchChoice, name: str, folder: str, origin: str) -> list[str]:
    """Commands that try a patch and then apply it, unless the tree does without."""
    apply = sh("patch", "--directory", folder, "--forward", "--batch", f"--strip={patch.strip}")
    option = f"--input={in_work(name)}"
    commands = [
        unless(f"{apply} --dry-run {option}", f"{patch.name} does not apply to {origin}"),
        f"{apply} --quiet {option}",
    ]
    # Only the fetched tree shows which source it is: a mirror may lack a part of it.
    for path, test, has in ((patch.unless, "-e", "has"), (patch.only_with, "! -e", "has no")):
        if path:
            message = f"{patch.name} is left out: the source {has} {path}"
            where = sh(f"{folder}/{path}")
            body = "; ".join(commands)
            commands = [f"if [ {test} {where} ]; then {sh('echo', message)}; else {body}; fi"]
    return commands


def _vendor(item: VendoredChoice, folder: str) -> list[str]:
    """Commands that copy a lent file to its place, unless the source has its own."""
    lent, target = f"{lender_folder(item.lender)}/{item.file}", f"{folder}/{item.path}"
    lender = f"{item.lender.package} {item.lender.ref}"
    copy = f"if ! [ -e {sh(target)} ]; then {sh('cp', '-R', lent, target)}; fi"
    if item.lender.sha256:
        # The hash of the whole package was checked when it was fetched.
        return [sh("mkdir", "-p", target.rpartition("/")[0]), copy]
    return [
        unless(
            f"echo {sh(f'{item.sha256}  {lent}')} | sha256sum --check --status",
            f"{item.file} of {lender} does not have the hash the facts say",
        ),
        sh("mkdir", "-p", target.rpartition("/")[0]),
        copy,
    ]


def patch_source(
    fetch: Step,
    patches: tuple[PatchChoice, ...],
    files: dict[str, bytes],
    vendored: tuple[VendoredChoice, ...] = (),
    lenders: tuple[Step, ...] = (),
) -> Step:
    """Copy a tree, add lent files to the copy and patch it.

    Each patch is tried before it changes anything.
    """
    series: list[list[str | int]] = []
    for patch in patches:
        conditions = [patch.unless, patch.only_with] if patch.unless or patch.only_with else []
        series.append([patch.name, patch.strip, digest(patch.content), *conditions])
    series += [[item.path, item.sha256] for item in vendored]
    mark = digest(json.dumps(series).encode())[:8]
    named = {
        f"patches/{fetch.project}-{mark}/{name}": content
        for name, content in patch_files(patches).items()
    }
    files.update(named)
    folder = f"{fetch.outputs[0]}-patched-{mark}"
    commands = [sh("rm", "-rf", folder), sh("cp", "-a", fetch.outputs[0], folder)]
    for item in vendored:
        commands += _vendor(item, folder)
    for patch, name in zip(patches, named, strict=True):
        commands += _apply(patch, name, folder, fetch.outputs[0])
    changes = [(patch.name, patch.why) for patch in patches]
    changes += [
        (item.path, f"Debian took it out; {item.lender.package} {item.lender.ref} lends it")
        for item in vendored
    ]
    parts = [(len(patches), "patch", "patches"), (len(vendored), "part lent", "parts lent")]
    counts = [f"{count} {one if count == 1 else many}" for count, one, many in parts if count]
    return Step(
        id=f"{fetch.id.replace('fetch', 'patch', 1)}-{mark}",
        kind="patch",
        title=f"Patch {fetch.project}: {', '.join(counts)}",
        why="a copy of the source, which stays as it came",
        project=fetch.project,
        needs=(fetch.id, *(step.id for step in lenders)),
        inputs=tuple(named),
        commands=tuple(commands),
        outputs=(folder,),
        cost=Cost(core_seconds=10, disk_mb=3000, basis="a copy of the tree"),
        details=tuple(changes),
    )
