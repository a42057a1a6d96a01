"""Deciding where the result will run: platform, board, JetPack, distribution, Python."""

from __future__ import annotations

from msgspec import Struct

from torchsmith.facts.conditions import Place
from torchsmith.facts.files import Facts, addresses
from torchsmith.facts.models import Board, Jetpack
from torchsmith.facts.platforms import other_platform
from torchsmith.facts.ranges import version_range
from torchsmith.host.models import Host
from torchsmith.recipe.models import Archive, Recipe
from torchsmith.resolve.build_rules import (
    find_system,
    fitting_jetpacks,
    pythons_of,
    source_of_python,
)
from torchsmith.resolve.combination import Combination
from torchsmith.resolve.models import Case, Change, Conflict, Evidence
from torchsmith.resolve.rules import builds_with
from torchsmith.resolve.toolchain import default_system

PLATFORMS = ("linux-x86_64", "linux-aarch64")


class Target(Struct):
    """Where the result will run."""

    platform: str
    board: Board | None
    jetpack: Jetpack | None
    system: str
    container: bool


def decide_target(case: Case) -> Target:
    """Choose the platform and, for a board, the JetPack that torch goes with."""
    recipe = case.recipe
    board = next((item for item in case.facts.boards.board if item.name == recipe.board), None)
    platform = _platform(case, board)
    jetpack = _jetpack(case, board)
    system = recipe.system or (jetpack.system if jetpack else "")
    on_board = board is not None and recipe.image is None
    container = recipe.system is not None and not on_board
    if not container and board is None:
        _libc(case)
    _foreign(case, platform, board)
    return Target(platform, board, jetpack, system, container)


def _foreign(case: Case, platform: str, board: Board | None) -> None:
    """Say so where the result is for another machine than the one that builds it."""
    host = case.host
    if platform == host.platform or platform not in PLATFORMS or host.platform not in PLATFORMS:
        return
    where = f"the {board.title}" if board is not None else platform
    case.caution(
        f"it is for {where} ({platform}), and this machine is {host.platform}: it can be "
        "planned here, and built only there, or under emulation, ten times slower or more",
        "run the plan on such a machine; or leave platform out",
    )


def settle_system(case: Case, cuda: str, python: str, place: Place, target: Target) -> None:
    """An image with CUDA needs a distribution: where the recipe names none, one that fits."""
    if not cuda or target.system or case.recipe.image is None:
        return
    wanted = "" if python == "host" else python
    compiler = case.recipe.build.compiler or ""
    target.system = default_system(case.facts, cuda, case.torch, place, wanted, compiler)
    target.container = True
    case.choose(
        "system",
        target.system,
        f"an image is wanted; torch {case.torch} and CUDA {cuda} build on it",
    )


def _platform(case: Case, board: Board | None) -> str:
    platform: str = case.recipe.platform
    if platform == "host":
        platform = board.platform if board else case.host.platform
        reason = f"the {board.title}'s" if board else "this machine's"
        case.choose("platform", platform, reason)
    elif board is not None and platform != board.platform:
        case.refuse(
            "board-platform",
            f"the {board.title} is not {platform}",
            Evidence(f"asked for: platform = {platform!r}"),
            Evidence(
                f"the {board.title} is {board.platform}",
                addresses(case.facts.boards.sources, board),
            ),
            "leave platform out: the board decides",
            (Change("platform", ""),),
        )
        platform = board.platform
    if platform not in PLATFORMS:
        nearest = PLATFORMS[platform.endswith(("arm64", "aarch64"))]
        other = other_platform(case.facts, platform)
        case.refuse(
            "platform",
            f"torchsmith does not build for {platform}",
            Evidence(f"this machine is {platform}"),
            Evidence("linux-x86_64 and linux-aarch64 can be built for"),
            f"platform = '{nearest}' in an image: system = 'debian-12'"
            + (f". {other.exists}" if other is not None else ""),
            (Change("platform", nearest), Change("system", "debian-12")),
        )
    return platform


def _libc(case: Case) -> None:
    facts, host = case.facts, case.host
    if host.libc is None or host.libc.kind != "musl":
        return
    system = default_system(facts, "", case.torch)
    case.refuse(
        "libc",
        "PyTorch does not build against musl",
        Evidence(f"this machine has musl {host.libc.version}"),
        Evidence(
            "PyTorch and CUDA are written for glibc, and published for it alone; Alpine has "
            "a package of its own without CUDA, py3-torch",
            addresses(facts.releases.sources, facts.releases.release[-1]),
        ),
        f"build in an image: system = '{system}'",
        (Change("system", system),),
    )


def asked_cuda(recipe: Recipe) -> str:
    """What the recipe says of CUDA; a board of which it says nothing has its own."""
    if recipe.board and "cuda" not in recipe.model_fields_set and recipe.torch.use == "source":
        return "none" if recipe.features.get("cuda") == "off" else "host"
    return recipe.cuda.version


