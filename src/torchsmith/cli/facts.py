"""`torchsmith facts`: questions about releases, GPUs, toolkits, boards, features."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from torchsmith.cli import wishes
from torchsmith.cli.help import App

if TYPE_CHECKING:
    from torchsmith.facts.answers import Answer

app = App("Ask what goes with what: GPUs, releases, toolkits, boards, features.")


def _print(answer: Answer, *, json: bool) -> None:
    if json:
        from torchsmith.cli.output import print_json

        print_json(answer.as_json())
        return
    from rich.markup import escape
    from rich.table import Table

    from torchsmith.cli.output import console

    out = console()
    short = f": {escape(answer.short)}" if answer.short else ""
    out.print(f"[bold]{escape(answer.title)}[/bold]{short}")
    table = Table(box=None, show_header=False, pad_edge=True)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(overflow="fold")
    notes: dict[str, int] = {}
    for line in answer.lines:
        marks = ",".join(
            str(notes.setdefault(address, len(notes) + 1)) for address in line.source.split()
        )
        source = f"  [dim]({marks})[/dim]" if marks else ""
        table.add_row(escape(line.subject), escape(line.value) + source)
    out.print(table)
    for address, number in notes.items():
        out.print(f"[dim]({number}) {escape(address)}[/dim]")


@app.command()
def gpu(
    name: Annotated[
        str | None, typer.Argument(help='e.g. "rtx 3090"; all of them if left out.')
    ] = None,
    json: wishes.Json = False,
) -> None:
    """The compute capability of a GPU, and which CUDA and torch know it."""
    from torchsmith.facts import answers
    from torchsmith.facts.files import shipped

    _print(answers.about_gpu(shipped(), name), json=json)


@app.command()
def torch(
    version: Annotated[
        str | None, typer.Argument(help="e.g. 1.9.1; all of them if left out.")
    ] = None,
    json: wishes.Json = False,
) -> None:
    """What a PyTorch release needs and goes with."""
    from torchsmith.facts import answers
    from torchsmith.facts.files import shipped

    _print(answers.about_torch(shipped(), version), json=json)


@app.command()
def cuda(
    version: Annotated[
        str | None, typer.Argument(help="e.g. 12.4; all of them if left out.")
    ] = None,
    json: wishes.Json = False,
) -> None:
    """What a CUDA toolkit compiles for, with, and needs to run."""
    from torchsmith.facts import answers
    from torchsmith.facts.files import shipped

    _print(answers.about_cuda(shipped(), version), json=json)


@app.command()
def board(
    name: Annotated[str | None, typer.Argument(help="e.g. jetson-tx2; all if left out.")] = None,
    json: wishes.Json = False,
) -> None:
    """A board: its GPU, what it lacks, its JetPacks."""
    from torchsmith.facts import answers
    from torchsmith.facts.files import shipped

    _print(answers.about_board(shipped(), name), json=json)


@app.command()
def companion(
    name: Annotated[str, typer.Argument(help="vision, audio, text or codec.")],
    version: Annotated[str | None, typer.Argument(help="A release of it.")] = None,
    json: wishes.Json = False,
) -> None:
    """Which release of torchvision, torchaudio or torchtext goes with which torch."""
    from torchsmith.facts import answers
    from torchsmith.facts.files import shipped

    _print(answers.about_companion(shipped(), name, version), json=json)


@app.command()
def stack(
    name: Annotated[
        str | None, typer.Argument(help="e.g. flash-attn; all of them if left out.")
    ] = None,
    json: wishes.Json = False,
) -> None:
    """How a package is built against torch, and which releases take which torch."""
    from torchsmith.facts import answers
    from torchsmith.facts.files import shipped

    _print(answers.about_stack(shipped(), name), json=json)


@app.command()
def features(
    torch: Annotated[
        str | None, typer.Option("--torch", help="Only what this release knows.")
    ] = None,
    json: wishes.Json = False,
) -> None:
    """What PyTorch can be built with, and the switches that say so."""
    from torchsmith.facts import answers
    from torchsmith.facts.files import shipped

    _print(answers.about_features(shipped(), torch), json=json)


@app.command()
def systems(json: wishes.Json = False) -> None:
    """Distributions, and PyTorch's source packages in Debian."""
    from torchsmith.facts import answers
    from torchsmith.facts.files import shipped

    _print(answers.about_systems(shipped()), json=json)
