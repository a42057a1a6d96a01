"""From the command line to a plan: what `plan`, `doctor`, `build` and others have in common."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from torchsmith.cli.options import FLAGS
from torchsmith.cli.output import Branch, print_json, say, tell
from torchsmith.errors import RecipeError, RecipeProblem, UsageError

if TYPE_CHECKING:
    from torchsmith.engine.door import Wanted
    from torchsmith.engine.store import Store
    from torchsmith.host.models import Host
    from torchsmith.plan.models import Plan
    from torchsmith.recipe.load import LoadedRecipe
    from torchsmith.resolve.models import Refusal, Resolution

SHOWN_VARIANTS = 12
_DEFAULT_RECIPE = Path("recipe.toml")
_DEFAULT_PRESET = "quickstart"
_MAX_HOST_BYTES = 1 << 20


def read_recipe(
    recipe: Path | None, preset: str | None = None, overrides: Mapping[str, object] | None = None
) -> LoadedRecipe:
    """The recipe that a command is about: a file, a preset, or flags alone."""
    from torchsmith.recipe.compose import COMMAND_LINE, compose, outdated_name, overridden
    from torchsmith.recipe.load import load_recipe, parse_recipe
    from torchsmith.recipe.presets import find_preset, presets

    overrides = dict(overrides or {})
    if recipe is not None and preset is not None:
        raise UsageError("a recipe file and --preset were both given", "Name one of the two.")
    # Path.exists() raises for a name that is too long.
    missing = recipe is not None and not os.path.exists(recipe)  # noqa: PTH110
    if missing and str(recipe) in [item.name for item in presets()]:
        hint = f"It is a preset: --preset {recipe}; `torchsmith init --preset {recipe}` writes it."
        raise UsageError(f"{recipe} does not exist", hint)
    path = find_preset(preset).path if preset is not None else recipe
    if path is None and _DEFAULT_RECIPE.is_file():
        path = _DEFAULT_RECIPE
        if overrides:
            flags = ", ".join(flag.name for flag in FLAGS if flag.key in overrides)
            warn(f"{path} with {flags} laid over it")
    if path is not None:
        plain = load_recipe(path)
        if not overrides:
            return plain
        with flags_named():
            changed = overridden(plain, overrides)
        if name := outdated_name(plain.recipe, changed.recipe):
            release = changed.recipe.torch.release
            warn(f"torch {release} goes into an image called {name}; image.name changes that")
        return changed
    if not overrides:
        tell(f"no recipe was named: this is the embedded default, {_DEFAULT_PRESET}")
        return load_recipe(find_preset(_DEFAULT_PRESET).path)
    if "torch" not in overrides:
        hint = "Without a recipe file, --torch names a release, or --preset a recipe to start from."
        raise UsageError("--torch is missing", hint)
    with flags_named():
        return parse_recipe(compose(overrides), COMMAND_LINE, None)


@contextlib.contextmanager
def flags_named() -> Iterator[None]:
    """Name flags, which have no lines, where something is wrong with them."""
    from torchsmith.recipe.compose import COMMAND_LINE

    names = {flag.key: flag.name for flag in FLAGS}
    try:
        yield
    except RecipeError as error:
        if error.path != COMMAND_LINE:
            raise
        messages = []
        for problem in error.problems:
            key, _, rest = problem.key.partition(".")
            key = key.partition("#")[0]
            if key not in names and rest in names:
                # A flag may stand for a key of a table: build.compiler.
                key, rest = rest, ""
            flag = " ".join(part for part in (names.get(key, key), rest) if part)
            messages.append(str(RecipeProblem(problem.message, key=flag, meant=problem.meant)))
        raise UsageError(
            "\n  ".join(messages), "`torchsmith plan --help` explains the flags."
        ) from None


def read_machine(path: Path | None, *, brief: bool = True) -> Host:
    """This machine, or the one a file describes."""
    import json

    from torchsmith.host import Host, read_host
    from torchsmith.host.models import check_described
    from torchsmith.inputs import check_file, read_file

    if path is None:
        return read_host(Path.cwd(), brief=brief)
    hint = "`torchsmith doctor --json` on the other machine writes such a file."
    check_file(path, hint)
    try:
        try:
            table = json.loads(read_file(path, _MAX_HOST_BYTES))
        except json.JSONDecodeError:
            raise ValueError("it is not JSON") from None
        table = table.get("host", table)
        check_described(table)
        return Host.model_validate(table)
    except (ValueError, AttributeError, RecursionError) as error:
        # What pydantic says has many lines and repeats everything.
        why = str(error).partition("\n")[0]
        raise UsageError(f"{path} does not describe a machine: {why}", hint) from None


def machine_for(loaded: LoadedRecipe, path: Path | None = None) -> Host:
    """The machine that a recipe is planned for."""
    machine = read_machine(path)
    return machine if path is not None else with_torches(machine, loaded)


def with_torches(host: Host, loaded: LoadedRecipe) -> Host:
    """This machine with the installed torches that a recipe means to use."""
    from torchsmith.recipe.matrix import expand

    wanted = [
        (str(loaded.project / torch.environment) if torch.environment else "", variant.python)
        for variant in expand(loaded.recipe)
        if (torch := variant.recipe.torch).use == "installed"
    ]
    if not wanted:
        return host
    from torchsmith.host.probe import Programs
    from torchsmith.host.system import read_torches

    return host.model_copy(update={"torches": read_torches(Programs(os.environ), wanted)})


def resolutions(loaded: LoadedRecipe, host: Host) -> list[Resolution]:
    """Resolve every variant; where one cannot exist, show why and end the command."""
    from torchsmith.engine.door import resolutions as resolved

    with _refusals_shown(json=False):
        return resolved(loaded, host)


def refused(loaded: LoadedRecipe, host: Host) -> Refusal | None:
    """The refusal of a recipe on a machine, if it cannot exist there."""
    from torchsmith.engine.door import RefusedError
    from torchsmith.engine.door import resolutions as resolved

    try:
        resolved(loaded, host)
    except RefusedError as error:
        return error.refusals[0]
    return None


def refusal(loaded: LoadedRecipe, host: Host) -> str:
    """Why a recipe cannot exist on a machine, and what would work; empty if it can."""
    found = refused(loaded, host)
    return "; ".join(
        f"{item.message} (what works: {item.cure})" if item.cure else item.message
        for item in (found.conflicts if found is not None else ())
    )


def make(
    loaded: LoadedRecipe,
    host: Host,
    *,
    json: bool,
    store: Store | None = None,
    wanted: Wanted | None = None,
) -> Plan:
    """Plan a recipe through the one door; or end the command as `resolutions` does."""
    from torchsmith.engine.door import plan_recipe
    from torchsmith.engine.store import Store

    with _refusals_shown(json=json):
        return plan_recipe(loaded, host, store or Store(), wanted, warn)


def warn(text: str) -> None:
    """Say what was decided for reasons outside the recipe."""
    tell(f"!  {text}")


@contextlib.contextmanager
def _refusals_shown(*, json: bool) -> Iterator[None]:
    from torchsmith.engine.door import RefusedError

    try:
        yield
    except RefusedError as refused:
        from torchsmith.plan.models import as_json

        if json:
            print_json({"refused": as_json(refused.refusals)})
        else:
            _show_refusals(refused.refusals)
        raise


def _show_refusals(refused: Sequence[Refusal]) -> None:
    """Every conflict: what collides, where that is written, what would work."""
    for item in refused[:SHOWN_VARIANTS]:
        subject = "What was asked for" if len(refused) == 1 else item.variant
        tree = Branch(f"{subject} {_refused(item)}:", "bold")
        for conflict in item.conflicts:
            node = tree.add(f"x {conflict.message}", "red")
            for fact in (conflict.first, conflict.second):
                line = node.add(fact.statement)
                for address in fact.source.split():
                    line.add(address, "dim")
            if conflict.cure:
                node.add(f"what works: {conflict.cure}", "green")
        if item.nearest:
            tree.add(f"nearest combination that works: {item.nearest}", "green")
        print("\n".join(tree.lines()))
    if len(refused) > SHOWN_VARIANTS:
        say(f"… and {len(refused) - SHOWN_VARIANTS} more")


def _refused(item: Refusal) -> str:
    from torchsmith.resolve.models import STANDINGS

    verb = "" if item.standing == "impossible" else "is "
    return verb + STANDINGS[item.standing]
