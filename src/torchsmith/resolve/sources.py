"""Deciding where torch comes from: its source with patches, or an installation."""

from __future__ import annotations

from collections.abc import Mapping

from torchsmith.facts.conditions import Place, holds
from torchsmith.facts.files import Facts, addresses
from torchsmith.facts.models import DebianBuild, DebianSource, Mode, PatchFact, TorchRelease
from torchsmith.facts.ranges import dotted, release, version_range
from torchsmith.facts.torch import entry_for
from torchsmith.host.models import Host, InstalledTorch
from torchsmith.recipe.models import Recipe
from torchsmith.resolve.models import (
    Case,
    Change,
    CompilerChoice,
    Conflict,
    Evidence,
    InstalledChoice,
    PatchChoice,
    SourceChoice,
)

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


def lacks_libraries(facts: Facts, build: DebianBuild, recipe: Recipe, here: str = "") -> bool:
    """Whether it is built on a distribution older than those Debian's source was built on."""
    known = {item.name: release(item.glibc) for item in facts.systems.system}
    system = recipe.system or here
    # What the makers of boards ship is years behind.
    return bool(recipe.board) or (system in known and known[system] < known[build.oldest])


def decide_source(case: Case, release: TorchRelease) -> SourceChoice:
    """Choose the source; a tag whose commit we know must point there."""
    facts = case.facts
    source, torch = case.recipe.source, case.recipe.torch
    if source.kind == "debian":
        entry = debian_source(facts, release.version, source.suite)
        if entry is None:
            offers = [item for item in facts.systems.debian if item.project == "torch"]
            offered = ", ".join(f"{item.version} ({item.suite})" for item in offers)
            suites = [item.suite for item in offers if item.version == release.version]
            other = Change("source.suite", suites[0]) if suites else Change("source.kind", "git")
            case.refuse(
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
            return SourceChoice("debian", suite=source.suite or "", package="pytorch")
        case.choose("source", f"Debian {entry.suite}", "the recipe says so; signed and mirrored")
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
        case.choose("source", f"{source.kind} {where}", "the recipe says so")
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
    known = entry_for(facts.systems.debian_build, release.version)
    if free and known is not None and not lacks_libraries(facts, known, case.recipe):
        fallback = debian_source(facts, release.version, source.suite)
    else:
        fallback = None
    reason = "the release's tag" if not torch.ref else "the recipe names the ref"
    if commit:
        reason += f", which must point to {commit[:12]}"
    if fallback is not None:
        reason += f"; where git cannot be reached, Debian {fallback.suite} has the same release"
    case.choose("source", f"git {ref}", reason, addresses(facts.releases.sources, release))
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
    features: Mapping[str, Mode],
) -> bool:
    if version not in version_range(patch.releases):
        return False
    if patch.boards and board not in patch.boards:
        return False
    if patch.sources and source not in patch.sources:
        return False
    if patch.without and features.get(patch.without, "off") != "off":
        return False
    # Debian's source packages come without third_party: the system's own libraries serve.
    if patch.submodule and source == "debian":
        return False
    # A patch does no harm where it is not needed.
    return holds(patch, place, cuda, compiler.kind, compiler.version, unknown=True)


def decide_patches(
    case: Case,
    versions: Mapping[str, str],
    cuda: str,
    compiler: CompilerChoice,
    source: SourceChoice,
    place: Place,
    features: Mapping[str, Mode],
    files: Mapping[str, bytes],
) -> tuple[PatchChoice, ...]:
    """The patches facts prescribe for these versions, then the recipe's own, in its order."""
    facts = case.facts
    chosen: list[PatchChoice] = []
    for patch in facts.patches.patch:
        version = versions.get(patch.project)
        board = case.recipe.board or ""
        if version and _applies(
            patch, version, board, cuda, compiler, source.kind, place, features
        ):
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
            case.choose(
                f"patch {patch.project}",
                patch.file,
                patch.why,
                addresses(facts.patches.sources, patch),
            )
    for wish in case.recipe.patches:
        name = wish.file.rsplit("/", 1)[-1]
        chosen.append(
            PatchChoice(
                name, wish.project, wish.strip, files.get(wish.file, b""), "the recipe's own"
            )
        )
        case.choose(f"patch {wish.project}", wish.file, "the recipe's own")
    return tuple(chosen)


