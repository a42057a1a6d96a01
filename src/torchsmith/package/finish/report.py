"""What was found in a wheel and what was changed, for people and for scripts."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from torchsmith.package.finish.outside import Origin, Outside

_SAID: dict[Origin, str] = {
    "system": "the machine's",
    "vendor": "put into the wheel",
    "wheels": "required",
    "torch": "torch's own",
    "driver": "the driver's",
    "python": "Python's own, not needed",
}
_MIB = 1 << 20


class Change(msgspec.Struct, frozen=True):
    """One thing that is different in the finished wheel."""

    what: str
    now: str


class Finished(msgspec.Struct, frozen=True):
    """A wheel as it was finished, or as it would be: `written` says which.

    `platform` is the tag that is true, `because` what keeps it from an older one. Sizes are those
    of the files; `after` is 0 where nothing was written.
    """

    wheel: str
    result: str
    platform: str
    because: str
    outside: tuple[Outside, ...] = ()
    changes: tuple[Change, ...] = ()
    before: int = 0
    after: int = 0
    written: bool = False


def lines(made: Finished) -> Iterator[str]:
    """What a person wants to know of it."""
    yield made.wheel.rpartition("/")[2]
    yield f"  tag  {made.platform}" + (f" ({made.because})" if made.because else "")
    if made.outside:
        yield "  libraries outside of it"
    width = max((len(item.name) for item in made.outside), default=0)
    for item in made.outside:
        said = _SAID[item.origin]
        if item.becomes:
            said += f": {item.becomes}"
        yield f"    {item.name:{width}}  {said}"
    if made.changes:
        yield "  changed" if made.written else "  would change"
    for change in made.changes:
        yield f"    {change.what}: {change.now}"
    sizes = f", {made.after / _MIB:.1f} MiB, was {made.before / _MIB:.1f}" if made.written else ""
    yield f"  {'made' if made.written else 'would make'} {made.result}{sizes}"
