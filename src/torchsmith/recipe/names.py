"""Names in a recipe that must be known to the facts: GPUs, boards, systems, features."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torchsmith.facts.files import Facts
from torchsmith.facts.gpus import find_gpu, nearest_gpus, other_cards
from torchsmith.names import nearest
from torchsmith.recipe.gpus import gpu_wish
from torchsmith.recipe.models import Recipe
from torchsmith.recipe.shown import dotted, shortened

Path = tuple[str | int, ...]


@dataclass(frozen=True)
class UnknownName:
    """A name nobody knows, and the nearest one that somebody does."""

    path: Path
    message: str
    meant: str

    @property
    def key(self) -> str:
        """The dotted key it was written under."""
        return dotted(self.path)


def _unknown_gpus(facts: Facts, path: Path, texts: Iterable[str]) -> Iterator[UnknownName]:
    for text in texts:
        wish = gpu_wish(text)
        if wish.name and find_gpu(facts, wish.name) is None:
            if (other := other_cards(facts, wish.name)) is not None:
                yield UnknownName(
                    path, f"{shortened(wish.name)} is {other.vendor}: {other.exists}", ""
                )
                continue
            close = nearest_gpus(facts, wish.name)
            meant = close[0] if close else ""
            yield UnknownName(
                path,
                f"{shortened(wish.name)} is not a GPU we know; its compute capability, such as "
                '"8.6", always works',
                meant,
            )


def _unknown_features(facts: Facts, path: Path, names: Iterable[str]) -> Iterator[UnknownName]:
    known = [feature.name for feature in facts.features.feature]
    for name in names:
        if name not in known:
            yield UnknownName((*path, name), "is not a feature of PyTorch", nearest(name, known))


def _unknown_packages(facts: Facts, names: Iterable[str]) -> Iterator[UnknownName]:
    known = [*(item.name for item in facts.stack.package)]
    known += [item.package for item in facts.companions.project]
    for name in names:
        if name not in known:
            yield UnknownName(
                ("stack", name),
                "is not a package whose build is known; companions.extension builds any other",
                nearest(name, known),
            )


def unknown_names(recipe: Recipe, facts: Facts) -> Iterator[UnknownName]:
    """Every name in the recipe that the facts do not hold."""
    yield from _unknown_gpus(facts, ("gpus",), recipe.gpus)
    yield from _unknown_gpus(facts, ("packages", "magma_gpus"), recipe.packages.magma_gpus or ())
    for index, gpus in enumerate(recipe.matrix.gpus):
        yield from _unknown_gpus(facts, ("matrix", "gpus", index), gpus)
    for kind, cells in (("exclude", recipe.matrix.exclude), ("include", recipe.matrix.include)):
        for index, cell in enumerate(cells):
            yield from _unknown_gpus(facts, ("matrix", kind, index, "gpus"), cell.gpus or ())
            yield from _unknown_features(
                facts, ("matrix", kind, index, "features"), cell.features or ()
            )
    yield from _unknown_features(facts, ("features",), recipe.features)
    for index, features in enumerate(recipe.matrix.features):
        yield from _unknown_features(facts, ("matrix", "features", index), features)

    yield from _unknown_packages(facts, recipe.stack)
    if recipe.board is not None:
        boards = [board.name for board in facts.boards.board]
        if recipe.board not in boards:
            yield UnknownName(
                ("board",),
                f"{recipe.board!r} is not a board we know: {', '.join(boards)}",
                nearest(recipe.board, boards),
            )
    if recipe.system is not None:
        systems = {system.name: system.codename for system in facts.systems.system}
        if recipe.system not in systems:
            called = (name for name, code in systems.items() if code in recipe.system)
            yield UnknownName(
                ("system",),
                f"{recipe.system!r} is not a distribution we know: {', '.join(systems)}",
                next(called, "") or nearest(recipe.system, systems),
            )