def _jetpack(case: Case, board: Board | None) -> Jetpack | None:
    facts, recipe, torch = case.facts, case.recipe, case.torch
    if board is None:
        if recipe.jetpack is not None:
            case.conflicts.append(_jetpack_alone(facts, recipe.jetpack))
        return None
    offered = board.jetpack
    if recipe.jetpack is not None:
        offered = [item for item in offered if _is_jetpack(item, recipe.jetpack)]
        if not offered:
            case.conflicts.append(_jetpack_unknown(facts, recipe.jetpack, board))
            return None
    cuda = asked_cuda(recipe)
    wanted = "" if cuda in ("none", "host") else cuda
    asked = Combination(
        torch,
        cuda=wanted,
        cudnn=recipe.cuda.cudnn or "",
        board=board.name,
        system=recipe.system or "",
    )
    fitting = [item for item in fitting_jetpacks(facts, board, asked) if item in offered]
    if cuda == "host":
        fitting = [
            item
            for item in fitting
            if fitting_jetpacks(facts, board, Combination(torch, cuda=item.cuda, board=board.name))
            and _builds(facts, torch, item.cuda)
        ]
    # Where none fits, the conflicts are about the newest.
    chosen = (fitting or offered)[-1:]
    for item in chosen:
        reason = (
            "the recipe says so"
            if recipe.jetpack
            else f"the newest for it with CUDA {item.cuda} and cuDNN {item.cudnn}"
        )
        if wanted and wanted != item.cuda and item in fitting:
            reason = f"CUDA {wanted} can be installed on top of its own {item.cuda}"
            case.caution(
                f"JetPack {item.version} brings CUDA {item.cuda}: {wanted} has to be installed "
                "on top of it, with its compatibility package",
                f"cuda = '{item.cuda}' needs nothing installed",
                "unpublished",
                facts.boards.sources["upgrades"].url,
            )
        case.choose("JetPack", item.version, reason, addresses(facts.boards.sources, item))
        if cuda == "none" and recipe.torch.use == "source":
            case.caution(
                f"the recipe asks for no CUDA: this torch does not use the {board.title}'s GPU",
                "cuda = 'host' takes the newest JetPack's that this torch builds with",
            )
    return chosen[0] if chosen else None


def _builds(facts: Facts, torch: str, cuda: str) -> bool:
    return any(
        torch in version_range(entry.torch) and builds_with(entry, cuda)
        for entry in facts.torch.cuda
    )


def _is_jetpack(item: Jetpack, asked: str) -> bool:
    """Whether that is asked for: 5.1.2 is 5.1 with the same CUDA, Python and Ubuntu."""
    return item.version in version_range(asked) or asked.startswith(f"{item.version}.")


def _jetpack_alone(facts: Facts, jetpack: str) -> Conflict:
    having = [
        board.name
        for board in facts.boards.board
        if any(_is_jetpack(item, jetpack) for item in board.jetpack)
    ]
    return Conflict(
        "jetpack",
        f"JetPack {jetpack} is asked for, but no board",
        Evidence(f"asked for: jetpack = {jetpack!r}"),
        Evidence(
            f"JetPack {jetpack} is for {', '.join(having) or 'no board we know'}",
            facts.boards.sources["jetpack-archive"].url,
        ),
        (f"board = '{having[0]}'; or " if having else "") + "leave jetpack out",
        (Change("jetpack", ""),),
    )


def _jetpack_unknown(facts: Facts, jetpack: str, board: Board) -> Conflict:
    offered = [item.version for item in board.jetpack]
    return Conflict(
        "jetpack",
        f"JetPack {jetpack} does not go with the {board.title}",
        Evidence(f"asked for: jetpack = {jetpack!r}"),
        Evidence(
            f"JetPacks for it: {', '.join(offered) or 'none'}",
            addresses(facts.boards.sources, board.jetpack[0] if offered else board),
        ),
        (f"jetpack = '{offered[-1]}'; or " if offered else "") + "leave jetpack out",
        (Change("jetpack", ""),),
    )


def decide_python(
    case: Case, asked: str, source: Archive | None, target: Target
) -> tuple[str, str]:
    """Choose the Python, and who brings it: the system, uv, or its source."""
    facts = case.facts
    system = find_system(facts, target.system) if target.system else None
    if asked == "host":
        asked, reason = _own_python(target, system.python if system else "", case.host)
        case.choose("Python", asked, reason)
    if source is not None and target.container:
        case.choose("Python from", "source", "the recipe names the archive")
        return asked, "source"
    if source is not None:
        case.refuse(
            "cpython-here",
            "a Python is built in containers only, and this recipe is built on this machine",
            Evidence("asked for: build.python_source"),
            Evidence("asked for: no system"),
            "name the distribution to build in, such as system = 'debian-12'",
        )
    have = asked in (pythons_of(system) if system is not None else pythons_here(case.host))
    if have:
        return asked, "system"
    reason = (
        f"{system.name}'s own is {system.python}"
        if system
        else f"CPython {asked} with headers is not installed here"
    )
    built = source_of_python(facts, asked) if target.container else None
    if built is not None:
        reason += f", and uv has none that old: {built.version} is built once, in the image"
        sources = addresses(facts.systems.sources, built)
        case.choose("Python from", "source", reason, sources)
        return asked, "source"
    case.choose("Python from", "uv", reason)
    return asked, "uv"


def pythons_here(host: Host) -> tuple[str, ...]:
    """The Pythons of this machine that something can be built for, as recipes write them."""
    return tuple(dict.fromkeys(item.name for item in host.pythons if item.headers))


def _own_python(target: Target, systems: str, host: Host) -> tuple[str, str]:
    if target.jetpack is not None:
        return target.jetpack.python, f"JetPack {target.jetpack.version}'s own"
    if target.container and systems:
        return systems, f"{target.system}'s own"
    if host.pythons:
        return host.pythons[0].name, "the one running here"
    return "3.11", "no Python was seen on this host"
