"""Every failure a person can meet, with its exit code.

A message is one short sentence of what happened; `hint` says what to do next. A traceback
is for bugs only, never for these.
"""

from __future__ import annotations

from collections.abc import Sequence


class TorchsmithError(Exception):
    """Something went wrong in a way we can explain."""

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(TorchsmithError):
    """The command line asks for something that does not exist or does not fit together."""

    exit_code = 2


class RecipeError(TorchsmithError):
    """The recipe file cannot be read as one; every problem found is listed."""

    exit_code = 2

    def __init__(self, path: str, problems: Sequence[RecipeProblem]) -> None:
        self.path = path
        self.problems = tuple(problems)
        count = len(self.problems)
        noun = "problem" if count == 1 else "problems"
        super().__init__(
            f"{path}: {count} {noun} in the recipe",
            "Mend the lines above; `torchsmith schema` describes every key.",
        )


class RecipeProblem:
    """One thing wrong with a recipe: where, what, and what was probably meant."""

    __slots__ = ("key", "line", "meant", "message")

    def __init__(self, message: str, *, key: str = "", line: int | None = None, meant: str = ""):
        self.message = message
        self.key = key
        self.line = line
        self.meant = meant

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line else ""
        key = f"{self.key}: " if self.key else ""
        meant = f" (did you mean {self.meant!r}?)" if self.meant else ""
        return f"{where}{key}{self.message}{meant}"


class ConflictError(TorchsmithError):
    """What was asked for cannot exist; the conflicts were printed."""

    exit_code = 3


class HostError(TorchsmithError):
    """This machine cannot do it as it is."""

    exit_code = 4


class OutputError(TorchsmithError):
    """A result could not be written."""

    exit_code = 5
