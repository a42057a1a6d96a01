"""The nearest combination that works: the one with the least change that breaks no rule.

Almost every rule ties something to torch or to CUDA. So torch and CUDA are tried in the order
of their distance, and for each pair the rest is settled piece by piece; what is found first
and cannot be undercut is the nearest.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import cache

from msgspec import Struct
from msgspec.structs import replace

from torchsmith.facts.cuda import (
    arch_number,
    archs_of,
    host_compiler,
    renamed_arch,
    runs_on,
    toolkits,
)
from torchsmith.facts.files import Facts
from torchsmith.facts.ranges import python_release, release, version_range
from torchsmith.facts.torch import companion_for, entry_for, find_release, is_published, releases
from torchsmith.resolve.build_rules import (
    BUILD_RULES,
    clashes,
    from_uv,
    python_place_rule,
    there_rule,
)
from torchsmith.resolve.combination import Combination, Rule, with_companion
from torchsmith.resolve.rules import (
    arch_rule,
    companion_rule,
    cuda_rule,
    cudnn_rule,
    python_rule,
    stack_release,
    stack_rule,
    wheel_python_rule,
    wheel_rule,
)

Option = tuple[float, Combination]

# How reluctantly a person changes each of them: what a change costs at all, and what each step
# away from the wish costs more. The GPU is bolted in, torch is what was named first: everything
# else together moves before it; a cuDNN release hardly matters.
_TORCH, _TORCH_STEP, _PATCH = 30.0, 1.0, 0.8
_CUDA, _CUDA_STEP, _UNPUBLISHED = 2.0, 0.2, 3.0
_PYTHON, _PYTHON_STEP = 2.0, 0.5
_SMALL, _SMALL_STEP = 1.0, 0.1
_SYSTEM = 2.0
_SAME_GPU, _OLDER_CODE, _PTX, _NO_GPU = 0.5, 8.0, 80.0, 120.0
_OTHER_COMPANION, _NO_COMPANION = 0.5, 8.0
_FLAVOUR, _UNPROVEN = 3.0, 6.0


@cache
def _steps(versions: tuple[str, ...], asked: str) -> dict[str, int]:
    """How many known versions away each one is from the one asked for."""
    numbers = sorted({*versions, asked}, key=release)
    at = numbers.index(asked)
    return {version: abs(numbers.index(version) - at) for version in versions}


def _by_cost(options: dict[str, float]) -> list[tuple[float, str]]:
    """The cheapest first; of two as cheap, the newer."""
    newest = sorted(options, key=release, reverse=True)
    return sorted(((options[version], version) for version in newest), key=lambda item: item[0])


@cache
def torch_options(facts: Facts, asked: str, cuda: str = "") -> tuple[tuple[float, str], ...]:
    """Every release with what it costs to change to it; other minors by their newest patch.

    With a CUDA that stays: the releases PyTorch publishes for it first.
    """
    every = [item.version for item in releases(facts)]
    minors = tuple(dict.fromkeys(".".join(item.split(".")[:2]) for item in every))
    mine = ".".join(asked.split(".")[:2])
    away = _steps(minors, mine)
    costs: dict[str, float] = {}
    for minor in minors:
        patches = [item for item in every if item.startswith(f"{minor}.")]
        for distance, version in enumerate(reversed(patches)):
            if minor == mine:
                step = abs(release(version)[-1] - release(asked)[-1])
                costs[version] = (_PATCH + _SMALL_STEP * step) if version != asked else 0.0
            else:
                costs[version] = _TORCH + _TORCH_STEP * away[minor] + 0.5 * distance
            if cuda and not is_published(facts, version, cuda):
                costs[version] += _UNPUBLISHED
    return tuple(_by_cost(costs))


@cache
def cuda_options(facts: Facts, torch: str, asked: str, board: str) -> tuple[tuple[float, str], ...]:
    """Every toolkit with what it costs; those PyTorch publishes this release for come first."""
    if not asked:
        return ((0.0, ""),)
    known = tuple(item.version for item in toolkits(facts))
    away = _steps(known, asked)
    costs: dict[str, float] = {}
    for version in known:
        cost = 0.0 if version == asked else _CUDA + _CUDA_STEP * away[version]
        if not board and version != asked and not is_published(facts, torch, version):
            cost += _UNPUBLISHED
        costs[version] = cost
    return tuple(_by_cost(costs))


def python_options(facts: Facts, asked: Combination) -> Iterator[Option]:
    """The Pythons of this torch that somebody brings, the nearest first."""
    known = find_release(facts, asked.torch)
    if not asked.python or known is None:
        yield 0.0, asked
        return
    wanted = python_release(asked.python)[1]
    options: list[tuple[float, int, Combination]] = []
    for version in dict.fromkeys((*known.pythons, *known.experimental)):
        away = abs(python_release(version)[1] - wanted)
        cost = _PYTHON + _PYTHON_STEP * away if version != asked.python else 0.0
        if version.endswith("t") != asked.python.endswith("t"):
            cost += _FLAVOUR
        if version in known.experimental and version != asked.python:
            cost += _FLAVOUR
        newest = -python_release(version)[1]
        options.append((cost, newest, replace(asked, python=version)))
        # A Python uv does not have is some distribution's own.
        if not from_uv(version) and not asked.board:
            options += [
                (cost + system, newest, replace(asked, python=version, system=name))
                for system, name in _systems(facts, asked)
                if name and name != asked.system
            ]
    yield from ((cost, option) for cost, _, option in sorted(options, key=lambda item: item[:2]))


def arch_options(facts: Facts, asked: Combination) -> Iterator[Option]:
    """Arch lists that serve the same GPUs: as asked, renamed, older code, PTX; then fewer GPUs."""
    yield 0.0, asked
    if not asked.archs or not asked.cuda:
        return
    own = next((item.arch for item in facts.boards.board if item.name == asked.board), "")
    if own:
        yield _OLDER_CODE, replace(asked, archs=(renamed_arch(asked.cuda, own),))
    usable = _usable(facts, asked.torch, asked.cuda, own)
    found = [_serving(arch, usable, asked.cuda) for arch in asked.archs]
    archs = tuple(dict.fromkeys(arch for _, arch in found if arch))
    if archs:
        yield sum(cost for cost, _ in found), replace(asked, archs=_once(archs))


@cache
def _usable(facts: Facts, torch: str, cuda: str, own: str) -> frozenset[str]:
    """What both CUDA and torch know, a board's own included."""
    entry = entry_for(facts.torch.archs, torch)
    known = {item.arch for item in archs_of(facts, cuda)}
    return frozenset(known if entry is None else known & {*entry.known, own})


