"""`torchsmith inspect`."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from torchsmith.cli.output import counted, print_json
from torchsmith.printable import printable

if TYPE_CHECKING:
    from torchsmith.package.envelope import Source
    from torchsmith.package.inspection import Inspection, Linkage, Provenance

_WIDTH = 100
_NAME = 12


def inspect(
    file: Annotated[Path, Argument(help="A wheel, conda package or libtorch archive.")],
    json: Annotated[bool, Option("--json", help="All of it, for scripts.")] = False,
) -> None:
    """Say what an artifact is, needs, was made of, and who signed it."""
    import msgspec

    from torchsmith.package.inspection import inspect as look

    found = look(file)
    if json:
        print_json({"artifact": msgspec.to_builtins(found)})
    else:
        print("\n".join(_lines(found)))


def _lines(found: Inspection) -> Iterator[str]:
    """Everything of note, a subject a line."""
    yield printable(found.file)
    label = f", label {found.label}" if found.label else ""
    yield from _line(found.kind, f"{found.name} {found.version}{label}")
    yield from _line("tags", " ".join(found.tags))
    yield from _line("build", " ".join(filter(None, (found.build, found.subdir))))
    yield from _line("Python", found.python)
    yield from _line(
        "size",
        f"{_mb(found.size)}, {counted(found.files, 'file')} of {_mb(found.unpacked)} unpacked",
    )
    yield from _line("sha256", found.sha256)
    yield from _linkage(found.libraries)
    yield from _line("requires", found.requires)
    if found.made is not None:
        yield from _made(found.made, proven=found.signature.state == "trusted")
    yield ""
    if found.verification is not None:
        about = "" if found.verification.fits else ", but of another file"
        signer = found.verification.signer
        proof = f"signed by {signer[:16]}" if signer else "claimed, not proven"
        yield from _line("verified", f"{found.verification.summary}{about}; {proof}")
    else:
        yield from _line("verified", "no report lies beside it")
    yield from _line("materials", found.bill or "no bill of materials lies beside it")
    yield from _line("signature", _signature(found))


def _line(name: str, value: str | Iterable[str]) -> Iterator[str]:
    """A name and its value; a list runs on over several lines, and nothing is left out."""
    text = value if isinstance(value, str) else ", ".join(value)
    text = printable(text)
    if text:
        start = f"  {name:<{_NAME}} "
        yield from textwrap.wrap(
            text,
            _WIDTH,
            initial_indent=start,
            subsequent_indent=" " * len(start),
            break_long_words=False,
            break_on_hyphens=False,
        )


def _mb(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"


def _linkage(libraries: Linkage) -> Iterator[str]:
    if not libraries.count:
        yield from _line("libraries", "none")
        return
    yield from _line("libraries", f"{libraries.count} for {' '.join(libraries.machines)}")
    yield from _line("damaged", libraries.broken)
    yield from _line("needs", " ".join(libraries.outside))
    yield from _line("searches", " ".join(libraries.search))
    versions = (("glibc", libraries.glibc), ("libstdc++", libraries.libstdcxx))
    yield from _line("at least", ", ".join(f"{name} {text}" for name, text in versions if text))
    reason = f"none: it needs {' '.join(libraries.foreign)}" if libraries.foreign else "none"
    yield from _line("manylinux", libraries.manylinux or reason)
    yield from _line("GPU code", " ".join(libraries.gpu) or "none")


def _made(made: Provenance, *, proven: bool) -> Iterator[str]:
    yield ""
    yield "made" if proven else "made (claimed, not proven)"
    name = str(made.recipe.get("name", ""))
    variant = f", variant {made.variant}" if made.variant != name else ""
    yield from _line("recipe", f"{name}{variant}")
    finished = f", finished {made.finished}" if made.finished else ""
    yield from _line("by", f"torchsmith {made.torchsmith}{finished}")
    for source in made.sources:
        yield from _line("source", _source(source))
    for patch in made.patches:
        lender = patch.annotations.get("lender", "")
        what, whose = ("file", f", lent by {lender}") if lender else ("patch", "")
        yield from _line(what, f"{patch.name}, sha256 {patch.digest.get('sha256', '')[:12]}{whose}")
    yield from _line("compiler", made.compiler)
    yield from _line("flags", " ".join(f"{name}={text}" for name, text in made.flags.items()))


def _source(source: Source) -> str:
    notes = source.annotations
    folder = notes.get("folder", "")
    where = f"the folder {folder}" if folder else source.uri
    ref = f" ({notes['ref']})" if notes.get("ref") else ""
    return f"{source.name}: {where}{ref}, tree {notes.get('tree-sha256', '')[:12]}"


def _signature(found: Inspection) -> str:
    signature = found.signature
    if signature.state == "trusted":
        whose = "this machine's key" if signature.own else "the trusted key"
        return f"signed by {whose} {signature.key[:16]}"
    return f"{signature.state}: {signature.message}" if signature.message else signature.state
