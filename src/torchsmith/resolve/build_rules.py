"""The rules of where it is built: compilers, distributions, toolkits and boards."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from msgspec.structs import replace

from torchsmith.facts.conditions import ANYWHERE, Place, troubles
from torchsmith.facts.cuda import (
    brings_toolkit,
    debian_toolkit,
    find_toolkit,
    has_image,
    host_compiler,
    image_end,
    repositories,
)
from torchsmith.facts.files import Facts, addresses
from torchsmith.facts.models import Board, CPython, Jetpack, System, Trouble
from torchsmith.facts.ranges import dotted, python_release, release, version_range
from torchsmith.facts.torch import entry_for, wheel_libc
from torchsmith.resolve.combination import Clash, Combination, Rule
from torchsmith.resolve.models import Conflict, Evidence
from torchsmith.resolve.rules import RULES, cudnn_torch, python_rule


def newest_patch(version: str) -> str:
    """A bare gcc major stands for its last patch release, which is what distributions ship."""
    return version if "." in version else f"{version}.99"


@cache
def allows_compiler(
    facts: Facts, torch: str, cuda: str, kind: str, version: str, place: Place = ANYWHERE
) -> bool:
    """Whether torch's sources and the toolkit's nvcc take this compiler there."""
    return (
        not _compiler_torch(facts, torch, kind, version)
        and not (cuda and _compiler_cuda(facts, cuda, kind, version))
        and not any(
            item.standing == "fails" and item.gcc
            for item in troubles(facts, torch, cuda, kind, version, place)
        )
    )


def fails_anyway(facts: Facts, torch: str, cuda: str, place: Place) -> Trouble | None:
    """What fails there with any compiler, if something does."""
    found = troubles(facts, torch, cuda, "", "", place)
    return next((item for item in found if item.standing == "fails"), None)


def on_system(place: Place, system: System | None) -> Place:
    """The same build on a distribution."""
    if system is None:
        return place
    return replace(place, glibc=system.glibc, kernel=system.kernel)


def place_of(facts: Facts, asked: Combination) -> Place:
    """Where a combination is built; nothing is known of where nothing of torch is compiled."""
    if not asked.from_source:
        return Place(asked.platform)
    return on_system(asked.place, find_system(facts, _built_on(facts, asked)))


def pythons_of(system: System) -> tuple[str, ...]:
    """The Pythons a distribution packages, its own python3 first."""
    return (system.python, *system.pythons)


def find_system(facts: Facts, name: str) -> System | None:
    """What is known of a distribution."""
    return next((item for item in facts.systems.system if item.name == name), None)


def gccs_of(system: System) -> tuple[str, ...]:
    """The gcc releases a distribution packages: its own first and in full, then the newest."""
    own = release(system.gcc)[0]
    others = [item for item in system.gccs if release(item)[0] != own]
    return (system.gcc, *sorted(others, key=release, reverse=True))


def why_compiler(facts: Facts, torch: str, cuda: str, place: Place = ANYWHERE) -> str:
    """What limits the choice of compiler, in words."""
    cxx = entry_for(facts.torch.cxx, torch)
    parts: list[str] = []
    if cxx is not None:
        parts.append(f"torch {torch} needs gcc {version_range(cxx.gcc)} (C++{cxx.standard})")
    limit = host_compiler(facts, cuda, "gcc") if cuda else None
    if limit is not None:
        parts.append(f"CUDA {cuda} accepts gcc up to {limit.newest}")
    parts += [
        f"not gcc {version_range(item.gcc or ':')}, since {item.why}"
        for item in facts.torch.trouble
        if item.gcc
        and item.standing == "fails"
        and item in troubles(facts, torch, cuda, "gcc", item.gcc.strip(":").split(":")[0], place)
    ]
    return "; ".join(parts)


def _compiler(facts: Facts, asked: Combination) -> Iterator[Clash]:
    if asked.compiler and asked.compiler[1] and asked.from_source:
        if asked.cuda:
            yield from _compiler_cuda(facts, asked.cuda, *asked.compiler)
        yield from _compiler_torch(facts, asked.torch, *asked.compiler)
        place = place_of(facts, asked)
        for item in troubles(facts, asked.torch, asked.cuda, *asked.compiler, place):
            if item.standing == "fails" and item.gcc:
                yield _compiler_there(facts, asked, item)


def _compiler_there(facts: Facts, asked: Combination, trouble: Trouble) -> Clash:
    kind, version = asked.compiler or ("", "")
    with_cuda = f" and CUDA {asked.cuda}" if trouble.cuda else ""
    conflict = Conflict(
        "compiler-place",
        f"torch {asked.torch}{with_cuda} does not compile with {kind} {version} on "
        f"{asked.platform}: {trouble.why}",
        Evidence(f"compiler: {kind} {version}"),
        Evidence(f"known to fail: {trouble.why}", addresses(facts.torch.sources, trouble)),
        _without(trouble),
        standing="fails",
    )
    more = ("cuda",) if trouble.cuda else ()
    return Clash(conflict, ("compiler", *more, "torch"), trouble.name)


def _without(trouble: Trouble) -> str:
    return f"features.{trouble.feature} = 'off'" if trouble.feature else ""


def there_rule(facts: Facts, asked: Combination) -> Iterator[Clash]:
    """What fails in a place whatever the compiler."""
    place = place_of(facts, asked)
    trouble = fails_anyway(facts, asked.torch, asked.cuda, place)
    if trouble is None or not asked.from_source:
        return
    where = asked.system or "this machine"
    conflict = Conflict(
        "place-torch",
        f"torch {asked.torch} does not compile on {where}: {trouble.why}",
        Evidence(f"{where}: glibc {place.glibc or '?'}, headers of Linux {place.kernel or '?'}"),
        Evidence(f"known to fail: {trouble.why}", addresses(facts.torch.sources, trouble)),
        _without(trouble),
        standing="fails",
    )
    yield Clash(conflict, ("system", "torch"), trouble.name)


def wheel_libc_rule(facts: Facts, asked: Combination) -> Iterator[Clash]:
    """Whether a published wheel runs with the glibc that is there."""
    if not asked.published or asked.own_base:
        return
    entry = wheel_libc(facts, asked.torch, asked.cuda, asked.platform)
    system = find_system(facts, _built_on(facts, asked))
    have = system.glibc if system is not None else asked.place.glibc
    if entry is None or not have or release(have) >= release(entry.glibc):
        return
    where = system.name if system is not None else "this machine"
    conflict = Conflict(
        "wheel-libc",
        f"the published wheel of torch {asked.torch} does not install on {where}",
        Evidence(f"{where} has glibc {have}"),
        Evidence(
            f"the wheel needs glibc {entry.glibc} or newer. {entry.note.rstrip('.')}".rstrip(". "),
            addresses(facts.torch.sources, entry),
        ),
        "torch.use = 'source'",
    )
    yield Clash(conflict, ("system", "torch", *(("cuda",) if asked.cuda else ())))


@cache
def _compiler_cuda(facts: Facts, cuda: str, kind: str, version: str) -> tuple[Clash, ...]:
    limit = host_compiler(facts, cuda, kind)
    if limit is None or newest_patch(version) in version_range(f":{limit.newest}"):
        return ()
    # It looks at the first number alone: a later release of that one is taken, and then fails.
    taken = release(version)[0] == release(limit.newest)[0]
    conflict = Conflict(
        "compiler-cuda",
        f"nvcc of CUDA {cuda} fails on the headers of {kind} {version}"
        if taken
        else f"nvcc of CUDA {cuda} refuses {kind} {version} as host compiler",
        Evidence(f"compiler: {kind} {version}"),
        Evidence(
            f"CUDA {cuda} accepts {kind} up to {limit.newest}",
            addresses(facts.cuda.sources, limit),
        ),
        standing="fails" if taken else "impossible",
    )
    return (Clash(conflict, ("compiler", "cuda")),)


@cache
def _compiler_torch(facts: Facts, torch: str, kind: str, version: str) -> tuple[Clash, ...]:
    entry = entry_for(facts.torch.cxx, torch)
    if entry is None or kind != "gcc" or newest_patch(version) in version_range(entry.gcc):
        return ()
    conflict = Conflict(
        "compiler-torch",
        f"torch {torch} does not compile with gcc {version}",
        Evidence(f"compiler: gcc {version}"),
        Evidence(
            f"torch {torch} is C++{entry.standard} and needs gcc {version_range(entry.gcc)}",
            addresses(facts.torch.sources, entry),
        ),
    )
    return (Clash(conflict, ("compiler", "torch")),)


def _system(facts: Facts, asked: Combination) -> Iterator[Clash]:
    system = find_system(facts, _built_on(facts, asked))
    if system is None or not asked.compiled or asked.own_base:
        return
    if asked.compiler is not None:
        yield from _packaged(facts, system, *asked.compiler)
        return
    cuda = asked.cuda if asked.cuda and find_toolkit(facts, asked.cuda) else ""
    gccs = gccs_of(system)
    place = place_of(facts, asked)
    if any(allows_compiler(facts, asked.torch, cuda, "gcc", item, place) for item in gccs):
        return
    # Where torch and CUDA agree on no gcc at all, another distribution would not help.
    entry = entry_for(facts.torch.cxx, asked.torch)
    limit = host_compiler(facts, cuda, "gcc") if cuda else None
    sources = (
        addresses(facts.torch.sources, entry),
        addresses(facts.cuda.sources, limit),
    )
    conflict = Conflict(
        "compiler-system",
        f"{system.name} has no gcc that torch {asked.torch}"
        + (f" and CUDA {cuda} accept" if cuda else " accepts"),
        Evidence(
            f"{system.name} packages gcc {', '.join(sorted(gccs, key=release))}",
            addresses(facts.systems.sources, system),
        ),
        Evidence(why_compiler(facts, asked.torch, cuda), " ".join(filter(None, sources))),
    )
    yield Clash(conflict, ("system", "torch", *(("cuda",) if cuda else ())))


def _built_on(facts: Facts, asked: Combination) -> str:
    """The distribution: as asked, or that of the JetPack a board would have."""
    board = next((item for item in facts.boards.board if item.name == asked.board), None)
    if board is None or not board.jetpack:
        return asked.system
    fitting = fitting_jetpacks(facts, board, asked)
    return fitting[-1].system if fitting else ""


def _packaged(facts: Facts, system: System, kind: str, version: str) -> Iterator[Clash]:
    majors = {release(item)[0] for item in gccs_of(system)}
    if kind != "gcc" or not version or release(version)[0] in majors:
        return
    listed = ", ".join(sorted(gccs_of(system), key=release))
    conflict = Conflict(
        "compiler-packaged",
        f"{system.name} does not package gcc {version}",
        Evidence(f"compiler: gcc {version}"),
        Evidence(
            f"{system.name} packages gcc {listed}; a base image of your own (`image.base`) may "
            "have another",
            addresses(facts.systems.sources, system),
        ),
    )
    yield Clash(conflict, ("compiler", "system"))


def _toolkit(facts: Facts, asked: Combination) -> Iterator[Clash]:
    toolkit = find_toolkit(facts, asked.cuda) if asked.cuda else None
    if toolkit is None or not asked.compiled or asked.board:
        return
    cuda = toolkit.version
    source = addresses(facts.cuda.sources, toolkit)
    imaged = has_image(facts, cuda, asked.system)
    packaged = bool(repositories(facts, cuda, asked.system, asked.platform))
    own = debian_toolkit(facts, asked.system or asked.here)
    debian = own is not None and own.cuda == cuda
    end = image_end(facts, cuda)
    images = ", ".join(toolkit.images) or "none"
    if end is not None and end.gone:
        images = f"none any more: NVIDIA deleted them in {end.since}"
    wish = Evidence(f"asked for: cuda.toolkit = {asked.toolkit!r}")
    if asked.toolkit == "wheels" and not toolkit.wheels:
        offered = ", ".join(item.version for item in facts.cuda.toolkit if item.wheels)
        kind, message = "toolkit-wheels", f"nvcc {cuda} is not on PyPI"
        fact = Evidence(f"nvcc can be assembled from wheels for CUDA {offered}", source)
        dimensions: tuple[str, ...] = ("toolkit", "cuda")
    elif asked.toolkit == "image" and not imaged and not asked.own_base:
        place = asked.system or "this machine: an image needs a distribution"
        kind = "toolkit-image"
        message = f"NVIDIA publishes no CUDA {cuda} development image for {place}"
        fact = Evidence(f"images exist for {images}", f"{source} {_end_source(facts, cuda)}")
        dimensions = ("toolkit", "system", "cuda")
    elif asked.toolkit == "apt" and not packaged:
        place = asked.system or "this machine: it is put into an image, which needs a distribution"
        systems = _repository_systems(facts, cuda, asked.platform)
        kind, message = "toolkit-apt", f"NVIDIA's apt repository has no CUDA {cuda} for {place}"
        fact = Evidence(f"for {asked.platform} it has CUDA {cuda} for {systems}", source)
        dimensions = ("toolkit", "system", "cuda")
    elif asked.toolkit == "debian" and not debian:
        place = asked.system or asked.here or "this machine"
        offered = ", ".join(f"{item.cuda} in {item.system}" for item in facts.cuda.debian)
        kind, message = "toolkit-debian", f"{place} packages no CUDA {cuda} of its own"
        fact = Evidence(
            f"Debian packages CUDA {offered}",
            addresses(facts.cuda.sources, facts.cuda.debian[0]),
        )
        dimensions = ("cuda", "system", "toolkit")
    elif (
        not asked.toolkit
        and asked.system
        and not asked.own_base
        and not brings_toolkit(facts, cuda, asked.system, asked.platform)
    ):
        systems = _repository_systems(facts, cuda, asked.platform)
        kind = "toolkit-none"
        message = (
            f"there is no CUDA {cuda} for {asked.system}: neither an image, packages nor wheels"
        )
        wish = Evidence(f"asked for: system = {asked.system!r}")
        fact = Evidence(
            f"NVIDIA's images of CUDA {cuda} are for {images}; its packages for "
            f"{asked.platform} are for {systems}; nvcc is not on PyPI; a base image of your "
            "own (`image.base`) may have it",
            f"{source} {_end_source(facts, cuda)}".strip(),
        )
        dimensions = ("system", "cuda", "toolkit")
    else:
        return
    yield Clash(Conflict(kind, message, wish, fact), dimensions)


def _repository_systems(facts: Facts, cuda: str, platform: str) -> str:
    names = [item.name for item in facts.systems.system]
    return ", ".join(n for n in names if repositories(facts, cuda, n, platform)) or "none"


def _end_source(facts: Facts, cuda: str) -> str:
    return addresses(facts.cuda.sources, image_end(facts, cuda))


def fitting_jetpacks(facts: Facts, board: Board, asked: Combination) -> list[Jetpack]:
    """The JetPacks of a board that bring what is asked for, and cuDNN that torch takes.

    Where none brings the toolkit itself, those it can be installed on.
    """
    brought = any(_brings(item, asked.cuda) for item in board.jetpack)
    return [
        item
        for item in board.jetpack
        if _brings(item, asked.cuda, upgraded=not brought)
        and asked.jetpack in ("", item.version)
        and asked.system in ("", item.system)
        and not _cudnn_of(facts, item, asked)
    ]


def _brings(jetpack: Jetpack, cuda: str, *, upgraded: bool = False) -> bool:
    if not cuda or release(jetpack.cuda)[:2] == release(cuda)[:2]:
        return True
    return upgraded and jetpack.upgrades is not None and cuda in version_range(jetpack.upgrades)


def _cudnn_of(facts: Facts, jetpack: Jetpack, asked: Combination) -> tuple[Clash, ...]:
    # A cuDNN of the recipe's own is judged by itself.
    if not asked.cuda or asked.cudnn:
        return ()
    return cudnn_torch(facts, asked.torch, jetpack.cudnn)


def _board(facts: Facts, asked: Combination) -> Iterator[Clash]:
    board = next((item for item in facts.boards.board if item.name == asked.board), None)
    if board is None or not board.jetpack or fitting_jetpacks(facts, board, asked):
        return
    bringing = [item for item in board.jetpack if _brings(item, asked.cuda)] or [
        item for item in board.jetpack if _brings(item, asked.cuda, upgraded=True)
    ]
    placed = [item for item in bringing if asked.system in ("", item.system)]
    chosen = [item for item in placed if asked.jetpack in ("", item.version)]
    own = addresses(facts.boards.sources, board.jetpack[0])
    if not bringing:
        offered = ", ".join(f"{item.cuda} (JetPack {item.version})" for item in board.jetpack)
        kind, message = "board-cuda", f"no JetPack brings CUDA {asked.cuda} to the {board.title}"
        wish = Evidence(f"asked for: CUDA {asked.cuda}")
        fact = Evidence(f"CUDA on the {board.title} comes with JetPack: {offered}", own)
        dimensions: tuple[str, ...] = ("cuda", "jetpack")
    elif not placed:
        systems = ", ".join(dict.fromkeys(f"{i.system} (JetPack {i.version})" for i in bringing))
        with_cuda = f" with CUDA {asked.cuda}" if asked.cuda else ""
        kind = "board-system"
        message = f"the {board.title}{with_cuda} does not run {asked.system}"
        wish = Evidence(f"asked for: system = {asked.system!r}")
        fact = Evidence(f"the {board.title}{with_cuda} runs {systems}", own)
        dimensions = ("system", "cuda", "jetpack")
    elif not chosen:
        jetpack = next(item for item in board.jetpack if item.version == asked.jetpack)
        kind = "jetpack-cuda"
        message = f"JetPack {jetpack.version} brings CUDA {jetpack.cuda}, not {asked.cuda}"
        wish = Evidence(f"asked for: CUDA {asked.cuda}")
        fact = Evidence(
            f"JetPack {jetpack.version} is {jetpack.system} with CUDA {jetpack.cuda}",
            addresses(facts.boards.sources, jetpack),
        )
        dimensions = ("jetpack", "cuda")
    else:
        newest = chosen[-1]
        (clash,) = _cudnn_of(facts, newest, asked)
        kind = "jetpack-cudnn"
        message = (
            f"torch {asked.torch} does not build with cuDNN {newest.cudnn} of JetPack "
            f"{newest.version}"
        )
        wish = Evidence(
            f"JetPack {newest.version} brings cuDNN {newest.cudnn}",
            addresses(facts.boards.sources, newest),
        )
        fact = clash.conflict.second
        dimensions = ("cuda", "torch", "jetpack")
    yield Clash(Conflict(kind, message, wish, fact), dimensions)


# The oldest and the free-threaded ones uv offers:
# https://github.com/astral-sh/python-build-standalone
_OLDEST_OF_UV, _FREE_THREADED_OF_UV = (3, 8), (3, 13)


def from_uv(python: str) -> bool:
    """Whether uv has this CPython."""
    oldest = _FREE_THREADED_OF_UV if python.endswith("t") else _OLDEST_OF_UV
    return python_release(python) >= oldest


def source_of_python(facts: Facts, python: str) -> CPython | None:
    """The source archive of a Python that neither uv nor most distributions have."""
    return next((item for item in facts.systems.cpython if item.python == python), None)


def python_place_rule(facts: Facts, asked: Combination) -> Iterator[Clash]:
    """Whether somebody brings this Python: uv, the distribution, this machine, or its source."""
    python = asked.python
    if not python or python_release(python) < (3,) or from_uv(python) or asked.own_base:
        return
    system = find_system(facts, _built_on(facts, asked))
    # That no JetPack fits, or that torch has no such Python, is said elsewhere.
    if (asked.board and system is None) or any(True for _ in python_rule(facts, asked)):
        return
    have = pythons_of(system) if system is not None else asked.pythons
    source = source_of_python(facts, python)
    # In a container, its source does: a board has its own Python, and is built on itself.
    if python in have or (source is not None and system is not None and not asked.board):
        return
    homes = [item.name for item in facts.systems.system if python in pythons_of(item)]
    where = system.name if system is not None else "this machine"
    conflict = Conflict(
        "python-nowhere",
        f"nothing brings Python {python} to {where}",
        Evidence(f"{where} has Python {', '.join(have) or 'none with headers'}"),
        Evidence(
            f"uv has CPython {dotted(_OLDEST_OF_UV)} and newer"
            + (f"; Python {python} is in {', '.join(homes)}" if homes else ""),
            "https://github.com/astral-sh/python-build-standalone",
        ),
        f"name a distribution to build in (system): CPython {python} is built there from source"
        if source is not None and not asked.board
        else f"a base image of your own that has CPython {python}: image.base",
    )
    yield Clash(conflict, ("python", "system"))


BUILD_RULES: tuple[Rule, ...] = (
    python_place_rule,
    _compiler,
    _system,
    there_rule,
    wheel_libc_rule,
    _toolkit,
    _board,
)


def clashes(facts: Facts, asked: Combination) -> tuple[Clash, ...]:
    """Every rule this combination breaks, always in the same order."""
    return tuple(clash for rule in (*RULES, *BUILD_RULES) for clash in rule(facts, asked))
