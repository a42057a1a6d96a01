"""Which torches a wheel fits, for people and for scripts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import msgspec

from torchsmith.cli.output import counted
from torchsmith.printable import printable
from torchsmith.verify.fits import Subject, Verdict, fitting, pythons

_KINDS = {
    "pure": "nothing: it has no compiled libraries",
    "independent": "nothing: its libraries are not built against torch",
}


def as_data(subject: Subject, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Everything, under the keys of docs/fits.md."""
    return {
        "wheel": str(subject.wheel.path),
        "name": subject.wheel.name,
        "package_version": subject.wheel.version,
        "abi": subject.kind,
        "platform": subject.platform,
        "python": pythons(subject.wheel),
        "glibc": subject.glibc,
        "libstdcxx": subject.libstdcxx,
        "cuda": subject.cuda,
        "needs_cuda": subject.needs_cuda,
        "asks_for": subject.torch,
        "outside": list(subject.outside),
        "symbols": len(subject.symbols),
        "fits": fitting(verdicts),
        "releases": msgspec.to_builtins(verdicts),
    }


def lines(subject: Subject, verdicts: Sequence[Verdict]) -> Iterator[str]:
    """What it needs, then a line for all neighbouring releases of which the same is true."""
    wheel = subject.wheel
    where = f" for {subject.platform}" if subject.platform else ""
    yield printable(f"{wheel.name} {wheel.version}{where}")
    yield from _line("Python", pythons(wheel))
    least = (("glibc", subject.glibc), ("libstdc++", subject.libstdcxx))
    yield from _line("at least", ", ".join(f"{name} {text}" for name, text in least if text))
    yield from _line("CUDA", subject.cuda or ("any its torch has" if subject.needs_cuda else ""))
    yield from _line("of torch", _taken(subject))
    yield from _line("asks for", f"torch {subject.torch}" if subject.torch else "")
    yield from _line("also needs", " ".join(subject.outside))
    yield ""
    if not subject.parts:
        yield "ok fits any torch"
        return
    for _, group in groupby(verdicts, key=_same):
        yield from _verdict(list(group))
    if subject.kind == "stable" and verdicts[-1].fits:
        yield "   Later releases keep these functions: that is what the stable ABI promises."


def _line(name: str, text: str) -> Iterator[str]:
    if text:
        yield printable(f"  {name:<10} {text}")


def _taken(subject: Subject) -> str:
    if not subject.parts:
        return _KINDS[subject.kind]
    count = counted(len(subject.symbols), "symbol")
    places = counted(len(subject.parts), "library").replace("librarys", "libraries")
    return f"{count} in {places}" + (", stable ABI only" if subject.kind == "stable" else "")


def _same(verdict: Verdict) -> tuple[object, ...]:
    return verdict.fits, verdict.reason, verdict.library, verdict.symbol


def _verdict(group: Sequence[Verdict]) -> Iterator[str]:
    first, last = group[0], group[-1]
    span = first.torch if len(group) == 1 else f"{first.torch} to {last.torch}"
    if first.fits:
        yield f"ok torch {span}"
    elif not first.symbol:
        yield printable(f"x  torch {span}: {first.reason}")
    else:
        more = f" (and {first.missing - 1} more)" if first.missing > 1 else ""
        yield printable(f"x  torch {span}: {first.library} needs")
        yield printable(f"     {first.demangled or first.symbol}{more}")
        if first.demangled:
            yield printable(f"     {first.symbol}")
