"""`torchsmith facts`: questions about releases, GPUs, toolkits, boards, features."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from torchsmith.cli import options
from torchsmith.cli.app import App
from torchsmith.cli.output import console, print_json

if TYPE_CHECKING:
    from torchsmith.facts.answers import Answer

app = App("Ask what goes with what: GPUs, releases, toolkits, boards, features.")


def _answer(question: str, *subjects: str | None, json: bool) -> None:
    """Print the answer to one of the questions of `facts.answers`."""
    from dataclasses import asdict

    from torchsmith.facts import answers
    from torchsmith.facts.files import shipped

    answer: Answer = getattr(answers, question)(shipped(), *subjects)
    if json:
        print_json(asdict(answer))
        return
    from rich.markup import escape
    from rich.table import Table

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
    name: Annotated[str | None, Argument(help='e.g. "rtx 3090"; all of them if left out.')] = None,
    json: options.Json = False,
) -> None:
    """The compute capability of a GPU, and which CUDA and torch know it."""
    _answer("about_gpu", name, json=json)


@app.command()
def torch(
    version: Annotated[str | None, Argument(help="e.g. 1.9.1; all of them if left out.")] = None,
    json: options.Json = False,
) -> None:
    """What a PyTorch release needs and goes with."""
    _answer("about_torch", version, json=json)


@app.command()
def cuda(
    version: Annotated[str | None, Argument(help="e.g. 12.4; all of them if left out.")] = None,
    json: options.Json = False,
) -> None:
    """What a CUDA toolkit compiles for, with, and needs to run."""
    _answer("about_cuda", version, json=json)


@app.command()
def board(
    name: Annotated[str | None, Argument(help="e.g. jetson-tx2; all if left out.")] = None,
    json: options.Json = False,
) -> None:
    """A board: its GPU, what it lacks, its JetPacks."""
    _answer("about_board", name, json=json)


@app.command()
def companion(
    name: Annotated[str, Argument(help="vision, audio, text or codec.")],
    version: Annotated[str | None, Argument(help="A release of it.")] = None,
    json: options.Json = False,
) -> None:
    """Which release of torchvision, torchaudio or torchtext goes with which torch."""
    _answer("about_companion", name, version, json=json)


@app.command()
def stack(
    name: Annotated[str | None, Argument(help="e.g. flash-attn; all of them if left out.")] = None,
    json: options.Json = False,
) -> None:
    """How a package is built against torch, and which releases take which torch."""
    _answer("about_stack", name, json=json)


@app.command()
def features(
    torch: Annotated[str | None, Option(help="Only what this release knows.")] = None,
    json: options.Json = False,
) -> None:
    """What PyTorch can be built with, and the switches that say so."""
    _answer("about_features", torch, json=json)


@app.command()
def systems(json: options.Json = False) -> None:
    """Distributions, and PyTorch's source packages in Debian."""
    _answer("about_systems", json=json)
