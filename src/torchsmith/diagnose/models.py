"""The shape of what is known. The data are in ``data/*.toml``; nothing here is data."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from torchsmith.facts.models import Range

Id = Annotated[str, Meta(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
Text = Annotated[str, Meta(min_length=1)]
Url = Annotated[str, Meta(pattern=r"^https://\S+$")]
# What can be looked up on a machine to tell causes apart; `conditions` answers each.
Condition = Literal[
    "driver-older-than-cuda",
    "driver-new-enough",
    "driver-not-answering",
    "gpu-without-forward-compatibility",
    "little-shared-memory",
    "little-memory",
]
# A symptom is named only after the causes; a warning after both. A note is a warning that may be
# ignored: a log that has nothing else tells of no failure. A kind is looked for only in the lines
# that end a log that nothing else explains.
Standing = Literal["cause", "symptom", "warning", "note", "kind"]


class _Model(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`kw_only` and `frozen` are not handed down by themselves."""


class Cause(_Model, frozen=True, kw_only=True):
    """One reason of several. It is the one if its conditions hold, or if its line is there."""

    text: Text
    cure: Text
    when: list[Condition] = []
    line: str = ""


class Fix(_Model, frozen=True, kw_only=True):
    """A cure that is one change of a recipe.

    `append` adds to a list, `halve` takes half of a number: what is written, or the cores.
    """

    key: Annotated[str, Meta(pattern=r"^[a-z_]+(\.[A-Za-z_]+){0,2}$")]
    how: Literal["set", "append", "halve"] = "set"
    value: str | int = ""


class Applies(_Model, frozen=True, kw_only=True):
    """The versions a failure belongs to; others cannot have it."""

    torch: Range | None = None
    cuda: Range | None = None
    python: Range | None = None


class Failure(_Model, frozen=True, kw_only=True):
    """One failure: how to know it again, and what to do.

    A pattern is a regular expression for one line. One of `any_of` must be there, every one of
    `all_of`, and nothing of `none_of`. What its groups catch fills ``{name}`` in the texts;
    ``{name|words}`` has words for the case that nothing was caught.
    """

    id: Id
    title: Text
    any_of: Annotated[list[str], Meta(min_length=1)]
    all_of: list[str] = []
    none_of: list[str] = []
    meaning: Text
    cure: Text
    cause: list[Cause] = []
    standing: Standing = "cause"
    # Lines after which it does not count any more: a retry that succeeded.
    overcome_by: list[str] = []
    # What follows from this one, and is not named beside it.
    hides: list[Id] = []
    applies_to: Applies | None = None
    fix: Fix | None = None
    source: Url
    # Some lines of a real log: the entry's own test.
    excerpt: Text


class FailuresFile(_Model, frozen=True, kw_only=True):
    """One file of ``data/``."""

    failure: list[Failure]
