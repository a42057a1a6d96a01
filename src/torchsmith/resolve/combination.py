"""The rules: which torch, Python, CUDA, GPU, compiler and companion go together.

A `Combination` holds just what the rules look at, so that the search for the nearest
working one can try thousands of them in milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from msgspec import Struct
from msgspec.structs import replace

from torchsmith.facts.cuda import compiles, find_arch, find_toolkit, host_compiler
from torchsmith.facts.files import Facts, addresses
from torchsmith.facts.ranges import release, version_range
from torchsmith.facts.torch import companion_for, companion_releases, entry_for, find_release
from torchsmith.resolve.models import Conflict, Evidence


class Combination(Struct, frozen=True):
    """What must go together. Empty text or tuple: not asked for."""

    torch: str
    python: str = ""
    cuda: str = ""
    archs: tuple[str, ...] = ()
    cudnn: str = ""
    compiler: tuple[str, str] | None = None
    companions: tuple[tuple[str, str], ...] = ()
    board: str = ""
    from_source: bool = True

    def shown(self) -> str:
        """In words a person would use."""
        parts = [f"torch {self.torch}"]
        if self.python:
            parts.append(f"Python {self.python}")
        parts.append(f"CUDA {self.cuda}" if self.cuda else "no CUDA")
        if self.archs:
            parts.append(f"compute capability {', '.join(self.archs)}")
        if self.cudnn:
            parts.append(f"cuDNN {self.cudnn}")
        if self.compiler and self.compiler[1]:
            parts.append(f"{self.compiler[0]} {self.compiler[1]}")
        parts += [f"{name} {version}" for name, version in self.companions if version != "match"]
        return ", ".join(parts)


class Clash(Struct, frozen=True):
    """A broken rule: the conflict, and the two parts of the combination it is about."""

    conflict: Conflict
    dimensions: tuple[str, str]
    subject: str = ""

    @property
    def identity(self) -> tuple[str, str]:
        """Tells the same clash in two combinations."""
        return self.conflict.kind, self.subject


def clashes(facts: Facts, asked: Combination) -> tuple[Clash, ...]:
    """Every rule this combination breaks."""
    return tuple(_clashes(facts, asked))


def _clashes(facts: Facts, asked: Combination) -> Iterator[Clash]:
    if asked.python:
        yield from _python(facts, asked.torch, asked.python)
    if asked.cuda:
        yield from _cuda(facts, asked.torch, asked.cuda)
        for arch in asked.archs:
            yield from _arch(facts, asked.torch, asked.cuda, arch)
        if asked.cudnn:
            yield from _cudnn(facts, asked.torch, asked.cuda, asked.cudnn)
        if asked.board:
            yield from _board_cuda(facts, asked.board, asked.cuda)
    if asked.compiler and asked.compiler[1] and asked.from_source:
        yield from _compiler(facts, asked.torch, asked.cuda, *asked.compiler)
    for name, version in asked.companions:
        yield from _companion(facts, asked.torch, name, version)


@cache
def _python(facts: Facts, torch: str, python: str) -> tuple[Clash, ...]:
    known = find_release(facts, torch)
    if known is None or not known.pythons or python in known.pythons:
        return ()
    oldest, newest = known.pythons[0], known.pythons[-1]
    older = release(python) < release(oldest)
    why = (
        f"torch {torch} dropped Python {python}: it needs {oldest} or newer"
        if older
        else f"Python {python} is newer than torch {torch}, whose bindings know {oldest} to {newest}"
    )
    return (
        Clash(
            Conflict(
                "python-torch",
                f"Python {python} and torch {torch} do not go together: {why}",
                Evidence(f"asked for: Python {python}"),
                Evidence(
                    f"torch {torch} was published for CPython {', '.join(known.pythons)}",
                    addresses(facts.releases.sources, known),
                ),
            ),
            ("python", "torch"),
        ),
    )


@cache
def _cuda(facts: Facts, torch: str, cuda: str) -> tuple[Clash, ...]:
    if find_toolkit(facts, cuda) is None:
        known = [item.version for item in facts.cuda.toolkit]
        return (
            Clash(
                Conflict(
                    "cuda-unknown",
                    f"there is no CUDA toolkit {cuda} that we know of",
                    Evidence(f"asked for: CUDA {cuda}"),
                    Evidence(f"toolkits known: {', '.join(known)}"),
                ),
                ("cuda", "cuda"),
            ),
        )
    entry = entry_for(facts.torch.cuda, torch)
    if entry is None or cuda in version_range(entry.value):
        return ()
    span = version_range(entry.value)
    because = f": {entry.note}" if entry.note else ""
    return (
        Clash(
            Conflict(
                "cuda-torch",
                f"torch {torch} does not build with CUDA {cuda}",
                Evidence(f"asked for: CUDA {cuda}"),
                Evidence(
                    f"torch {torch} builds with CUDA {span}{because}",
                    addresses(facts.torch.sources, entry),
                ),
            ),
            ("cuda", "torch"),
        ),
    )


@cache
def _arch(facts: Facts, torch: str, cuda: str, arch: str) -> tuple[Clash, ...]:
    found: list[Clash] = []
    known = find_arch(facts, arch)
    asked = Evidence(f"asked for: compute capability {arch}")
    if known is None:
        listed = ", ".join(item.arch for item in facts.cuda.arch)
        return (
            Clash(
                Conflict(
                    "arch-unknown",
                    f"no GPU has compute capability {arch}",
                    asked,
                    Evidence(f"compute capabilities known: {listed}"),
                ),
                ("archs", "archs"),
                arch,
            ),
        )
    if find_toolkit(facts, cuda) is not None and not compiles(facts, cuda, arch):
        found.append(
            Clash(
                Conflict(
                    "arch-cuda",
                    f"CUDA {cuda} cannot compile for compute capability {arch} ({known.family})",
                    asked,
                    Evidence(
                        f"{arch} ({known.family}) needs CUDA {version_range(known.cuda)}",
                        addresses(facts.cuda.sources, known),
                    ),
                ),
                ("archs", "cuda"),
                arch,
            )
        )
    entry = entry_for(facts.torch.archs, torch)
    if entry is not None and arch not in entry.known:
        found.append(
            Clash(
                Conflict(
                    "arch-torch",
                    f"torch {torch} does not know compute capability {arch} ({known.family})",
                    asked,
                    Evidence(
                        f"torch {torch} knows {', '.join(entry.known)}",
                        addresses(facts.torch.sources, entry),
                    ),
                ),
                ("archs", "torch"),
                arch,
            )
        )
    return tuple(found)


@cache
def _cudnn(facts: Facts, torch: str, cuda: str, cudnn: str) -> tuple[Clash, ...]:
    found: list[Clash] = []
    entry = entry_for(facts.torch.cudnn, torch)
    if entry is not None and cudnn not in version_range(entry.value):
        found.append(
            Clash(
                Conflict(
                    "cudnn-torch",
                    f"torch {torch} does not build with cuDNN {cudnn}",
                    Evidence(f"asked for: cuDNN {cudnn}"),
                    Evidence(
                        f"torch {torch} builds with cuDNN {version_range(entry.value)}",
                        addresses(facts.torch.sources, entry),
                    ),
                ),
                ("cudnn", "torch"),
            )
        )
    lines = [line for line in facts.cuda.cudnn if cudnn in version_range(line.cudnn)]
    if lines and not any(cuda in version_range(line.cuda) for line in lines):
        spans = " or ".join(str(version_range(line.cuda)) for line in lines)
        found.append(
            Clash(
                Conflict(
                    "cudnn-cuda",
                    f"cuDNN {cudnn} was not made for CUDA {cuda}",
                    Evidence(f"asked for: cuDNN {cudnn}"),
                    Evidence(
                        f"cuDNN {cudnn} is for CUDA {spans}",
                        addresses(facts.cuda.sources, lines[0]),
                    ),
                ),
                ("cudnn", "cuda"),
            )
        )
    return tuple(found)


@cache
def _compiler(facts: Facts, torch: str, cuda: str, kind: str, version: str) -> tuple[Clash, ...]:
    found: list[Clash] = []
    asked = Evidence(f"compiler: {kind} {version}")
    if cuda:
        limit = host_compiler(facts, cuda, kind)
        if limit is not None and version not in version_range(f":{limit.newest}"):
            found.append(
                Clash(
                    Conflict(
                        "compiler-cuda",
                        f"nvcc of CUDA {cuda} refuses {kind} {version} as host compiler",
                        asked,
                        Evidence(
                            f"CUDA {cuda} accepts {kind} up to {limit.newest}",
                            addresses(facts.cuda.sources, limit),
                        ),
                    ),
                    ("compiler", "cuda"),
                )
            )
    entry = entry_for(facts.torch.cxx, torch)
    if entry is not None and kind == "gcc" and version not in version_range(entry.gcc):
        found.append(
            Clash(
                Conflict(
                    "compiler-torch",
                    f"torch {torch} does not compile with gcc {version}",
                    asked,
                    Evidence(
                        f"torch {torch} is C++{entry.standard} and needs gcc "
                        f"{version_range(entry.gcc)}",
                        addresses(facts.torch.sources, entry),
                    ),
                ),
                ("compiler", "torch"),
            )
        )
    return tuple(found)


@cache
def _board_cuda(facts: Facts, name: str, cuda: str) -> tuple[Clash, ...]:
    board = next((item for item in facts.boards.board if item.name == name), None)
    if board is None or not board.jetpack:
        return ()
    wanted = release(cuda)[:2]
    if any(release(jetpack.cuda)[:2] == wanted for jetpack in board.jetpack):
        return ()
    offered = ", ".join(f"{item.cuda} (JetPack {item.version})" for item in board.jetpack)
    return (
        Clash(
            Conflict(
                "board-cuda",
                f"no JetPack brings CUDA {cuda} to the {board.title}",
                Evidence(f"asked for: CUDA {cuda}"),
                Evidence(
                    f"CUDA on the {board.title} comes with JetPack: {offered}",
                    addresses(facts.boards.sources, board.jetpack[0]),
                ),
            ),
            ("cuda", "cuda"),
        ),
    )


@cache
def _companion(facts: Facts, torch: str, name: str, version: str) -> tuple[Clash, ...]:
    project = next(item for item in facts.companions.project if item.name == name)
    table = facts.companions.sources
    if version == "match":
        if companion_for(facts, name, torch) is not None:
            return ()
        releases = companion_releases(facts, name)
        newest = releases[-1]
        ended = f"{project.package} ended at {project.ended}" if project.ended else ""
        statement = (
            f"{ended}, which goes with torch {newest.torch}"
            + (f" ({project.ended_reason})" if project.ended_reason else "")
            if ended and release(torch) > (version_range(newest.torch).low or ())
            else f"{project.package} has no release for torch {torch}"
        )
        return (
            Clash(
                Conflict(
                    "companion-missing",
                    f"there is no {project.package} for torch {torch}",
                    Evidence(f"asked for: {name} to match torch {torch}"),
                    Evidence(statement, addresses(table, project if ended else newest)),
                ),
                ("companions", "torch"),
                name,
            ),
        )
    entry = next(
        (item for item in companion_releases(facts, name) if item.version == version), None
    )
    if entry is None:
        return (
            Clash(
                Conflict(
                    "companion-unknown",
                    f"there is no {project.package} {version} that we know of",
                    Evidence(f"asked for: {project.package} {version}"),
                    Evidence(
                        f"newest known: {companion_releases(facts, name)[-1].version}",
                        addresses(table, companion_releases(facts, name)[-1]),
                    ),
                ),
                ("companions", "torch"),
                name,
            ),
        )
    if torch in version_range(entry.torch):
        return ()
    return (
        Clash(
            Conflict(
                "companion-torch",
                f"{project.package} {version} does not go with torch {torch}",
                Evidence(f"asked for: torch {torch}"),
                Evidence(
                    f"{project.package} {version} is built against torch "
                    f"{version_range(entry.torch)}",
                    addresses(table, entry),
                ),
            ),
            ("companions", "torch"),
            name,
        ),
    )


def with_companion(asked: Combination, name: str, version: str) -> Combination:
    """The same combination with one companion at another release."""
    companions = tuple(
        (mine, version if mine == name else theirs) for mine, theirs in asked.companions
    )
    return replace(asked, companions=companions)
