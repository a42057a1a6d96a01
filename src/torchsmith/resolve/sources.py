"""Deciding where torch's source comes from and which patches it gets."""

from __future__ import annotations

from collections.abc import Mapping

from torchsmith.facts.conditions import Place, holds
from torchsmith.facts.files import Facts, addresses
from torchsmith.facts.models import DebianSource, PatchFact, TorchRelease
from torchsmith.facts.ranges import version_range
from torchsmith.facts.torch import entry_for
from torchsmith.recipe.models import Recipe
from torchsmith.resolve.models import (
    Change,
    Choice,
    CompilerChoice,
    Conflict,
    Evidence,
    PatchChoice,
    SourceChoice,
)
from torchsmith.resolve.toolchain import Decided

TORCH_REPOSITORY = "https://github.com/pytorch/pytorch.git"


def debian_source(facts: Facts, torch: str, suite: str | None) -> DebianSource | None:
    """The source package of a release, in a suite or in any."""
    return next(
        (
            item
            for item in facts.systems.debian
            if item.project == "torch" and item.version == torch and suite in (None, item.suite)
        ),
        None,
    )


def decide_source(
    facts: Facts, recipe: Recipe, release: TorchRelease, decided: Decided
) -> SourceChoice:
    """Choose the source; a tag whose commit we know must point there."""
    source, torch = recipe.source, recipe.torch
    if source.kind == "debian":
        entry = debian_source(facts, release.version, source.suite)
        if entry is None:
            offers = [item for item in facts.systems.debian if item.project == "torch"]
            offered = ", ".join(f"{item.version} ({item.suite})" for item in offers)
            suites = [item.suite for item in offers if item.version == release.version]
            other = Change("source.suite", suites[0]) if suites else Change("source.kind", "git")
            decided.conflicts.append(
                Conflict(
                    "source-debian",
                    f"Debian{f' {source.suite}' if source.suite else ''} has no source package of "
                    f"torch {release.version}",
                    Evidence(f"asked for: torch {release.version} from Debian"),
                    Evidence(
                        f"Debian has {offered}",
                        addresses(facts.systems.sources, facts.systems.debian[0]),
                    ),
                    f"source.suite = '{suites[0]}'; or source.kind = 'git'"
                    if suites
                    else "source.kind = 'git'; or one of these releases",
                    (other,),
                )
            )
            return SourceChoice("debian", suite=source.suite or "", package="pytorch")
        decided.choices.append(
            Choice("source", f"Debian {entry.suite}", "the recipe says so; signed and mirrored")
        )
        known = entry_for(facts.systems.debian_build, release.version)
        return SourceChoice(
            "debian",
            suite=entry.suite,
            package=entry.package,
            ref=entry.version,
            upstream_alone=known is not None and known.upstream_alone,
        )
    if source.kind in ("archive", "folder", "bundle"):
        where = source.url or source.path or ""
        decided.choices.append(Choice("source", f"{source.kind} {where}", "the recipe says so"))
        return SourceChoice(
            source.kind,
            url=source.url or "",
            mirrors=tuple(source.mirrors),
            path=source.path or "",
            sha256=source.sha256 or "",
        )
    ref = torch.ref or release.tag
    commit = torch.commit or ("" if torch.ref else release.commit or "")
    # Who names a commit wants that one and no package of the same release.
    free = source.kind == "auto" and not torch.commit
    fallback = debian_source(facts, release.version, source.suite) if free else None
    reason = "the release's tag" if not torch.ref else "the recipe names the ref"
    if commit:
        reason += f", which must point to {commit[:12]}"
    if fallback is not None:
        reason += f"; where git cannot be reached, Debian {fallback.suite} has the same release"
    decided.choices.append(
        Choice("source", f"git {ref}", reason, addresses(facts.releases.sources, release))
    )
    return SourceChoice(
        "git",
        url=source.url or TORCH_REPOSITORY,
        mirrors=tuple(source.mirrors),
        ref=ref,
        commit=commit,
        suite=fallback.suite if fallback else "",
        package=fallback.package if fallback else "",
    )


def _applies(
    patch: PatchFact,
    version: str,
    board: str,
    cuda: str,
    compiler: CompilerChoice,
    source: str,
    place: Place,
) -> bool:
    if version not in version_range(patch.releases):
        return False
    if patch.boards and board not in patch.boards:
        return False
    if patch.sources and source not in patch.sources:
        return False
    # Debian's source packages come without third_party: the system's own libraries serve.
    if patch.submodule and source == "debian":
        return False
    # A patch does no harm where it is not needed.
    return holds(patch, place, cuda, compiler.kind, compiler.version, unknown=True)


def decide_patches(
    facts: Facts,
    recipe: Recipe,
    versions: Mapping[str, str],
    cuda: str,
    compiler: CompilerChoice,
    source: SourceChoice,
    place: Place,
    files: Mapping[str, bytes],
    decided: Decided,
) -> tuple[PatchChoice, ...]:
    """The patches facts prescribe for these versions, then the recipe's own, in its order."""
    chosen: list[PatchChoice] = []
    for patch in facts.patches.patch:
        version = versions.get(patch.project)
        board = recipe.board or ""
        if version and _applies(patch, version, board, cuda, compiler, source.kind, place):
            content = facts.patch_content(patch)
            chosen.append(
                PatchChoice(
                    patch.file,
                    patch.project,
                    1,
                    content,
                    patch.why,
                    patch.unless or "",
                    patch.only_with or "",
                )
            )
            decided.choices.append(
                Choice(
                    f"patch {patch.project}",
                    patch.file,
                    patch.why,
                    addresses(facts.patches.sources, patch),
                )
            )
    for wish in recipe.patches:
        name = wish.file.rsplit("/", 1)[-1]
        chosen.append(
            PatchChoice(
                name, wish.project, wish.strip, files.get(wish.file, b""), "the recipe's own"
            )
        )
        decided.choices.append(Choice(f"patch {wish.project}", wish.file, "the recipe's own"))
    return tuple(chosen)
