"""`torchsmith diagnose`, and what is known of a failure: of a build, a check, an image or a job."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from torchsmith.cli import options, planning
from torchsmith.cli.output import Branch, asking, counted, note, print_json, tell
from torchsmith.errors import TorchsmithError, UnknownFailureError, UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torchsmith.diagnose.diagnose import Diagnosis, Named
    from torchsmith.diagnose.models import Fix
    from torchsmith.diagnose.scan import Seen
    from torchsmith.host.models import Host
    from torchsmith.recipe.load import LoadedRecipe

_MOST = 3


def diagnose(
    log: Annotated[str | None, Argument(help="A log; - reads standard input.")] = None,
    fix: Annotated[
        Path | None, Option(metavar="RECIPE", help="Show the changes to this recipe that cure it.")
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
    from torchsmith.diagnose.diagnose import explained, wants_host

    if list_:
        options.unused("with --list", "log", "fix", "yes", "host")
        _show_list(json=json)
        return
    if yes and fix is None:
        raise UsageError("--yes needs --fix", "Name the recipe to change: --fix recipe.toml.")
    if log is None:
        raise UsageError("no log was named", "Name a file, or - for standard input.")
    versions = _versions(fix) if fix is not None else {}
    seen = _scanned(log)
    machine = planning.read_machine(host) if host or wants_host(seen) else None
    found = explained(seen, machine, versions=versions)
    if json:
        print_json(found.as_json())
    else:
        _show(found)
    if found.ended != "badly":
        return
    if not found.named:
        raise UnknownFailureError(
            "this failure is not known",
            "To report it, attach the whole log, the recipe, and what `torchsmith doctor --json` "
            "prints.",
        )
    if fix is not None:
        _mend(found, fix, yes=yes, host=host, quiet=json)


def _scanned(log: str) -> Seen:
    from torchsmith.diagnose.scan import scan_file
    from torchsmith.inputs import check_file

    name = "standard input" if log == "-" else log
    if log != "-":
        check_file(Path(log), "Name a log, or - for standard input.")
    try:
        with nullcontext(sys.stdin.buffer) if log == "-" else Path(log).open("rb") as file:
            seen = scan_file(file)
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


def _mend(found: Diagnosis, path: Path, *, yes: bool, host: Path | None, quiet: bool) -> None:
    """Show the changes that cure the failures found; make them if the reader agrees."""
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
    machine = planning.read_machine(host, brief=False)
    after, keys, refused = _mended(found, before, path, machine, named_host=host is not None)
    for reason in refused:
        note(f"not offered: {reason}")
    if not keys:
        raise UsageError(
            "no change of this recipe cures it and can be planned",
            "The cures above say in words what to do.",
        )
    if not quiet:
        print(difference(before, after, str(path)))
    if not yes and not _agreed(len(keys)):
        tell("nothing was written; --yes makes the change")
        return
    write_result(path, after.encode(), mode=path.stat().st_mode & 0o777)
    tell(f"{path}: {', '.join(keys)} changed")


def _mended(
    found: Diagnosis, text: str, path: Path, host: Host, *, named_host: bool
) -> tuple[str, list[str], list[str]]:
    """Make each change on top of those before it.

    Returns the recipe's text, the keys that changed, and why other changes are not possible.
    """
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
            if older := _older_compiler(fix, loaded, host):
                change = change_for(older, text, host.cores)
                loaded = parse_recipe(change.after, str(path), path.parent)
            if reason := _refusal(loaded, host, named_host=named_host):
                refused[f"{item.id}, {change.key} = {change.shown}: {reason}"] = None
                continue
        except TorchsmithError as error:
            refused[f"{item.id}: {error.message}"] = None
            continue
        text = change.after
        keys[change.key] = None
    return text, list(keys), list(refused)


def _curable(found: Diagnosis) -> Iterator[tuple[Named, Fix]]:
    """The causes that a change of a recipe cures; what follows from them goes with them."""
    return ((item, item.fix) for item in found.named if item.fix is not None and not item.after)


def _older_compiler(fix: Fix, loaded: LoadedRecipe, host: Host) -> Fix | None:
    """A fix with the compiler that `plan` names where it refuses that of the fix.

    Fixes name the newest compiler that does not fail: an older one cures as well.
    """
    from msgspec.structs import replace

    from torchsmith.resolve.toolchain import written_compiler

    refused = planning.refused(loaded, host) if fix.key == "build.compiler" else None
    changes = refused.changes if refused is not None else ()
    if [change.key for change in changes] != [fix.key]:
        return None
    (kind, found), (wanted, most) = map(written_compiler, (changes[0].value, str(fix.value)))
    older = kind == wanted and found and int(found) < int(most)
    return replace(fix, value=changes[0].value) if older else None


def _refusal(loaded: LoadedRecipe, host: Host, *, named_host: bool) -> str:
    """Why `plan` would refuse this recipe here; empty if it would not."""
    from torchsmith import __version__
    from torchsmith.engine.door import resolutions
    from torchsmith.facts.files import shipped
    from torchsmith.plan.build import make_plan

    here = host if named_host else planning.with_torches(host, loaded)
    if reason := planning.refusal(loaded, here):
        return reason
    make_plan(loaded.recipe, resolutions(loaded, here), shipped(), __version__)
    return ""


def _agreed(changes: int) -> bool:
    """Whether a person at the terminal agrees."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    asked = "Make this change?" if changes == 1 else "Make these changes?"
    with asking():
        return typer.confirm(asked, default=False)


