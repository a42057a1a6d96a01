"""`torchsmith diagnose`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchsmith.cli import wishes

if TYPE_CHECKING:
    from torchsmith.diagnose.diagnose import Diagnosis
    from torchsmith.diagnose.scan import Seen


def diagnose(
    log: Annotated[str | None, typer.Argument(help="A log; - reads standard input.")] = None,
    fix: Annotated[
        Path | None,
        typer.Option("--fix", metavar="RECIPE", help="Show the change of this recipe that cures."),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Make that change.")] = False,
    list_: Annotated[bool, typer.Option("--list", help="Every failure that is known.")] = False,
    host: Annotated[
        Path | None, typer.Option("--host", help="The machine of the log, from `doctor --json`.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="For scripts.")] = False,
) -> None:
    """Name the failure in a log: what it means, why it happened, what cures it.

    Ends with 0 if it is known, with 10 if not.
    """
    from torchsmith.cli import show_diagnosis
    from torchsmith.cli.output import print_json
    from torchsmith.diagnose.diagnose import explained, wants_host
    from torchsmith.diagnose.errors import UnknownFailureError
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
    if not found.named:
        raise UnknownFailureError(
            "this failure is not known",
            "To report it, attach the whole log, the recipe, and what `torchsmith doctor --json` "
            "prints.",
        )
    if fix is not None:
        _mend(found, fix, yes=yes, host=host, quiet=json)


def _scanned(log: str) -> Seen:
    from torchsmith.diagnose.knowledge import shipped
    from torchsmith.diagnose.scan import scan_file
    from torchsmith.errors import UsageError

    if log == "-":
        return scan_file(sys.stdin.buffer, shipped())
    try:
        with Path(log).open("rb") as file:
            return scan_file(file, shipped())
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"{log} cannot be read: {reason}") from None


def _versions(path: Path) -> dict[str, str]:
    """What a recipe says of versions, where it says one."""
    from torchsmith.recipe.load import load_recipe

    recipe = load_recipe(path).recipe
    wanted = {"torch": recipe.torch.release, "cuda": recipe.cuda.version}
    if len(recipe.python) == 1:
        wanted["python"] = recipe.python[0]
    return {name: text for name, text in wanted.items() if text[:1].isdigit()}


def _mend(found: Diagnosis, path: Path, *, yes: bool, host: Path | None, quiet: bool) -> None:
    """Show the change of a recipe that cures the first failure, and make it if that is wanted."""
    from torchsmith.cli.output import write_file
    from torchsmith.diagnose.recipe_change import change_for
    from torchsmith.errors import UsageError
    from torchsmith.recipe.load import parse_recipe

    named = found.named[0]
    if named.fix is None:
        raise UsageError(
            f"{named.id} is not cured by a change of the recipe", "The cure above says what to do."
        )
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    cores = wishes.host_for(host, brief=True).cores if named.fix.how == "halve" else 1
    change = change_for(named.fix, text, cores)
    parse_recipe(change.after, str(path), path.parent)
    if not quiet:
        print(change.diff(str(path)))
    if not yes and not _agreed():
        print("nothing was written; --yes makes the change", file=sys.stderr)
        return
    write_file(path, change.after.encode(), mode=path.stat().st_mode & 0o777)
    print(f"{path}: {change.key} changed", file=sys.stderr)


def _agreed() -> bool:
    """Whether somebody is there, and says yes."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    return typer.confirm("Make this change?", default=False)
