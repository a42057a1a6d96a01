"""The rules of what is built: torch with Python, CUDA, GPUs, cuDNN and companions."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import combinations

from torchsmith.facts.cuda import (
    arch_number,
    compiles,
    find_arch,
    find_toolkit,
    renamed_arch,
    runs_on,
)
from torchsmith.facts.files import Facts, addresses
from torchsmith.facts.models import Cudnn, LibraryRelease, StackPackage, StackRelease, TorchCuda
from torchsmith.facts.ranges import python_release, release, version_range
from torchsmith.facts.torch import (
    companion_for,
    companion_project,
    companion_releases,
    companion_sources,
    entry_for,
    find_release,
    patched_cuda,
    published_archs,
    releases,
    stack_package,
    wheel_cudas,
    wheel_pythons,
)
from torchsmith.recipe.gpus import split_arch_list
from torchsmith.resolve.combination import Clash, Combination, Rule, with_companion
from torchsmith.resolve.models import Conflict, Evidence, Standing


def python_rule(facts: Facts, asked: Combination) -> Iterator[Clash]:
    """Whether this Python goes with this torch."""
    if asked.python:
        yield from _python_torch(facts, asked.torch, asked.python)


@cache
def _python_torch(facts: Facts, torch: str, python: str) -> tuple[Clash, ...]:
    known = find_release(facts, torch)
    if known is None or not known.pythons or python in (*known.pythons, *known.experimental):
        return ()
    oldest, newest = known.pythons[0], known.pythons[-1].removesuffix("t")
    standing: Standing = "impossible"
    if python_release(python) < (3,):
        why = "Python 2 is past its end, and torchsmith builds for Python 3 only"
    elif python_release(python) < python_release(oldest):
        why = f"torch {torch} needs Python {oldest} or newer"
    elif python_release(python) > python_release(newest):
        standing = "unknown"
        why = f"torch {torch} was published for nothing newer than Python {newest}"
    else:
        standing = "unknown"
        why = f"torch {torch} was not published for the free-threaded Python {python}"
    conflict = Conflict(
        "python-torch",
        f"Python {python} and torch {torch} do not go together: {why}",
        Evidence(f"asked for: Python {python}"),
        Evidence(
            f"torch {torch} was published for CPython {', '.join(known.pythons)}",
            addresses(facts.releases.sources, known),
        ),
        standing=standing,
    )
    return (Clash(conflict, ("python", "torch")),)


def cuda_rule(facts: Facts, asked: Combination) -> Iterator[Clash]:
    """Whether the toolkit exists, and this torch builds with it."""
    if asked.cuda and not (asked.from_source and patched_cuda(facts, asked.torch, asked.cuda)):
        yield from _cuda_torch(facts, asked.torch, asked.cuda)


@cache
def _cuda_torch(facts: Facts, torch: str, cuda: str) -> tuple[Clash, ...]:
    if find_toolkit(facts, cuda) is None:
        known = ", ".join(item.version for item in facts.cuda.toolkit)
        conflict = Conflict(
            "cuda-unknown",
            f"there is no CUDA toolkit {cuda} that we know of",
            Evidence(f"asked for: CUDA {cuda}"),
            Evidence(f"toolkits known: {known}", facts.cuda.sources["archive"].url),
            standing="unknown",
        )
        return (Clash(conflict, ("cuda",)),)
    entry = entry_for(facts.torch.cuda, torch)
    if entry is None or builds_with(entry, cuda):
        return ()
    because = f". {entry.note.rstrip('.')}" if entry.note else ""
    standing: Standing = "impossible"
    if entry.fails and cuda in version_range(entry.fails):
        standing = "fails"
    elif release(cuda) > (version_range(entry.value).high or ()):
        standing = "unknown"
    conflict = Conflict(
        "cuda-torch",
        f"torch {torch} is not known to build with CUDA {cuda}"
        if standing == "unknown"
        else f"torch {torch} does not build with CUDA {cuda}",
        Evidence(f"asked for: CUDA {cuda}"),
        Evidence(
            f"torch {torch} builds with CUDA {version_range(entry.value)}{because}",
            addresses(facts.torch.sources, entry),
        ),
        standing=standing,
    )
    return (Clash(conflict, ("cuda", "torch")),)


def builds_with(entry: TorchCuda, cuda: str) -> bool:
    """Whether upstream builds with this toolkit, or it may at least be tried."""
    spans = (entry.value, entry.works, entry.unknown)
    return any(cuda in version_range(span) for span in spans if span)


def wheel_rule(facts: Facts, asked: Combination) -> Iterator[Clash]:
    """Whether PyTorch publishes this release there, for this CUDA, with code for these GPUs."""
    known = find_release(facts, asked.torch)
    if not asked.published or known is None:
        return
    if not wheel_pythons(known, asked.platform):
        conflict = Conflict(
            "wheel-platform",
            f"no wheel of torch {asked.torch} is published for {asked.platform}",
            Evidence(f"asked for: the published wheel, and platform = {asked.platform!r}"),
            Evidence(
                f"torch {asked.torch} has no wheels for {asked.platform}",
                addresses(facts.releases.sources, known),
            ),
            "torch.use = 'source'",
        )
        yield Clash(conflict, ("torch",))
        return
    if not (asked.cuda and find_toolkit(facts, asked.cuda)):
        return
    cudas = wheel_cudas(facts, asked.torch, asked.platform)
    own = Evidence(f"asked for: the published wheel with CUDA {asked.cuda}")
    if asked.cuda not in cudas:
        conflict = Conflict(
            "wheel-cuda",
            f"no wheel of torch {asked.torch} with CUDA {asked.cuda} is published for "
            f"{asked.platform}",
            own,
            Evidence(
                f"torch {asked.torch} is published there for CUDA {', '.join(cudas)}"
                if cudas
                else f"torch {asked.torch} is published there without CUDA only",
                facts.torch.sources["index"].url,
            ),
            "torch.use = 'source'",
        )
        yield Clash(conflict, ("cuda", "torch"))
        return
    entry = published_archs(facts, asked.torch, asked.cuda, asked.platform)
    codes = split_arch_list(entry.archs) if entry is not None else []
    for arch in (text.removesuffix("+PTX") for text in asked.gpus if codes):
        if any(
            runs_on(arch, code.removesuffix("+PTX"), ptx=code.endswith("+PTX")) for code in codes
        ):
            continue
        conflict = Conflict(
            "wheel-gpu",
            f"the published wheel of torch {asked.torch} with CUDA {asked.cuda} has no code for "
            f"compute capability {arch}",
            Evidence(f"asked for: compute capability {arch}, and the published wheel"),
            Evidence(
                f"it is compiled for {', '.join(codes)}", addresses(facts.torch.sources, entry)
            ),
            "torch.use = 'source'",
        )
        yield Clash(conflict, ("cuda", "torch"), arch)


def wheel_python_rule(facts: Facts, asked: Combination) -> Iterator[Clash]:
    """Whether the published wheels of this platform are for this Python, as others may be."""
    known = find_release(facts, asked.torch)
    if not asked.published or known is None or asked.python not in known.pythons:
        return
    pythons = wheel_pythons(known, asked.platform)
    if pythons and asked.python not in pythons:
        conflict = Conflict(
            "wheel-python",
            f"no wheel of torch {asked.torch} for Python {asked.python} is published for "
            f"{asked.platform}",
            Evidence(f"asked for: the published wheel, and Python {asked.python}"),
            Evidence(
                f"on {asked.platform} torch {asked.torch} was published for CPython "
                f"{', '.join(pythons)}",
                addresses(facts.releases.sources, known),
            ),
            "torch.use = 'source'",
        )
        yield Clash(conflict, ("python", "torch"))


def arch_rule(facts: Facts, asked: Combination) -> Iterator[Clash]:
    """Whether CUDA can compile for every GPU, and torch knows it."""
    own = next((item.arch for item in facts.boards.board if item.name == asked.board), "")
    for arch in (text.removesuffix("+PTX") for text in asked.archs if asked.cuda):
        if find_arch(facts, arch) is None:
            yield _arch_unknown(facts, arch)
            continue
        yield from _arch_cuda(facts, asked.cuda, arch)
        yield from _arch_torch(
            facts, asked.torch, arch, alone=not asked.companions, board=arch == own
        )


def _arch_unknown(facts: Facts, arch: str) -> Clash:
    listed = ", ".join(item.arch for item in facts.cuda.arch)
    conflict = Conflict(
        "arch-unknown",
        f"no GPU that we know of has compute capability {arch}",
        Evidence(f"asked for: compute capability {arch}"),
        Evidence(f"compute capabilities known: {listed}", facts.cuda.sources["ptx"].url),
        standing="unknown",
    )
    return Clash(conflict, ("archs",), arch)


@cache
def _arch_cuda(facts: Facts, cuda: str, arch: str) -> tuple[Clash, ...]:
    known = find_arch(facts, arch)
    if known is None or find_toolkit(facts, cuda) is None or compiles(facts, cuda, arch):
        return ()
    other = renamed_arch(cuda, arch)
    also = f"; there it is called {other}" if other != arch else ""
    conflict = Conflict(
        "arch-cuda",
        f"CUDA {cuda} cannot compile for compute capability {arch} ({known.family}){also}",
        Evidence(f"asked for: compute capability {arch}"),
        Evidence(
            f"{arch} ({known.family}) needs CUDA {version_range(known.cuda)}",
            addresses(facts.cuda.sources, known),
        ),
    )
    return (Clash(conflict, ("cuda", "archs"), arch),)


@cache
def _arch_torch(
    facts: Facts, torch: str, arch: str, *, alone: bool, board: bool
) -> tuple[Clash, ...]:
    known = find_arch(facts, arch)
    entry = entry_for(facts.torch.archs, torch)
    if known is None or entry is None or arch in entry.known:
        return ()
    if (alone and arch in entry.torch_alone) or (board and arch in entry.boards):
        return ()
    conflict = Conflict(
        "arch-torch",
        f"torch {torch} does not know compute capability {arch} ({known.family})",
        Evidence(f"asked for: compute capability {arch}"),
        Evidence(
            f"torch {torch} knows {', '.join(entry.known)}",
            addresses(facts.torch.sources, entry),
        ),
    )
    # With another CUDA, Thor has another name.
    renamed = arch != renamed_arch("12", arch) or arch != renamed_arch("13", arch)
    return (Clash(conflict, ("torch", *(("cuda",) if renamed else ()), "archs"), arch),)


def cudnn_rule(facts: Facts, asked: Combination) -> Iterator[Clash]:
    """Whether cuDNN goes with torch and with CUDA."""
    if asked.cuda and asked.cudnn:
        yield from cudnn_torch(facts, asked.torch, asked.cudnn)
        if find_toolkit(facts, asked.cuda) is not None:
            yield from _cudnn_cuda(facts, asked.cuda, asked.cudnn)
        for arch in (text.removesuffix("+PTX") for text in asked.archs):
            yield from cudnn_arch(facts, asked.cudnn, arch)


@cache
def cudnn_arch(facts: Facts, cudnn: str, arch: str) -> tuple[Clash, ...]:
    """A cuDNN that does not run on a GPU: 9.12 left Volta behind, Blackwell came with 9.7."""
    lines = [line for line in facts.cuda.cudnn if version_range(line.cudnn).touches(cudnn)]
    if not lines or any(_runs_cudnn(line, arch) for line in lines):
        return ()
    line = lines[-1]
    oldest, newest = line.oldest_arch, line.newest_arch
    limit = f"{oldest or 'all'} to {newest}" if newest else f"{oldest} and newer"
    conflict = Conflict(
        "cudnn-arch",
        f"cuDNN {cudnn} does not run on GPUs of compute capability {arch}",
        Evidence(f"asked for: cuDNN {cudnn}, and compute capability {arch}"),
        Evidence(
            f"cuDNN {version_range(line.cudnn)} runs on {limit}. {line.note.rstrip('.')}",
            addresses(facts.cuda.sources, line),
        ),
    )
    return (Clash(conflict, ("cudnn", "archs"), arch),)


def _runs_cudnn(line: Cudnn, arch: str) -> bool:
    number = arch_number(arch)[:2]
    oldest, newest = line.oldest_arch, line.newest_arch
    return (oldest is None or number >= arch_number(oldest)[:2]) and (
        newest is None or number <= arch_number(newest)[:2]
    )


@cache
def cudnn_torch(facts: Facts, torch: str, cudnn: str) -> tuple[Clash, ...]:
    """The clash of a cuDNN with a torch, if there is one."""
    entry = entry_for(facts.torch.cudnn, torch)
    if entry is None or version_range(entry.value).touches(cudnn):
        return ()
    conflict = Conflict(
        "cudnn-torch",
        f"torch {torch} does not build with cuDNN {cudnn}",
        Evidence(f"asked for: cuDNN {cudnn}"),
        Evidence(
            f"torch {torch} builds with cuDNN {version_range(entry.value)}",
            addresses(facts.torch.sources, entry),
        ),
    )
    return (Clash(conflict, ("cudnn", "torch")),)


@cache
def _cudnn_cuda(facts: Facts, cuda: str, cudnn: str) -> tuple[Clash, ...]:
    lines = [line for line in facts.cuda.cudnn if version_range(line.cudnn).touches(cudnn)]
    asked = Evidence(f"asked for: cuDNN {cudnn}")
    if not lines:
        known = ", ".join(str(version_range(line.cudnn)) for line in facts.cuda.cudnn)
        conflict = Conflict(
            "cudnn-unknown",
            f"there is no cuDNN {cudnn} that we know of",
            asked,
            Evidence(f"cuDNN releases known: {known}", facts.cuda.sources["cudnn"].url),
            standing="unknown",
        )
        return (Clash(conflict, ("cudnn",)),)
    if any(cuda in version_range(line.cuda) and cuda not in line.lacks for line in lines):
        return ()
    spans = " or ".join(
        dict.fromkeys(
            str(version_range(line.cuda)) + (f", not {', '.join(line.lacks)}" if line.lacks else "")
            for line in lines
        )
    )
    conflict = Conflict(
        "cudnn-cuda",
        f"cuDNN {cudnn} was not made for CUDA {cuda}",
        asked,
        Evidence(f"cuDNN {cudnn} is for CUDA {spans}", addresses(facts.cuda.sources, lines[0])),
    )
    return (Clash(conflict, ("cudnn", "cuda")),)


def companion_rule(facts: Facts, asked: Combination) -> Iterator[Clash]:
    """Whether every companion is of the release for this torch."""
    for name, version in asked.companions:
        for clash in _companion(facts, asked.torch, name, version):
            if not (asked.unmatched and clash.conflict.kind == "companion-torch"):
                yield clash


@cache
def _companion(facts: Facts, torch: str, name: str, version: str) -> tuple[Clash, ...]:
    if version == "match":
        found = companion_for(facts, name, torch)
        conflict = None if found else _companion_missing(facts, torch, name)
    else:
        conflict = _companion_release(facts, torch, name, version)
    return (Clash(conflict, ("companions", "torch"), name),) if conflict else ()


def _companion_missing(facts: Facts, torch: str, name: str) -> Conflict:
    project = companion_project(facts, name)
    newest = companion_releases(facts, name)[-1]
    over = project.ended and release(torch) > (version_range(newest.torch).low or ())
    statement = (
        f"{project.package} ended at {project.ended}, which goes with torch {newest.torch} "
        f"({project.ended_reason})"
        if over
        else f"{project.package} has no release for torch {torch}"
    )
    return Conflict(
        "companion-missing",
        f"there is no {project.package} for torch {torch}",
        Evidence(f"asked for: the {project.package} that matches torch {torch}"),
        Evidence(statement, addresses(companion_sources(facts, name), project if over else newest)),
    )


def _companion_release(facts: Facts, torch: str, name: str, version: str) -> Conflict | None:
    project = companion_project(facts, name)
    table = companion_sources(facts, name)
    every = companion_releases(facts, name)
    entry = next((item for item in every if item.version == version), None)
    if entry is None:
        return Conflict(
            "companion-unknown",
            f"there is no {project.package} {version} that we know of",
            Evidence(f"asked for: {project.package} {version}"),
            Evidence(f"the newest known is {every[-1].version}", addresses(table, every[-1])),
            standing="unknown",
        )
    if torch in version_range(entry.torch):
        return None
    return Conflict(
        "companion-torch",
        f"{project.package} {version} does not go with torch {torch}",
        Evidence(f"asked for: torch {torch}"),
        Evidence(
            f"{project.package} {version} is built against torch {version_range(entry.torch)}",
            addresses(table, entry),
        ),
    )


def stack_rule(facts: Facts, asked: Combination) -> Iterator[Clash]:
    """Whether each package takes this Python, CUDA and GPU, and all of them one torch."""
    for name, wish in asked.companions:
        package = stack_package(facts, name)
        if package is not None and (entry := stack_release(facts, name, wish, asked)):
            yield from _package_clashes(facts, package, entry, asked)
    for first, second in combinations(asked.companions, 2):
        yield from _apart(facts, first, second)


def stack_release(facts: Facts, name: str, wish: str, asked: Combination) -> StackRelease | None:
    """The release of a package that is meant, if it is known.

    `match` is the newest that takes all that is asked for; where none does, the newest for torch.
    """
    package = stack_package(facts, name)
    every = facts.stack.release if package is not None else ()
    newest = companion_for(facts, name, asked.torch)
    if wish == "match" and package is not None and isinstance(newest, StackRelease):
        takes_torch = (
            item
            for item in reversed(every)
            if item.name == name and asked.torch in version_range(item.torch)
        )
        fitting = (
            item
            for item in (newest, *takes_torch)
            if not any(_package_clashes(facts, package, item, asked))
        )
        return next(fitting, newest)
    return next((item for item in every if (item.name, item.version) == (name, wish)), None)


def with_releases(facts: Facts, asked: Combination) -> Combination:
    """The same combination with the releases that `match` means."""
    for name, wish in asked.companions:
        found = stack_release(facts, name, wish, asked) or companion_for(facts, name, asked.torch)
        if wish == "match" and found is not None:
            asked = with_companion(asked, name, found.version)
    return asked


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
    """Two packages that no torch takes together: a conflict of each alone would not say why."""
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
    sides = [
        Evidence(
            f"{_title(facts, *item)} takes torch "
            + " or ".join(dict.fromkeys(str(version_range(one.torch)) for one in some)),
            addresses(companion_sources(facts, item[0]), some[-1]),
        )
        for item, some in zip((first, second), meant, strict=True)
    ]
    message = f"{_title(facts, *first)} and {_title(facts, *second)} take no torch in common"
    return (
        Clash(Conflict("stack-apart", message, sides[0], sides[1]), ("companions",), second[0]),
    )


def _meant(facts: Facts, name: str, wish: str) -> tuple[LibraryRelease, ...]:
    every = companion_releases(facts, name)
    return tuple(item for item in every if wish in ("match", item.version))


def _title(facts: Facts, name: str, wish: str) -> str:
    package = companion_project(facts, name).package
    return package if wish == "match" else f"{package} {wish}"


RULES: tuple[Rule, ...] = (
    python_rule,
    cuda_rule,
    wheel_rule,
    wheel_python_rule,
    arch_rule,
    cudnn_rule,
    companion_rule,
    stack_rule,
)