def _once(archs: Sequence[str]) -> tuple[str, ...]:
    """Each architecture once; 9.0+PTX holds 9.0."""
    return tuple(arch for arch in archs if f"{arch}+PTX" not in archs)


@cache
def _serving(text: str, usable: frozenset[str], cuda: str) -> tuple[float, str]:
    """What serves a GPU of this arch list entry, with what that costs; nothing if nothing does."""
    arch = text.removesuffix("+PTX")
    ptx = text[len(arch) :]
    if arch in usable:
        return 0.0, text
    plain = arch.rstrip("af")
    for named in (renamed_arch(cuda, arch), renamed_arch(cuda, plain)):
        if named in usable:
            return _SAME_GPU, named + ptx
    real = [item for item in usable if not arch_number(item)[2]]
    binary = [item for item in real if runs_on(plain, item)]
    if binary:
        return _OLDER_CODE, max(binary, key=arch_number) + ptx
    translated = [item for item in real if runs_on(plain, item, ptx=True)]
    if translated:
        return _PTX, f"{max(translated, key=arch_number)}+PTX"
    return _NO_GPU, ""


def cudnn_options(facts: Facts, asked: Combination) -> Iterator[Option]:
    """Every cuDNN line by its first and last release, the nearest first."""
    yield 0.0, asked
    if not asked.cudnn or not asked.cuda:
        return
    lines = {end for line in facts.cuda.cudnn for end in line.cudnn.split(":") if end}
    away = _steps(tuple(sorted(lines, key=release)), asked.cudnn)
    for cost, version in _by_cost({v: _SMALL + _SMALL_STEP * away[v] for v in away}):
        yield cost, replace(asked, cudnn=version)


def companion_options(facts: Facts, asked: Combination) -> Iterator[Option]:
    """Every companion at the release for this torch, or left out where there is none."""
    cost = 0.0
    settled = asked
    both = itertools.chain(companion_rule(facts, asked), stack_rule(facts, asked))
    for clash in {clash.subject: clash for clash in both}.values():
        newest = companion_for(facts, clash.subject, asked.torch)
        match = stack_release(facts, clash.subject, "match", asked) or newest
        if match and dict(asked.companions)[clash.subject] in ("match", match.version):
            # It takes this torch, but not the rest.
            match = None
        cost += _OTHER_COMPANION if match else _NO_COMPANION
        settled = with_companion(settled, clash.subject, match.version if match else "")
    yield cost, settled


def place_options(facts: Facts, asked: Combination) -> Iterator[Option]:
    """Other compilers, distributions, toolkits and JetPacks, the smallest change first."""
    yield 0.0, asked
    # A build on this machine goes into a container only where nothing else helps.
    stays = not asked.system and asked.toolkit != "image"
    systems = [(0.0, "")] if stays and not _breaks(facts, asked, (there_rule,)) else None
    choices = itertools.product(
        _compilers(facts, asked),
        systems or _systems(facts, asked),
        _toolkits(asked),
        _jetpacks(facts, asked),
    )
    for cost, *_, chosen in sorted(
        (sum(item[0] for item in choice), number, choice) for number, choice in enumerate(choices)
    ):
        (_, compiler), (_, system), (_, toolkit), (_, jetpack) = chosen
        yield (
            cost,
            replace(asked, compiler=compiler, system=system, toolkit=toolkit, jetpack=jetpack),
        )


