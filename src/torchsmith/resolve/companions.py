"""Deciding what is built beside torch: companions, stacks, extensions, MAGMA."""

from __future__ import annotations

import re

from torchsmith.facts.cuda import archs_of, compiles
from torchsmith.facts.files import Facts, addresses
from torchsmith.facts.gpus import find_gpu
from torchsmith.facts.models import (
    CompanionFormat,
    CompanionRelease,
    LibraryRelease,
    MagmaRelease,
    StackPackage,
)
from torchsmith.facts.ranges import release, version_range
from torchsmith.facts.torch import companion_for, companion_releases, stack_package
from torchsmith.recipe.gpus import gpu_wish
from torchsmith.recipe.models import Recipe
from torchsmith.recipe.values import BRANCH
from torchsmith.resolve.combination import Combination
from torchsmith.resolve.models import (
    Arch,
    Case,
    Caution,
    Change,
    CompanionChoice,
    Conflict,
    CudaChoice,
    Evidence,
    ExtensionChoice,
    FormatChoice,
    MagmaChoice,
    SourceChoice,
)
from torchsmith.resolve.rules import stack_release


def asked_companions(case: Case) -> tuple[tuple[str, str], ...]:
    """The companions with the release asked for; 0.18 is the newest 0.18 that goes with torch."""
    recipe = case.recipe
    branches = _branches(recipe)
    every = {
        **asked_stack(case.facts, recipe),
        **{
            name: "match" if name in branches else wish
            for name, wish in _wishes(recipe)
            if wish != "none"
        },
    }
    return tuple(
        (name, wish if wish == "match" else _in_full(case.facts, name, wish, case.torch))
        for name, wish in every.items()
    )


def _wishes(recipe: Recipe) -> tuple[tuple[str, str], ...]:
    wanted = recipe.companions
    return (
        ("vision", wanted.vision),
        ("audio", wanted.audio),
        ("text", wanted.text),
        ("codec", wanted.codec),
    )


def _branches(recipe: Recipe) -> dict[str, str]:
    """The branches and commits asked for, by companion: built as the release that matches."""
    return {name: wish for name, wish in _wishes(recipe) if re.fullmatch(BRANCH.pattern, wish)}


def _in_full(facts: Facts, name: str, wish: str, torch: str) -> str:
    every = companion_releases(facts, name)
    meant = [item for item in every if f"{item.version}.".startswith(f"{wish}.")]
    if not meant or any(item.version == wish for item in meant):
        return wish
    fitting = [item for item in meant if torch in version_range(item.torch)]
    return (fitting or meant)[-1].version


def decide_companions(
    case: Case, asked: tuple[tuple[str, str], ...], python: str
) -> tuple[CompanionChoice, ...]:
    """The companions in full, once it is known that they go with torch."""
    facts, torch = case.facts, case.torch
    chosen: list[CompanionChoice] = []
    branches = _branches(case.recipe)
    for name, wish in asked:
        project = next((item for item in facts.companions.project if item.name == name), None)
        if project is None:
            continue
        entry = (
            companion_for(facts, name, torch)
            if wish == "match"
            else next(i for i in companion_releases(facts, name) if i.version == wish)
        )
        assert entry is not None, name
        if torch not in version_range(entry.torch):
            case.cautions.append(_unmatched(facts, project.package, entry, torch))
        newest = entry.newest_python if isinstance(entry, CompanionRelease) else None
        if newest and release(python.rstrip("t")) > release(newest):
            case.caution(
                f"{project.package} {entry.version} was published for nothing newer than "
                f"Python {newest}: it may not compile, or not work",
                f"python = '{newest}'",
                "unknown",
                addresses(facts.companions.sources, entry),
            )
        case.choose(
            project.package,
            entry.version,
            f"{'the release' if wish == 'match' else 'asked for; it is'} built against torch "
            f"{version_range(entry.torch)}",
            addresses(facts.companions.sources, entry),
        )
        branch = branches.get(name, "")
        if branch:
            case.caution(
                f"{branch} of {project.package} is built as {entry.version}, the release for "
                f"torch {torch}: what is on it may need another torch",
                f"companions.{name} = 'match'",
            )
        formats, switches = _formats(case, name, entry.version)
        chosen.append(
            CompanionChoice(
                name,
                project.package,
                entry.version,
                branch or entry.tag,
                project.repository,
                "" if branch else entry.commit or "",
                formats,
                (*project.env.items(), *switches),
            )
        )
    return tuple(chosen)


