"""`torchsmith diagnose`."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from torchsmith.cli import options
from torchsmith.cli.output import print_json
from torchsmith.errors import TorchsmithError, UnknownFailureError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchsmith.diagnose.diagnose import Diagnosis, Named
    from torchsmith.diagnose.models import Fix
    from torchsmith.diagnose.scan import Seen
    from torchsmith.host.models import Host
    from torchsmith.recipe.load import LoadedRecipe


@dataclass(frozen=True, slots=True)
class Mended:
    """A recipe's text with every change that was possible, and why others were not."""

    text: str
    keys: tuple[str, ...]
    refused: tuple[str, ...]


def mend(found: Diagnosis, path: Path, *, yes: bool, host: Path | None, quiet: bool) -> None:
    """Show what cures the failures found, and make the changes if that is wanted."""
    from torchsmith.diagnose.recipe_change import difference
    from torchsmith.files import write_result

    if not any(_curable(found)):
        raise UsageError(
            f"{found.named[0].id} is not cured by a change of the recipe",
            "The cure above says what to do.",
        )
    try:
        before = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    mended = _mended(found, before, path, options.host_for(host), named_host=host is not None)
    for reason in mended.refused:
        print(f"note: not offered: {reason}", file=sys.stderr)
    if not mended.keys:
        raise UsageError(
            "no change of this recipe cures it and can be planned",
            "The cures above say in words what to do.",
        )
    if not quiet:
        print(difference(before, mended.text, str(path)))
    if not yes and not _agreed(len(mended.keys)):
        print("nothing was written; --yes makes the change", file=sys.stderr)
        return
    write_result(path, mended.text.encode(), mode=path.stat().st_mode & 0o777)
    print(f"{path}: {', '.join(mended.keys)} changed", file=sys.stderr)


def _mended(found: Diagnosis, text: str, path: Path, host: Host, *, named_host: bool) -> Mended:
    """Every cure in its turn, each on top of those before it."""
    from torchsmith.diagnose.recipe_change import change_for
    from torchsmith.recipe.load import parse_recipe

    keys: dict[str, None] = {}
    refused: dict[str, None] = {}
    for item, fix in _curable(found):
        if fix.key in keys and fix.how != "append":
            continue
        try:
            change = change_for(fix, text, host.cores)
            loaded = parse_recipe(change.after, str(path), path.parent)
            if reason := _refusal(loaded, host, named_host=named_host):
                refused[f"{item.id}, {change.key} = {change.shown}: {reason}"] = None
                continue
        except TorchsmithError as error:
            refused[f"{item.id}: {error.message}"] = None
            continue
        text = change.after
        keys[change.key] = None
    return Mended(text, tuple(keys), tuple(refused))


def _curable(found: Diagnosis) -> Iterator[tuple[Named, Fix]]:
    """The causes that a change of a recipe cures; what follows from them goes with them."""
    return ((item, item.fix) for item in found.named if item.fix is not None and not item.after)


def _refusal(loaded: LoadedRecipe, host: Host, *, named_host: bool) -> str:
    """Why `plan` would refuse this recipe here; empty if it would not."""
    from torchsmith import __version__
    from torchsmith.facts.files import shipped
    from torchsmith.plan.build import make_plan
    from torchsmith.recipe.matrix import expand
    from torchsmith.resolve.models import Refusal
    from torchsmith.resolve.resolve import resolve

    here = host if named_host else options.with_torches(host, loaded)
    facts = shipped()
    resolved = []
    for variant in expand(loaded.recipe):
        outcome = resolve(variant, facts, here, loaded.files)
        if isinstance(outcome, Refusal):
            return outcome.conflicts[0].message if outcome.conflicts else "this cannot exist"
        resolved.append(outcome)
    make_plan(loaded.recipe, resolved, facts, __version__)
    return ""


def _agreed(changes: int) -> bool:
    """Whether a person at the terminal agrees."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    asked = "Make this change?" if changes == 1 else "Make these changes?"
    return typer.confirm(asked, default=False)


def diagnose(
    log: Annotated[str | None, Argument(help="A log; - reads standard input.")] = None,
    fix: Annotated[
        Path | None, Option(metavar="RECIPE", help="Show the changes of this recipe that cure.")
    ] = None,
    yes: Annotated[bool, Option("--yes", "-y", help="Make those changes.")] = False,
    list_: Annotated[bool, Option("--list", help="Every failure that is known.")] = False,
    host: Annotated[
        Path | None, Option(help="The machine of the log, from `doctor --json`.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Name the failure in a log: its meaning, its cause, its cure.

    Ends with 0 if it is known or the log tells of none, with 10 if it is not known.
    """
    from torchsmith.cli import show_diagnosis
    from torchsmith.diagnose.diagnose import explained, wants_host

    if list_:
        show_diagnosis.show_list(json=json)
        return
    if yes and fix is None:
        raise UsageError("--yes needs --fix", "Name the recipe to change: --fix recipe.toml.")
    if log is None:
        raise UsageError("no log was named", "Name a file, or - for standard input.")
    versions = _versions(fix) if fix is not None else {}
    seen = _scanned(log)
    machine = options.host_for(host, brief=True) if host or wants_host(seen) else None
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
        raise UsageError(f"{name} is empty", "Name the whole log of the failure.")
    return seen


def _versions(path: Path) -> dict[str, str]:
    """What a recipe says of versions, where it says one."""
    from torchsmith.recipe.load import load_recipe

    recipe = load_recipe(path).recipe
    wanted = {"torch": recipe.torch.release, "cuda": recipe.cuda.version}
    if len(recipe.python) == 1:
        wanted["python"] = recipe.python[0]
    return {name: text for name, text in wanted.items() if text[:1].isdigit()}