def _show(found: Diagnosis) -> None:
    """The failures a log shows, or the first error of one that shows none."""
    if found.ended != "badly":
        _show_ending(found)
        return
    if not found.named:
        root = Branch(
            f"nothing that is known in {counted(found.lines, 'line')}; what says most:", "bold"
        )
        for line in found.first_error:
            root.add(f"line {line.number}: {line.text}", "dim")
        print("\n".join(root.lines()))
        return
    first, *others = found.named
    print("\n".join(_tree(first).lines()))
    for named in [item for item in others if not item.after][: _MOST - 1]:
        print("\n".join(_tree(named).lines()))
    follows = [item for item in others if item.after]
    for named in follows[:_MOST]:
        print(f"   {named.title}: follows from {named.after}")


def _show_ending(found: Diagnosis) -> None:
    """A log without a failure: how it ends, what came right on the way, and its warnings."""
    if found.well is None:
        print(f"no failure was found in {counted(found.lines, 'line')}")
    else:
        root = Branch("ok  this log ends well", "bold")
        root.add(f"line {found.well.number}: {found.well.text}", "dim")
        print("\n".join(root.lines()))
    for named in found.overcome[:_MOST]:
        print(f"   {named.title}: it came right after all (line {named.lines[0].number})")
    for named in found.named[:_MOST]:
        print("\n".join(_tree(named, "!").lines()))


def _tree(named: Named, mark: str = "x") -> Branch:
    root = Branch(f"{mark}  {named.title}", "bold")
    for line in named.lines:
        root.add(f"line {line.number}: {line.text}", "dim")
    if named.standing == "symptom":
        root.add("a symptom: these lines do not say what caused it")
    elif named.standing == "kind":
        root.add("a kind of failure: what caused this one is not known")
    root.add(f"means: {named.meaning}")
    for cause in named.causes:
        word = "because" if cause.certain else "perhaps"
        root.add(f"{word}: {cause.text}").add(f"cure: {cause.cure}", "green")
    root.add(f"cure: {named.cure}", "green")
    if named.fix is not None:
        root.add("in a recipe: torchsmith diagnose LOG --fix RECIPE makes the change, if it plans")
    root.add(f"{named.id}: {named.source}")
    return root


def _show_list(*, json: bool) -> None:
    """Print every known failure, by area."""
    from torchsmith.diagnose.diagnose import filled
    from torchsmith.diagnose.knowledge import shipped

    known = shipped()
    if json:
        failures = [
            {
                "id": item.id,
                "area": area,
                "title": filled(item.title, {}),
                "source": item.source,
                "fix": item.fix is not None,
            }
            for area, items in known.areas.items()
            for item in items
        ]
        print_json({"failures": failures})
        return
    for area, items in known.areas.items():
        print(area)
        for item in items:
            print(f"  {item.id:<28} {filled(item.title, {})}")
    print(f"{len(known.failures)} failures are known")


def known_of_log(log: Path, excerpt: Iterable[str] = ()) -> list[str]:
    """What is known of a failure, from its log; from the excerpt where there is no log."""
    from torchsmith.diagnose.diagnose import explained
    from torchsmith.diagnose.scan import scan_file

    try:
        with log.open("rb") as file:
            return _known(explained(scan_file(file)))
    except (OSError, ValueError):
        return known_of_lines(excerpt)


def known_of_lines(lines: Iterable[str]) -> list[str]:
    """What is known of a failure, from these lines."""
    from torchsmith.diagnose.diagnose import diagnose as named

    return _known(named(lines))


def _known(found: Diagnosis) -> list[str]:
    named = [item for item in found.named if not item.after][:2]
    return [f"known: {item.title} — {item.cure}" for item in named]
