"""`torchsmith fits`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from torchsmith.cli.output import counted, print_json
from torchsmith.errors import UsageError, VerificationError
from torchsmith.printable import printable

if TYPE_CHECKING:
    from torchsmith.verify.fits import Subject, Verdict

_KINDS = {
    "pure": "nothing: it has no compiled libraries",
    "independent": "nothing: its libraries are not built against torch",
}


def fits(
    wheel: Annotated[Path, Argument(help="A wheel that was built against torch.")],
    torch: Annotated[
        str, Option(help="Only these releases: 2.8, or 2.6:2.9. All have to fit.")
    ] = "",
    env: Annotated[Path | None, Option(help="Compare it with the torch installed there.")] = None,
    json: Annotated[bool, Option("--json", help="All of it, for scripts.")] = False,
) -> None:
    """Say which torch releases a compiled wheel loads with, and why not with others.

    Ends with 0 if it fits: every release named, or at least one if none is; otherwise with 9.
    """
    import os

    from torchsmith.facts.files import Facts
    from torchsmith.facts.ranges import version_range
    from torchsmith.host.probe import Programs
    from torchsmith.host.system import read_libc, read_platform, read_torch
    from torchsmith.verify.fits import fitting, judge_installed, judge_releases, read_subject
    from torchsmith.verify.target import read_environment

    if torch and env is not None:
        raise UsageError("--torch and --env exclude each other", "Give one of them.")
    try:
        releases = version_range(torch or ":")
    except ValueError as error:
        raise UsageError(f"--torch: {error}", "Write 2.8, 2.6:2.9 or 2.6: (and newer).") from None
    subject = read_subject(wheel)
    if env is not None:
        programs = Programs(os.environ)
        installed = read_torch(programs, read_environment(env).python)
        if installed is None:
            raise UsageError(f"there is no torch in {env}", "Name an environment that has one.")
        libc = read_libc(programs)
        glibc = libc.version if libc is not None and libc.kind == "glibc" else ""
        machine = read_platform().partition("-")[2]
        verdicts = judge_installed(subject, installed, machine, glibc)
    else:
        verdicts = judge_releases(subject, Facts(), releases)
    if json:
        print_json(_as_data(subject, verdicts))
    else:
        print("\n".join(_lines(subject, verdicts)))
    good = fitting(verdicts)
    if not good or ((torch or env) and len(good) < len(verdicts)):
        where = f"torch {verdicts[0].torch}" if len(verdicts) == 1 else "these releases"
        raise VerificationError(
            f"{wheel.name} does not fit {where if torch or env else 'any known release'}",
            "Install the torch it was built against, or build it for this one.",
        )


def _as_data(subject: Subject, verdicts: Sequence[Verdict]) -> dict[str, Any]:
    """Everything, under the keys of docs/fits.md."""
    import msgspec

    from torchsmith.verify.fits import fitting, pythons

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


def _lines(subject: Subject, verdicts: Sequence[Verdict]) -> Iterator[str]:
    """What it needs, then a line for all neighbouring releases of which the same is true."""
    from torchsmith.verify.fits import pythons

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
