"""`torchsmith diagnose`."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchsmith.cli import wishes

if TYPE_CHECKING:
    from torchsmith.diagnose.scan import Seen


def diagnose(
    log: Annotated[str | None, typer.Argument(help="A log; - reads standard input.")] = None,
    fix: Annotated[
        Path | None,
        typer.Option("--fix", metavar="RECIPE", help="Show the changes of this recipe that cure."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Make those changes.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="Every failure that is known.")] = False,
    host: Annotated[
        Path | None, typer.Option("--host", help="The machine of the log, from `doctor --json`.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """Name the failure in a log: its meaning, its cause, its cure.

    Ends with 0 if it is known or the log tells of none, with 10 if it is not known.
    """
    from torchsmith.cli import show_diagnosis
    from torchsmith.cli.mending import mend
    from torchsmith.cli.output import print_json
    from torchsmith.diagnose.diagnose import UnknownFailureError, explained, wants_host
    from torchsmith.errors import UsageError

    if list_:
        show_diagnosis.show_list(json=json)
        return
    if log is None:
        raise UsageError("no log was named", "Name a file, or - for standard input.")
    versions = _versions(fix) if fix is not None else {}
    seen = _scanned(log)
    machine = wishes.host_for(host, brief=True) if host or wants_host(seen) else None
    found = explained(seen, machine, versions=versions)
    if json:
        print_json(found.as_json())
    else:
        show_diagnosis.show(found)
    if found.ended != "badly":
        return
    if not found.named:
        raise UnknownFailureError(
            "this failure is not known",
            "To report it, attach the whole log, the recipe, and what `torchsmith doctor --json` "
            "prints.",
        )
    if fix is not None:
        mend(found, fix, yes=yes, host=host, quiet=json)


def _scanned(log: str) -> Seen:
    from torchsmith.diagnose.knowledge import shipped
    from torchsmith.diagnose.scan import scan_file
    from torchsmith.errors import UsageError
    from torchsmith.inputs import check_file

    name = "standard input" if log == "-" else log
    if log != "-":
        check_file(Path(log), "Name a log, or - for standard input.")
    try:
        with nullcontext(sys.stdin.buffer) if log == "-" else Path(log).open("rb") as file:
            seen = scan_file(file, shipped())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"{name} cannot be read: {reason}") from None
    if not seen.lines:
        raise UsageError(f"{name} says nothing: it is empty", "Name the whole log of the failure.")
    return seen


def _versions(path: Path) -> dict[str, str]:
    """What a recipe says of versions, where it says one."""
    from torchsmith.recipe.load import load_recipe

    recipe = load_recipe(path).recipe
    wanted = {"torch": recipe.torch.release, "cuda": recipe.cuda.version}
    if len(recipe.python) == 1:
        wanted["python"] = recipe.python[0]
    return {name: text for name, text in wanted.items() if text[:1].isdigit()}
