"""The doctor's table on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.markup import escape
from rich.table import Table

from torchsmith.cli.output import console

if TYPE_CHECKING:
    from torchsmith.resolve.verdicts import Verdict

_MARKS = {
    "ok": "[green]ok[/green]",
    "warn": "[yellow]![/yellow]",
    "fail": "[red]x[/red]",
    "info": "",
}


def show_verdicts(lines: Sequence[Verdict]) -> None:
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
