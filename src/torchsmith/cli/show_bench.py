"""A comparison for people: progress while it is measured, tables at the end."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import median
from typing import get_args

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from torchsmith.bench.page import WORDS, seconds, times
from torchsmith.bench.parity import Parity, Status
from torchsmith.bench.result import Compared, Reason, Result
from torchsmith.cli.output import console, counted, rich_console, tell

_COLOURS = {"faster": "green", "slower": "red", "same": "", "unclear": "yellow"}


class ProgressLines:
    """Progress on standard error: a bar on a terminal, a line for each tenth elsewhere."""

    def __init__(self, bar: Progress | None) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=None) if bar else None
        self._tenth = 0

    def step(self, done: int, total: int, name: str) -> None:
        """So many cases are done; this one is next."""
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=done, total=total, description=name)
        elif done * 10 // total > self._tenth:
            self._tenth = done * 10 // total
            tell(f"{done} of {total} {name}".rstrip())

    def say(self, text: str) -> None:
        """Something that takes a while begins."""
        if self._bar is not None:
            self._bar.console.print(text, markup=False)
        else:
            tell(text)


@contextlib.contextmanager
def progress() -> Iterator[ProgressLines]:
    """Show progress until the end."""
    if not sys.stderr.isatty():
        yield ProgressLines(None)
        return
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=rich_console(sys.stderr), transient=True) as bar:
        yield ProgressLines(bar)


def show(result: Result, *, everything: bool = False) -> None:
    """Print what came of each group and why, and the cases that differ, or all of them."""
    out = console()
    first = result.sides[0]
    for other in result.sides[1:]:
        compared = [item for item in result.compared if item.against == other.name]
        out.print(
            f"{first.name} (torch {first.facts.torch}) against {other.name} "
            f"(torch {other.facts.torch}), {result.method.width}",
            markup=False,
        )
        if not compared:
            out.print("no case was measured on both sides")
            continue
        out.print(_groups(result, other.name))
        shown = [item for item in compared if everything or item.verdict in ("faster", "slower")]
        if shown:
            title = "every case" if everything else "cases that differ"
            out.print(_cases(result, shown, first.name, other.name, title))
        counts = Counter(item.verdict for item in compared)
        words = ", ".join(f"{counts[verdict]} {word}" for verdict, word in WORDS.items())
        out.print(f"{counted(len(compared), 'case')}: {words}")
        _losses([item for item in result.reasons if item.against == other.name], out)
    _rest(result, out)


def _losses(reasons: Sequence[Reason], out: Console) -> None:
    """Each sentence once, with the groups that it is about."""
    if not reasons:
        return
    out.print("where yours loses, and why:")
    about: dict[str, list[str]] = {}
    for reason in reasons:
        for text in reason.because:
            about.setdefault(text, []).append(reason.group)
    for text, groups in about.items():
        names = ", ".join(dict.fromkeys(groups))
        out.print(Padding(Text(f"- {names}: {text}"), (0, 0, 0, 2)))


def _groups(result: Result, against: str) -> Table:
    table = Table(title="speed-up by group", title_justify="left", box=None, pad_edge=False)
    for name in ("group", "device", "speed-up", "95 % interval", ""):
        table.add_column(name, justify="right" if name in ("speed-up", "95 % interval") else "left")
    for item in result.groups:
        if item.against == against:
            table.add_row(item.group, item.device, *_verdict(item))
    return table


def _cases(result: Result, shown: Sequence[Compared], first: str, other: str, title: str) -> Table:
    measured = {(case.device, case.name): case for case in result.cases}
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in ("group", "case", "device", first, other, "speed-up", "95 % interval", ""):
        left = name in ("group", "case", "device", "")
        table.add_column(Text(name), justify="left" if left else "right", no_wrap=True)
    for item in shown:
        case = measured[item.device, item.case]
        spent = (seconds(median(case.times[name])) for name in (first, other))
        table.add_row(item.group, item.case, item.device, *spent, *_verdict(item))
    return table


def _verdict(item: Compared) -> tuple[Text, Text, Text]:
    colour = _COLOURS[item.verdict]
    return (
        Text(times(item.speedup), colour),
        Text(f"{times(item.low)} – {times(item.high)}"),
        Text(WORDS[item.verdict], colour),
    )


def _rest(result: Result, out: Console) -> None:
    for case in result.cases:
        for kind, texts in (("missing", case.missing), ("failed", case.failed)):
            for name, text in texts.items():
                out.print(f"{case.name}: {kind} in {name}: {text}", markup=False, soft_wrap=True)
    for noise in result.noise:
        out.print(
            f"noise on {noise.device}: {result.sides[0].name} against itself differed by "
            f"{noise.middle:.1%} in the middle of {noise.cases} cases, {noise.floor:.1%} is the "
            "floor",
            markup=False,
        )
    if not result.noise:
        out.print("noise: not measured, there was no control")
    if result.stopped:
        out.print(f"not whole: {result.stopped} after {result.seconds:.0f} s", markup=False)


_MARKS = {"beyond": "x", "within": "~", "identical": "=", "unstable": "?", "missing": "-"}


def show_parity(parity: Parity, *, everything: bool = False) -> None:
    """Print what disagrees, and how much agreed."""
    out = console()
    first, second = parity.sides
    out.print(
        f"{first.name} (torch {first.facts.torch}) against {second.name} "
        f"(torch {second.facts.torch}) on {parity.device}",
        markup=False,
    )
    for item in parity.compared:
        if item.status in ("identical", "within") and not everything:
            continue
        apart = ""
        if item.absolute or item.ulps:
            apart = (
                f"{item.where}: off by {item.absolute:.2g}, relative {item.relative:.2g}, "
                f"{item.ulps:,} ULP"
            )
        mark = _MARKS.get(item.status, "x")
        words = f"{mark} {item.operator} {item.dtype}: {item.status} {apart} {item.detail}"
        out.print(words.rstrip(), markup=False, soft_wrap=True)
    counts = parity.counts()
    words = ", ".join(f"{counts.get(name, 0)} {name}" for name in get_args(Status))
    out.print(f"{len(parity.compared)} operators in their types: {words}")
    out.print("identical: every bit; within: rounding explains it; unstable: differs by itself")
    if everything:
        for name, reason in parity.excluded.items():
            out.print(f"not compared: {name}: {reason}", markup=False)
    if parity.stopped:
        out.print(f"not whole: {parity.stopped}", markup=False)
