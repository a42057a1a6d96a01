"""The name that was probably meant, where one is not known."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The known name that is closest, in whatever case it is written; empty if none is close.

    Part of a name counts where nothing is close: tx2 is the jetson-tx2.
    """
    by_lower = {one.lower(): one for one in known}
    lower = name.lower()
    close = difflib.get_close_matches(lower, by_lower, n=1, cutoff=cutoff)
    close = close or [one for one in by_lower if len(lower) > 2 and lower in one.split("-")]
    return by_lower[close[0]] if close else ""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint: the name that is close, or those there are."""
    names = list(known)
    found = nearest(name, names)
    more = ", …" if len(names) > 20 else ""
    return f"Did you mean {found}?" if found else f"Known are {', '.join(names[:20])}{more}."
