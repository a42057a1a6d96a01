"""Pages of the reference, from the code: recipe keys, commands, events, variables, releases.

``tools/render_docs.py`` writes them; a test compares each with what the code says today.
"""

from __future__ import annotations

import json
import re
import tomllib
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from annotated_types import Ge, Le
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from torchsmith.cli.app import command_line, parameter_help
from torchsmith.engine import events as build_events
from torchsmith.facts.cuda import arch_number
from torchsmith.facts.files import shipped
from torchsmith.facts.ranges import version_range
from torchsmith.facts.torch import entry_for, wheel_cudas
from torchsmith.jobs.farm import events as farm_events
from torchsmith.recipe import job, models, outcome, values
from torchsmith.recipe.gpus import Gpus

DOCS = Path(__file__).parents[1] / "docs"
KEYS = DOCS / "recipe-keys.toml"
VARIABLES = DOCS / "environment.toml"

# -------------------------------------------------------------------------------- recipe keys

# Where each table of a recipe is written; the order of the page.
TABLES: dict[str, tuple[type[BaseModel], ...]] = {
    "The top of the file": (models.Recipe,),
    "What is built": (
        models.Torch,
        models.Cuda,
        models.Source,
        models.Patch,
        models.Build,
        models.Archive,
    ),
    "What is built with it": (models.Companions, models.Extension, models.GitSource),
    "What it is packed into": (outcome.Packages,),
    "Images": (outcome.Image, outcome.Foundation, outcome.Client, outcome.Training),
    "Shipping": (outcome.Publish,),
    "Jobs": (job.Job, job.Role, job.Port, job.Mount, job.Slurm, job.Kubernetes),
    "Several at once": (models.Matrix, models.MatrixCell),
}
HEADINGS = {
    "Recipe": "",
    "Torch": "[torch]",
    "Cuda": "[cuda]",
    "Source": "[source]",
    "Patch": "[[patches]]",
    "Build": "[build]",
    "Archive": "[build.python_source]",
    "Companions": "[companions]",
    "Extension": "[[companions.extension]]",
    "GitSource": "[companions.extension.git]",
    "Packages": "[packages]",
    "Image": "[image]",
    "Foundation": "[image.foundation]",
    "Client": "[[image.client]]",
    "Training": "[[image.train]]",
    "Publish": "[publish]",
    "Job": "[[job]]",
    "Role": "[[job.role]]",
    "Port": "[[job.role.port]]",
    "Mount": "[[job.data]], [[job.output]]",
    "Slurm": "[job.slurm]",
    "Kubernetes": "[job.kubernetes]",
    "Matrix": "[matrix]",
    "MatrixCell": "[[matrix.include]]",
}
# What a value may be, where a type alone would not tell a person.
NAMED: tuple[tuple[Any, str], ...] = (
    (Gpus, "a GPU, an arch list, or a list of them"),
    (models.TorchValue, "a release, or a table"),
    (models.CudaValue, 'a release, `"none"`, `"host"`, or a table'),
    (models.PatchValue, "a path, or a table"),
    (models.CompanionValue, '`"match"`, `"none"` or a release; `true` and `false` too'),
    (values.FeatureMode, '`"on"`, `"off"`, `"system"`, `"static"`; `true` and `false` too'),
    (values.Pythons, 'a Python as major.minor, `"host"`, or a list of them'),
    (values.Line, "one line of text"),
    (values.Lines, "text"),
    (values.Script, "text"),
    (values.ProjectPath, "a path inside the recipe's folder"),
    (values.SourcePath, "a path, inside the recipe's folder or absolute"),
)


def models_shown() -> list[type[BaseModel]]:
    """Every model of the page, in its order."""
    return [model for group in TABLES.values() for model in group]


def extras() -> dict[str, dict[str, dict[str, str]]]:
    """What the page says beyond the models: examples, and words where a model has none."""
    table: dict[str, dict[str, dict[str, str]]] = tomllib.loads(KEYS.read_text(encoding="utf-8"))
    return table


def kind(hint: Any) -> str:
    """What a value may be, in words."""
    for named, words in NAMED:
        if hint == named:
            return words
    origin = typing.get_origin(hint)
    if origin is Annotated:
        return _annotated(hint)
    if origin is Literal:
        return ", ".join(f"`{_toml(value)}`" for value in typing.get_args(hint))
    if origin in (typing.Union, types.UnionType):
        parts = [kind(part) for part in typing.get_args(hint) if part is not type(None)]
        return ", or ".join(parts)
    if origin is list:
        (item,) = typing.get_args(hint)
        return f"a list, each {kind(item)}"
    if origin is dict:
        return "a table of names and values"
    if isinstance(hint, type) and issubclass(hint, BaseModel):
        return "a table"
    return {bool: "`true` or `false`", int: "a whole number", str: "text"}[hint]