def _unmatched(facts: Facts, package: str, entry: LibraryRelease, torch: str) -> Caution:
    right = companion_for(facts, entry.name, torch)
    return Caution(
        f"{package} {entry.version} was made for torch {version_range(entry.torch)}, not {torch}: "
        "it may not compile, or not work",
        f"companions.{entry.name} = '{right.version}', the release for torch {torch}"
        if right
        else "another torch",
    )


def _formats(
    case: Case, name: str, version: str
) -> tuple[tuple[FormatChoice, ...], tuple[tuple[str, str], ...]]:
    """What it must read, and the switches that say so; none where nobody said anything."""
    asked = case.recipe.companions.vision_formats if name == "vision" else []
    if not asked:
        return (), ()
    known = [item for item in case.facts.companions.format if item.project == name]
    for item in known:
        if item.name in asked and version not in version_range(item.releases):
            case.conflicts.append(_no_such_format(case.facts, item, version))
    chosen = tuple(
        FormatChoice(item.name, item.header, item.program, item.symbol, item.apt)
        for item in known
        if item.name in asked
    )
    return chosen, tuple((item.switch, str(int(item.name in asked))) for item in known)


def _no_such_format(facts: Facts, item: CompanionFormat, version: str) -> Conflict:
    return Conflict(
        "vision-format",
        f"torchvision {version} does not read {item.name.upper()} by itself",
        Evidence(f"asked for: companions.vision_formats with {item.name!r}"),
        Evidence(
            f"torchvision {version_range(item.releases)} does",
            addresses(facts.companions.sources, item),
        ),
        "leave companions.vision_formats out: older releases read images through Pillow",
    )


def extension_choices(recipe: Recipe) -> tuple[ExtensionChoice, ...]:
    """The recipe's own libraries, as they are."""
    return tuple(
        ExtensionChoice(
            item.name,
            sdist=item.sdist or "",
            sha256=item.sha256 or "",
            git_url=item.git.url if item.git else "",
            git_ref=item.git.ref if item.git else "",
            folder=item.folder or "",
            env=tuple(item.env.items()),
            check=item.check or "",
        )
        for item in recipe.companions.extension
    )


def decide_magma(
    case: Case, cuda: CudaChoice | None, torch_source: SourceChoice
) -> MagmaChoice | None:
    """MAGMA as a package of its own, for the CUDA of this build."""
    facts, recipe = case.facts, case.recipe
    if not recipe.packages.magma:
        return None
    known = [
        item for item in facts.patches.magma if cuda and cuda.version in version_range(item.cuda)
    ]
    if cuda is None or not known:
        missing = "there is no CUDA in this build"
        if cuda is not None:
            missing = f"no MAGMA is known for CUDA {cuda.version}"
        case.caution(
            f"packages.magma is asked for, but {missing}",
            "another cuda version, or packages.magma = false",
        )
        return None
    entry = known[0]
    archs = list(entry.archs)
    if recipe.packages.magma_gpus:
        wishes = [gpu_wish(text) for text in recipe.packages.magma_gpus]
        named = [find_gpu(facts, wish.name) if wish.name else None for wish in wishes]
        archs = [gpu.arch if gpu else wish.arch for gpu, wish in zip(named, wishes, strict=True)]
        usable = [item.arch for item in archs_of(facts, cuda.version)]
        for arch in archs:
            if not compiles(facts, cuda.version, arch):
                case.conflicts.append(_magma_conflict(facts, cuda.version, arch, usable))
    case.choose(
        "MAGMA",
        entry.version,
        f"the release for CUDA {cuda.version}",
        addresses(facts.patches.sources, entry),
    )
    return MagmaChoice(
        entry.version,
        entry.url,
        entry.sha256,
        f"magma-cuda{cuda.short}",
        tuple(Arch(arch).number for arch in archs),
        _magma_source(case, entry, torch_source),
    )


