"""`torchsmith plan`."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from typer import Option

from torchsmith.cli import options, planning
from torchsmith.cli.output import (
    JSON_VERSION,
    print_content,
    print_json,
    show_files,
    write_tree,
)
from torchsmith.errors import UsageError

if TYPE_CHECKING:
    from torchsmith.plan.models import Plan
    from torchsmith.recipe.load import LoadedRecipe


@options.takes_flags
def plan(
    recipe: options.RecipeArgument = None,
    preset: options.Preset = None,
    host: options.HostFile = None,
    explain: Annotated[bool, Option("--explain", help="The reason for every choice.")] = False,
    json: Annotated[bool, Option("--json", help="The whole plan, for scripts.")] = False,
    render: Annotated[
        Literal["script", "dockerfile", "conda"] | None,
        Option("--as", help="Write the plan as something that needs no torchsmith."),
    ] = None,
    output: Annotated[
        Path | None, Option("--output", "-o", help="File (script) or folder to write.")
    ] = None,
    stay: options.Here = False,
    online: options.Online = False,
    no_lock: options.NoLock = False,
    *,
    given: dict[str, object],
) -> None:
    """Check that a recipe can exist and show what would be done."""

    if json and render is not None:
        raise UsageError("--as and --json do not go together", "Leave one of them out.")
    if explain and (json or render is not None):
        other = "--json" if json else "--as"
        hint = "The JSON holds every reason." if json else "Leave one of them out."
        raise UsageError(f"--explain and {other} do not go together", hint)
    if output is not None and not json and render is None:
        raise UsageError(
            "--output needs --as or --json", "Say what to write: --as script, or --json."
        )
    with ThreadPoolExecutor(1) as pool:
        # Asking programs for their versions is mostly waiting: it goes on while we import.
        machine = pool.submit(options.host_for, host, brief=True)

        loaded = options.loaded(recipe, preset, given)
        here = machine.result()
    if host is None:
        here = options.with_torches(here, loaded)
    from torchsmith.engine.door import Wanted

    elsewhere = host is not None
    wanted = Wanted(here=stay, online=online, elsewhere=elsewhere, must=False, lock=not no_lock)
    made = planning.make(loaded, here, json=json, wanted=wanted)
    if render is not None:
        _render(made, loaded, render, output)
    elif json:
        _print_json(made, output)
    else:
        from torchsmith.cli.show_plan import show_plan

        show_plan(made, here.cores, explain=explain)


def _print_json(made: Plan, output: Path | None) -> None:
    import json

    from torchsmith.files import write_result
    from torchsmith.plan.models import as_json

    table = as_json(made)
    if output is None:
        print_json(table)
        return
    text = json.dumps({"version": JSON_VERSION, **table}, indent=2, ensure_ascii=False)
    write_result(output, f"{text}\n".encode())
    print_json({"written": str(output)})


def _render(made: Plan, loaded: LoadedRecipe, render: str, output: Path | None) -> None:
    from torchsmith import __version__
    from torchsmith.files import write_result
    from torchsmith.plan.render.conda import render_conda
    from torchsmith.plan.render.dockerfile import dockerfile_context
    from torchsmith.plan.render.script import render_script

    if render == "script":
        text = render_script(made, __version__)
        if output is None:
            print_content(text)
        else:
            write_result(output, text.encode(), mode=0o755)
        return
    files = (
        render_conda(made)
        if render == "conda"
        else dockerfile_context(made, loaded.recipe, __version__)
    )
    if output is not None:
        write_tree(output, files)
        print(f"written: {output}/{{{', '.join(files)}}}")
    else:
        show_files(files, None)