def _compilers(facts: Facts, asked: Combination) -> Iterator[tuple[float, tuple[str, str] | None]]:
    yield 0.0, asked.compiler
    if asked.compiler is None or not asked.compiler[1]:
        return
    kind, version = asked.compiler
    limit = host_compiler(facts, asked.cuda, kind) if asked.cuda else None
    newest = release(limit.newest)[0] if limit else 16
    for major in range(newest, 3, -1):
        if major != release(version)[0]:
            step = abs(major - release(version)[0])
            yield _SMALL + _SMALL_STEP * step, (kind, str(major))


def _systems(facts: Facts, asked: Combination) -> Iterator[tuple[float, str]]:
    yield 0.0, asked.system
    family = asked.system.partition("-")[0]
    names = [item.name for item in facts.systems.system]
    mine = [name for name in names if name.startswith(f"{family}-")]
    # Of another family the newest, and rather its neighbour than a stranger.
    strangers = [name for name in reversed(names) if name not in mine]
    for name in names:
        if name == asked.system or not name.partition("-")[2][0].isdecimal():
            continue
        away = abs(mine.index(name) - mine.index(asked.system)) if name in mine else 0
        step = away or len(names) + strangers.index(name)
        yield _SYSTEM + _SMALL_STEP * step / 2, name


def _toolkits(asked: Combination) -> Iterator[tuple[float, str]]:
    yield 0.0, asked.toolkit
    # An image of a distribution has no toolkit of its own.
    others = ("",) if asked.system else ("", "system")
    for other in others if asked.toolkit else ():
        yield _SMALL, other


def _jetpacks(facts: Facts, asked: Combination) -> Iterator[tuple[float, str]]:
    yield 0.0, asked.jetpack
    board = next((item for item in facts.boards.board if item.name == asked.board), None)
    if board is not None and asked.jetpack:
        away = _steps(tuple(item.version for item in board.jetpack), asked.jetpack)
        for version, step in away.items():
            if step:
                yield _SYSTEM + _SMALL_STEP * step, version


class _Piece(Struct, frozen=True):
    """A part that is settled by itself once torch and CUDA are given."""

    fields: tuple[str, ...]
    options: Callable[[Facts, Combination], Iterator[Option]]
    rules: tuple[Rule, ...]


_PIECES = (
    _Piece(("archs",), arch_options, (arch_rule,)),
    _Piece(
        ("python", "system"),
        python_options,
        (python_rule, wheel_python_rule, python_place_rule),
    ),
    _Piece(("cudnn",), cudnn_options, (cudnn_rule,)),
    _Piece(("companions",), companion_options, (companion_rule, stack_rule)),
    _Piece(("compiler", "system", "toolkit", "jetpack"), place_options, BUILD_RULES),
)


def _breaks(facts: Facts, asked: Combination, rules: tuple[Rule, ...]) -> bool:
    return any(True for rule in rules for _ in rule(facts, asked))


def _settled(
    facts: Facts, asked: Combination, piece: _Piece, keep: frozenset[str]
) -> Option | None:
    """The cheapest option of one piece that its own rules let pass."""
    unchanged = [name for name in piece.fields if name in keep]
    for cost, option in piece.options(facts, asked):
        if any(getattr(option, name) != getattr(asked, name) for name in unchanged):
            continue
        if not _breaks(facts, option, piece.rules):
            return cost, option
    return None


@cache
def nearest_working(
    facts: Facts, asked: Combination, keep: frozenset[str] = frozenset()
) -> Combination | None:
    """The combination with the least change that breaks no rule; None if there is none."""
    best: Option | None = None
    for torch_cost, torch in torch_options(facts, asked.torch):
        if best is not None and torch_cost >= best[0]:
            break
        if "torch" in keep and torch != asked.torch:
            continue
        for cuda_cost, cuda in cuda_options(facts, torch, asked.cuda, asked.board):
            if best is not None and torch_cost + cuda_cost >= best[0]:
                break
            cost = torch_cost + cuda_cost + _unproven(facts, asked, torch, cuda)
            if "cuda" in keep and cuda != asked.cuda:
                continue
            pair = replace(asked, torch=torch, cuda=cuda)
            best = _rest(facts, (cost, pair), keep, best) or best
    return best[1] if best is not None and not clashes(facts, best[1]) else None


def _unproven(facts: Facts, asked: Combination, torch: str, cuda: str) -> float:
    """What it costs to move to a pair that upstream does not build itself."""
    entry = entry_for(facts.torch.cuda, torch)
    if not cuda or entry is None or (torch, cuda) == (asked.torch, asked.cuda):
        return 0.0
    return 0.0 if cuda in version_range(entry.value) else _UNPROVEN


def _rest(facts: Facts, pair: Option, keep: frozenset[str], best: Option | None) -> Option | None:
    """A pair of torch and CUDA with the rest settled, if that is cheaper than the best so far."""
    if _breaks(facts, pair[1], (cuda_rule, wheel_rule)):
        return None
    for piece in _PIECES:
        found = _settled(facts, pair[1], piece, keep)
        if found is None:
            return None
        pair = (pair[0] + found[0], found[1])
        if best is not None and pair[0] >= best[0]:
            return None
    return pair