def _annotated(hint: Any) -> str:
    base, *metadata = typing.get_args(hint)
    flat = [
        part
        for item in metadata
        for part in (item.metadata if isinstance(item, FieldInfo) else (item,))
    ]
    if form := next((item for item in flat if isinstance(item, values.Form)), None):
        return form.expected
    low = next((item.ge for item in flat if isinstance(item, Ge)), None)
    high = next((item.le for item in flat if isinstance(item, Le)), None)
    if base is int and low is not None and high is not None:
        return f"a whole number, {low} to {high}"
    return kind(base)


def _toml(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _default(info: FieldInfo) -> str:
    if info.is_required():
        return "**needed**"
    value = info.default
    if value is PydanticUndefined:
        assert info.default_factory is not None
        value = typing.cast("typing.Callable[[], object]", info.default_factory)()
    if isinstance(value, models.Cuda):
        value = value.version
    if value is None or isinstance(value, BaseModel) or value in ([], {}, ""):
        return ""
    if isinstance(value, list) and len(value) == 1:
        (value,) = value
    return f"`{_toml(value)}`"


def cell(text: str) -> str:
    """A text as a cell of a table."""
    return text.replace("|", "\\|").replace("\n", " ")


def rows(model: type[BaseModel]) -> Iterator[Sequence[str]]:
    """The lines of one table: key, value, default, meaning, example."""
    hints = typing.get_type_hints(model, include_extras=True)
    more = extras().get(model.__name__, {})
    for name, info in model.model_fields.items():
        key = info.alias or name
        said = more.get(key, {})
        meaning = info.description or ""
        yield (
            f"`{key}`",
            kind(hints[name]),
            _default(info),
            meaning,
            f"`{said['example']}`" if "example" in said else "",
        )


def reference() -> str:
    """The page on every key."""
    lines = [
        "# Every key of a recipe",
        "",
        "<!-- Rendered by tools/render_docs.py from the models; change those, not this. -->",
        "",
        "[Recipes](recipes.md) explains how to write one. This page lists every key there is,",
        "with its default; a blank default means that nothing is set. `torchsmith schema` prints",
        "the same as JSON Schema, for editors.",
    ]
    for group, members in TABLES.items():
        lines += ["", f"## {group}"]
        for model in members:
            heading = HEADINGS[model.__name__]
            lines += ["", f"### `{heading}`"] if heading else []
            about = (model.__doc__ or "").strip().splitlines()[0]
            lines += ["", about, ""]
            lines += ["| key | value | default | meaning | example |"]
            lines += ["| --- | --- | --- | --- | --- |"]
            lines += [f"| {' | '.join(map(cell, row))} |" for row in rows(model)]
    return "\n".join(lines) + "\n"


# ------------------------------------------------------------------------------------ releases


def matrix() -> str:
    """Every release of PyTorch with its Pythons, its CUDAs and its GPUs."""
    facts = shipped()
    lines = [
        "# Which torch with which Python, CUDA and GPU",
        "",
        "<!-- Rendered by tools/render_docs.py from the facts; change those, not this. -->",
        "",
        "What the PyTorch project publishes, and what its sources build with. `torchsmith facts",
        "torch` gives one line of it with its sources; `torchsmith plan` answers for a recipe.",
        "",
        "| torch | Python | experimental | wheels, x86-64: CUDA | wheels, Arm: CUDA | on PyPI | "
        "sources build with CUDA | newest GPU it knows |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for item in reversed(facts.releases.release):
        torch = item.version
        wheels = [wheel_cudas(facts, torch, name) for name in ("linux-x86_64", "linux-aarch64")]
        span = entry_for(facts.torch.cuda, torch)
        archs = entry_for(facts.torch.archs, torch)
        cells = [
            torch,
            ", ".join(item.pythons),
            ", ".join(item.experimental),
            *(", ".join(cudas) for cudas in wheels),
            item.pypi_cuda or "",
            str(version_range(span.value)) if span is not None else "",
            max(archs.known, key=arch_number) if archs is not None else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "## GPUs and CUDA",
        "",
        "| compute capability | family | CUDA that compiles for it |",
        "| --- | --- | --- |",
    ]
    lines += [
        f"| {arch.arch} | {arch.family} | {version_range(arch.cuda)} |"
        for arch in facts.cuda.arch
        if not arch_number(arch.arch)[2]
    ]
    return "\n".join([*lines, ""])


# ------------------------------------------------------------------------------------ commands


def commands() -> str:
    """Every command with its arguments and options, as its help has them."""
    lines = [
        "# Every command",
        "",
        "<!-- Rendered by tools/render_docs.py from the command line; change that, not this. -->",
        "",
        "`torchsmith COMMAND --help` prints the same. Every command also takes `--debug`, which",
        "shows the traceback behind an error. Options may be repeated where the text says so.",
    ]
    root: Any = typer.main.get_command(command_line())
    context = typer.Context(root, info_name="torchsmith")
    sections: dict[str, list[str]] = {}
    for words, command in _leaves(root, ()):
        section = sections.setdefault(str(root.commands[words[0]].rich_help_panel), [])
        section += _command(words, command, typer.Context(command, context, " ".join(words)))
    for title, section in sections.items():
        lines += ["", f"## {title}", *section]
    return "\n".join(lines) + "\n"


def _leaves(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    below = getattr(command, "commands", None)
    if below is None:
        yield words, command
        return
    for name, one in below.items():
        if not one.hidden:
            yield from _leaves(one, (*words, name))


def _command(words: tuple[str, ...], command: Any, context: Any) -> Iterator[str]:
    usage = " ".join(["torchsmith", *words, *command.collect_usage_pieces(context)])
    yield from ("", f"### {' '.join(words)}", "")
    for paragraph in (command.help or "").split("\n\n"):
        yield from (_prose(paragraph), "")
    yield f"```text\n{usage}\n```"
    for title, records in parameter_help(command.get_params(context), context).items():
        if records:
            yield from ("", f"| {title.lower()} | |", "| --- | --- |")
            yield from (
                f"| `{cell(names)}` | {_prose(cell(text))} |"
                for names, text in records
                if "--help" not in names
            )


def _prose(text: str) -> str:
    """A text of the help as Markdown: what looks like a mark is none."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(
        part if part.startswith("`") else re.sub(r"([<\[*_])", r"\\\1", part) for part in parts
    )


# -------------------------------------------------------------------------------------- events

_STREAMS = (
    ("A build", "`build --json` and `guard --json` write these:", build_events),
    ("A build on a cluster", "`build --on CLUSTER --json` writes these:", farm_events),
)


def events() -> str:
    """Every event of a build, with what it holds."""
    lines = [
        "# Events of a build",
        "",
        "<!-- Rendered by tools/render_docs.py from the code; change that, not this. -->",
        "",
        "`build --json` writes one [JSON document](json.md) a line as things happen. Each has",
        "`event`, `at` (seconds since 1970) and `version`. The last is `run-finished`, or `error`",
        "where no run began.",
    ]
    for title, about, module in _STREAMS:
        lines += [
            "",
            f"## {title}",
            "",
            about,
            "",
            "| event | when | keys |",
            "| --- | --- | --- |",
        ]
        for event in _events(module):
            name = build_events.event_name(event)
            keys = ", ".join(f"`{key}`" for key in event.__struct_fields__ if key != "at")
            when = " ".join((event.__doc__ or "").split())
            lines.append(f"| `{name}` | {cell(when)} | {keys} |")
    return "\n".join([*lines, ""])


def _events(module: types.ModuleType) -> list[type[build_events.Event]]:
    return [
        item
        for item in vars(module).values()
        if isinstance(item, type)
        and issubclass(item, build_events.Event)
        and item.__module__ == module.__name__
        and item is not build_events.Event
    ]


# ----------------------------------------------------------------------------------- variables


def variables() -> dict[str, Any]:
    """What the page on environment variables is made of."""
    return tomllib.loads(VARIABLES.read_text(encoding="utf-8"))


def environment() -> str:
    """Every environment variable that a person may set."""
    lines = [
        "# Environment variables",
        "",
        f"<!-- Rendered by tools/render_docs.py from {VARIABLES.name}; change that, not this. -->",
        "",
        "An option on the command line goes before its variable.",
    ]
    for group in variables()["group"]:
        lines += ["", f"## {group['title']}", "", group["about"], ""]
        lines += ["| variable | meaning |", "| --- | --- |"]
        for item in group["variable"]:
            names = ", ".join(f"`{name}`" for name in item["names"])
            lines.append(f"| {names} | {item['meaning']} |")
    return "\n".join([*lines, ""])


# Every page of this module, by its file.
PAGES: dict[Path, Callable[[], str]] = {
    DOCS / "recipe-reference.md": reference,
    DOCS / "matrix.md": matrix,
    DOCS / "commands.md": commands,
    DOCS / "events.md": events,
    DOCS / "environment.md": environment,
}