def _magma_source(case: Case, entry: MagmaRelease, torch_source: SourceChoice) -> SourceChoice:
    """Upstream's archive; the recipe's own; or Debian's, where torch's source is Debian's too."""
    if path := case.recipe.packages.magma_archive:
        case.choose("MAGMA's source", path, "the recipe says so")
        return SourceChoice("archive", path=path, sha256=case.recipe.packages.magma_sha256 or "")
    if torch_source.kind == "debian":
        for item in case.facts.systems.debian:
            if (item.project, item.suite) != ("magma", torch_source.suite):
                continue
            if item.version == entry.version:
                case.choose(
                    "MAGMA's source", f"Debian {item.suite}", "torch's comes from there too"
                )
                return SourceChoice(
                    "debian",
                    suite=item.suite,
                    package=item.package,
                    ref=item.version,
                    upstream_alone=True,
                )
    return SourceChoice("archive", url=entry.url, sha256=entry.sha256)


def _magma_conflict(facts: Facts, cuda: str, arch: str, usable: list[str]) -> Conflict:
    return Conflict(
        "magma-arch",
        f"CUDA {cuda} cannot compile MAGMA for {arch or 'that GPU'}",
        Evidence(f"asked for: packages.magma_gpus with {arch or 'native'}"),
        Evidence(f"CUDA {cuda} compiles for {', '.join(usable)}", facts.cuda.sources["ptx"].url),
        "compute capabilities from that list; or leave packages.magma_gpus out",
        (Change("packages.magma_gpus", ""),),
    )


def asked_stack(facts: Facts, recipe: Recipe) -> dict[str, str]:
    """The packages of a stack with the release asked for, what each imports before it."""
    own = _own_names(facts)
    found: dict[str, str] = {}

    def add(name: str, wish: str) -> None:
        known = stack_package(facts, name)
        for used in known.uses if known is not None else ():
            add(used, recipe.stack.get(used, "match"))
        found.setdefault(own.get(name, name), wish)

    for name, wish in recipe.stack.items():
        add(name, wish)
    return found


def _own_names(facts: Facts) -> dict[str, str]:
    """What a companion is called in a plan, by the name of its package."""
    return {item.package: item.name for item in facts.companions.project}


def decide_stack(
    case: Case, asked: Combination, cuda: CudaChoice | None
) -> tuple[ExtensionChoice, ...]:
    """The packages of a stack as extensions, each with how its own setup is called."""
    facts = case.facts
    own = _own_names(facts)
    chosen: list[ExtensionChoice] = []
    for name, wish in asked.companions:
        package = stack_package(facts, name)
        if package is None:
            continue
        entry = stack_release(facts, name, wish, asked)
        assert entry is not None, name
        known = ((item, stack_package(facts, item)) for item, _ in asked.companions)
        needed = next((item for item, other in known if other and name in other.uses), "")
        reason = "asked for"
        if wish == "match":
            reason = f"the newest that takes torch {case.torch} and the rest of the recipe"
        if name not in case.recipe.stack:
            reason = f"{needed} imports it"
        case.choose(name, entry.version, reason, addresses(facts.stack.sources, entry))
        git = bool(entry.tag)
        chosen.append(
            ExtensionChoice(
                name,
                sdist="" if git else f"{name}=={entry.version}",
                sha256=entry.sha256 or "",
                git_url=package.repository if git else "",
                git_ref=entry.commit or entry.tag if git else "",
                env=tuple(_env(package, cuda).items()),
                check=_check(package),
                requires=tuple(package.requires),
                uses=tuple(own.get(used, used) for used in package.uses),
                jobs=package.jobs,
                network=package.network,
                edit=package.cuda_edit if cuda else "",
                own_archs=package.own_archs,
            )
        )
    return tuple(chosen)


def _env(package: StackPackage, cuda: CudaChoice | None) -> dict[str, str]:
    if cuda is None:
        return package.env
    archs = [arch.arch for arch in cuda.archs]
    majors = dict.fromkeys(f"{arch.partition('.')[0]}0" for arch in archs)
    numbers = [arch.number for arch in cuda.archs]
    values = {"archs": ";".join(archs), "majors": ";".join(majors), "numbers": ";".join(numbers)}
    return {
        **package.env,
        **{name: value.format(**values) for name, value in package.cuda_env.items()},
    }


def _check(package: StackPackage) -> str:
    if not package.gpu_check:
        return package.check
    gpu = f"exec({package.gpu_check!r}) if torch.cuda.is_available() else None"
    return f"{package.check}; {gpu}"


def build_packages(facts: Facts, extensions: tuple[ExtensionChoice, ...]) -> list[str]:
    """What pip installs before any of them is built."""
    known = [stack_package(facts, item.name) for item in extensions]
    return [text for package in known if package is not None for text in package.build]
