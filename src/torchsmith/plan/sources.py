"""The steps that bring source trees."""

from __future__ import annotations

from msgspec.structs import replace

from torchsmith.plan.models import Cost, Fetch, Step, Task, digest
from torchsmith.plan.shell import in_project, plain_name, sh, unless
from torchsmith.resolve.models import CompanionChoice, Resolution, SourceChoice


def fetching(source: SourceChoice, folder: str, version: str = "") -> Task:
    """The task that brings a source into a folder."""
    return Task("fetch", Fetch(source, folder, version))


def folder_commands(folder: str, path: str) -> tuple[str, ...]:
    """A copy of a folder, so that building leaves the original as it is."""
    return (
        unless(
            f"test -d {in_project(path)}",
            f"there is no folder {path}: PROJECT must be the folder the recipe lies in",
        ),
        sh("rm", "-rf", folder),
        sh("mkdir", "-p", folder),
        f"cp -a {in_project(path)}/. {sh(folder)}",
    )


# What bringing a source is, by its kind; the rest are folders.
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
        # The configuration of one source does not fit another: no falling back from here.
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

    `instead` is the suite and package that serve where git cannot be reached. Debian takes
    nothing out of a companion's source: where its own part is missing, it is upstream's.
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
    """Where the files lie that another source package lends."""
    return f"sources/{plain_name(f'{lender.package}-{lender.ref}')}-lent"


def fetch_lender(lender: SourceChoice) -> Step:
    """Bring a package for the few files of it that torch's own source lacks."""
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
