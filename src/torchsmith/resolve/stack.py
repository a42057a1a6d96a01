"""A stack: packages that are compiled against one torch, each at a release that takes the rest."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import combinations

from torchsmith.facts.cuda import arch_number
from torchsmith.facts.files import Facts, addresses
from torchsmith.facts.models import LibraryRelease, StackPackage, StackRelease
from torchsmith.facts.ranges import python_release, version_range
from torchsmith.facts.torch import (
    companion_for,
    companion_project,
    companion_releases,
    companion_sources,
    entry_for,
    releases,
    stack_package,
    wheel_cudas,
)
from torchsmith.recipe.models import Recipe
from torchsmith.resolve.combination import Clash, Combination
from torchsmith.resolve.models import (
    Choice,
    Conflict,
    CudaChoice,
    Evidence,
    ExtensionChoice,
)
from torchsmith.resolve.toolchain import Decided


def asked_stack(facts: Facts, recipe: Recipe) -> dict[str, str]:
    """The packages of a stack with the release asked for, what each imports before it."""
    own = {item.package: item.name for item in facts.companions.project}
    found: dict[str, str] = {}

    def add(name: str, wish: str) -> None:
        known = stack_package(facts, name)
        for used in known.uses if known is not None else ():
            add(used, recipe.stack.get(used, "match"))
        found.setdefault(own.get(name, name), wish)

    for name, wish in recipe.stack.items():
        add(name, wish)
    return found


def stack_rule(facts: Facts, asked: Combination) -> Iterator[Clash]:
    """Whether each package takes this Python, CUDA and GPU, and all of them one torch."""
    for name, wish in asked.companions:
        package = stack_package(facts, name)
        if package is not None and (entry := stack_release(facts, name, wish, asked.torch)):
            yield from _package_clashes(facts, package, entry, asked)
    for first, second in combinations(asked.companions, 2):
        yield from _apart(facts, first, second)


def stack_release(facts: Facts, name: str, wish: str, torch: str) -> StackRelease | None:
    """The release of a package that is meant, if it is known."""
    found = (
        companion_for(facts, name, torch)
        if wish == "match"
        else next((item for item in companion_releases(facts, name) if item.version == wish), None)
    )
    return found if isinstance(found, StackRelease) else None


def _package_clashes(
    facts: Facts, package: StackPackage, entry: StackRelease, asked: Combination
) -> Iterator[Clash]:
    title = f"{package.name} {entry.version}"
    source = addresses(facts.stack.sources, entry)

    def clash(side: str, kind: str, message: str, wish: str, fact: str, cure: str = "") -> Clash:
        conflict = Conflict(f"stack-{kind}", message, Evidence(wish), Evidence(fact, source), cure)
        return Clash(conflict, (side, "companions"), package.name)

    python = asked.python
    if python and python_release(python) not in version_range(entry.python):
        yield clash(
            "python",
            "python",
            f"{title} does not take Python {python}",
            f"asked for: Python {python}",
            f"{title} takes Python {version_range(entry.python)}",
        )
    if package.needs_cuda and not asked.cuda:
        cudas = wheel_cudas(facts, asked.torch, asked.platform)
        yield clash(
            "cuda",
            "cuda",
            f"{title} is compiled for GPUs only, and there is no CUDA in this build",
            "asked for: no CUDA",
            f"{title}'s own setup asks for nvcc",
            f"cuda = '{cudas[-1]}'" if cudas else "",
        )
    elif asked.cuda and asked.cuda not in version_range(entry.cuda):
        yield clash(
            "cuda",
            "cuda",
            f"{title} does not build with CUDA {asked.cuda}",
            f"asked for: CUDA {asked.cuda}",
            f"{title} builds with CUDA {version_range(entry.cuda)}",
        )
    cxx = entry_for(facts.torch.cxx, asked.torch)
    if cxx is not None and cxx.strict and (package.standard or cxx.standard) < cxx.standard:
        headers = addresses(facts.torch.sources, cxx)
        yield Clash(
            Conflict(
                "stack-standard",
                f"{title} does not compile with torch {asked.torch}",
                Evidence(f"{package.name}'s setup asks for C++{package.standard}", source),
                Evidence(f"torch {asked.torch}'s headers take C++{cxx.standard} alone", headers),
            ),
            ("torch", "companions"),
            package.name,
        )
    for arch in (text.removesuffix("+PTX") for text in asked.archs if asked.cuda):
        oldest = entry.oldest_arch
        if oldest is not None and arch_number(arch)[:2] < arch_number(oldest)[:2]:
            covered = f"{oldest} and newer"
        elif entry.archs and arch.rstrip("af") not in entry.archs:
            covered = f"{', '.join(entry.archs)} alone"
        else:
            continue
        yield clash(
            "archs",
            "gpu",
            f"{title} has no code for compute capability {arch}",
            f"asked for: compute capability {arch}",
            f"{title} is for {covered}",
        )


@cache
def _apart(facts: Facts, first: tuple[str, str], second: tuple[str, str]) -> tuple[Clash, ...]:
    """Two packages that no torch takes together: each by itself would be a riddle."""
    if {first[1], second[1]} == {"match"} or not (
        stack_package(facts, first[0]) or stack_package(facts, second[0])
    ):
        return ()
    meant = [_meant(facts, *item) for item in (first, second)]
    both = [
        item.version
        for item in releases(facts)
        if all(any(item.version in version_range(one.torch) for one in some) for some in meant)
    ]
    if both or not all(meant):
        return ()
    told = [
        Evidence(
            f"{_title(facts, *item)} takes torch "
            + " or ".join(dict.fromkeys(str(version_range(one.torch)) for one in some)),
            addresses(companion_sources(facts, item[0]), some[-1]),
        )
        for item, some in zip((first, second), meant, strict=True)
    ]
    message = f"{_title(facts, *first)} and {_title(facts, *second)} take no torch in common"
    return (Clash(Conflict("stack-apart", message, told[0], told[1]), ("companions",), second[0]),)


def _meant(facts: Facts, name: str, wish: str) -> tuple[LibraryRelease, ...]:
    every = companion_releases(facts, name)
    return tuple(item for item in every if wish in ("match", item.version))


def _title(facts: Facts, name: str, wish: str) -> str:
    package = companion_project(facts, name).package
    return package if wish == "match" else f"{package} {wish}"


def decide_stack(
    facts: Facts,
    recipe: Recipe,
    asked: tuple[tuple[str, str], ...],
    torch: str,
    cuda: CudaChoice | None,
    decided: Decided,
) -> tuple[ExtensionChoice, ...]:
    """The packages of a stack as extensions, each with how its own setup is called."""
    chosen: list[ExtensionChoice] = []
    for name, wish in asked:
        package = stack_package(facts, name)
        if package is None:
            continue
        entry = stack_release(facts, name, wish, torch)
        assert entry is not None, name
        needed = next((item for item, _ in asked if _uses(facts, item, name)), "")
        reason = f"the newest that takes torch {torch}" if wish == "match" else "asked for"
        if name not in recipe.stack:
            reason = f"{needed} imports it"
        decided.choices.append(
            Choice(name, entry.version, reason, addresses(facts.stack.sources, entry))
        )
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
                uses=tuple(package.uses),
                jobs=package.jobs,
                network=package.network,
                edit=package.cuda_edit if cuda else "",
                own_archs=package.own_archs,
            )
        )
    return tuple(chosen)


def _uses(facts: Facts, name: str, other: str) -> bool:
    package = stack_package(facts, name)
    return package is not None and other in package.uses


def _env(package: StackPackage, cuda: CudaChoice | None) -> dict[str, str]:
    if cuda is None:
        return package.env
    archs = [arch.arch for arch in cuda.archs]
    majors = dict.fromkeys(f"{arch.partition('.')[0]}0" for arch in archs)
    told = {"archs": ";".join(archs), "majors": ";".join(majors)}
    return {
        **package.env,
        **{name: value.format(**told) for name, value in package.cuda_env.items()},
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
