"""The doctor's table on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from torchsmith.cli.output import console
from torchsmith.cli.terminal import style, wrapped

if TYPE_CHECKING:
    from torchsmith.findings import Finding

_MARKS = {
    "ok": "[green]ok[/green]",
    "warn": "[yellow]![/yellow]",
    "fail": "[red]x[/red]",
    "info": "",
}


def show_verdicts(lines: Sequence[Finding]) -> None:
    """One line each: what is here, what is needed, and the command that mends it."""
    table = Table(box=None, pad_edge=False, show_edge=False)
    needed = any(line.needed for line in lines)
    for title in ("", "what", "here", *(["needed"] if needed else []), "what to do"):
        table.add_column(title, overflow="fold")
    for line in lines:
        row = [_MARKS[line.rating], escape(line.subject), escape(line.found)]
        if needed:
            row.append(escape(line.needed))
        table.add_row(*row, escape(line.cure))
    console().print(table)


def show_findings(python: str, findings: Sequence[Finding]) -> None:
    """A line for each finding; below those that matter, why and what to do."""
    marks = {"ok": ("ok", "green"), "warn": ("!", "yellow"), "fail": ("x", "red")}
    wide = max(len(item.subject) for item in findings)
    margin = " " * (wide + 6)
    print(python)
    for item in findings:
        mark, colour = marks.get(item.rating, ("", "dim"))
        first, *rest = wrapped(item.found, len(margin))
        print(f"{style(colour, f'{mark:<3}')} {item.subject:<{wide}}  {first}")
        for line in rest:
            print(f"{margin}{line}")
        for word, text in (("why", item.why), ("do ", item.cure)):
            for number, line in enumerate(wrapped(text, len(margin) + 5) if text else ()):
                print(f"{margin}{word if number == 0 else '   '}  {line}")