def _wheel_instead(recipe: Recipe) -> tuple[Change, ...]:
    named = (Change("torch.environment", ""),) if recipe.torch.environment else ()
    return (*named, Change("torch.use", "wheel"))


def find_installed(recipe: Recipe, python: str, host: Host) -> InstalledTorch | None:
    """The installed torch a variant would use, if it uses one and it was found."""
    if recipe.torch.use != "installed":
        return None
    for item in host.torches:
        if python in ("host", python_of(item)):
            return item
    return None


def decide_installed(
    case: Case, found: InstalledTorch | None, *, python: str, cuda: str, container: bool
) -> InstalledChoice | None:
    """Hold what is installed against the wish; companions are built against nothing else."""
    recipe = case.recipe
    if recipe.torch.use != "installed":
        return None
    if container or (recipe.image is not None and recipe.image.build == "inside"):
        case.conflicts.append(_in_an_image(recipe))
    if found is None:
        case.conflicts.append(_none_found(recipe, python))
        return None
    wanted = recipe.torch.version or case.torch
    version = found.version if recipe.torch.version else found.version.partition("+")[0]
    if version != wanted:
        case.conflicts.append(_another_version(found, wanted))
    if cuda and not f"{found.cuda}.".startswith(f"{cuda}."):
        case.conflicts.append(_another_cuda(found, cuda))
    if not cuda and found.cuda:
        case.caution(
            f"the installed torch is built with CUDA {found.cuda}, and the recipe asks for "
            "none: what is built against it runs on the CPU only",
            f"cuda = '{'.'.join(found.cuda.split('.')[:2])}' in the recipe",
        )
    case.choose("torch", found.version, f"installed in {found.module}; it stays as it is")
    return InstalledChoice(
        found.version,
        found.path,
        found.module,
        found.packages,
        found.evidence,
        tuple(found.beside.items()),
    )


def python_of(found: InstalledTorch) -> str:
    """Its Python as recipes write it: 3.11, or 3.13t."""
    return dotted(release(found.python)[:2]) + ("t" if found.free_threaded else "")


def _none_found(recipe: Recipe, python: str) -> Conflict:
    where = recipe.torch.environment or (
        "this environment" if python == "host" else f"the environment of python{python}"
    )
    return Conflict(
        "installed-torch",
        f"no torch is installed in {where}",
        Evidence("asked for: torch.use = 'installed'"),
        Evidence(f"import torch finds nothing in {where}"),
        "torch.environment = the folder of the environment that has it; or torch.use = 'wheel'",
        _wheel_instead(recipe),
    )


def _another_version(found: InstalledTorch, wanted: str) -> Conflict:
    public = found.version.partition("+")[0]
    return Conflict(
        "installed-version",
        f"the installed torch is {found.version}, not {wanted}",
        Evidence(f"asked for: torch {wanted}, installed"),
        Evidence(f"torch {found.version} lies in {found.module}"),
        f"torch {public}; or torch.use = 'wheel'",
    )


def _another_cuda(found: InstalledTorch, cuda: str) -> Conflict:
    has = f"CUDA {found.cuda}" if found.cuda else "no CUDA"
    version = ".".join(found.cuda.split(".")[:2]) if found.cuda else "none"
    return Conflict(
        "installed-cuda",
        f"the installed torch has {has}, not CUDA {cuda}",
        Evidence(f"asked for: CUDA {cuda}, and torch.use = 'installed'"),
        Evidence(f"torch {found.version} in {found.module} has {has}"),
        f"cuda = '{version}'; or torch.use = 'wheel'",
    )


def _in_an_image(recipe: Recipe) -> Conflict:
    return Conflict(
        "installed-image",
        "an installed torch cannot be used inside an image",
        Evidence("asked for: torch.use = 'installed'"),
        Evidence("the build runs in an image, where nothing of this machine is installed"),
        "torch.use = 'wheel'; or leave system and image out",
        _wheel_instead(recipe),
    )
