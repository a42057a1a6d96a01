"""Render what the documentation shows, from real runs: nothing in it is typed by hand twice.

    python tools/render_docs.py            rewrite what is out of date
    python tools/render_docs.py --check    only say what is (exit 1)

Seven things are rendered:

- ``docs/recipe-reference.md``, from the recipe's models and ``docs/recipe-keys.toml``;
- ``docs/matrix.md``, from the facts;
- the answers in ``console`` blocks of README.md and docs/*.md. A block that shows only
  commands is run and left as it is. A command must end with 0, unless ``$ echo $?`` follows;
- the pictures of terminals in docs/pictures/;
- the list of known failures in ``docs/diagnose.md``;
- the table of states in ``docs/jobs.md``;
- the tables of ``docs/presets.md``, from ``docs/presets.toml``.

In ``bash`` blocks and in running text only the parts that call torchsmith are run: the rest
needs a network, a container engine or hours. Commands of one page run in one scratch folder,
in order, with the files of docs/examples/ and with every ``toml`` block whose first line is
its file name (``# recipe.toml``). ``docs/examples/workstation.json`` describes the machine
that answers, so that an answer is the same everywhere.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pty
import re
import shlex
import shutil
import sys
import tempfile
import tomllib
import traceback
import types
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn

from annotated_types import Ge, Le
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from torchsmith.diagnose.knowledge import shipped as shipped_failures
from torchsmith.facts.cuda import arch_number
from torchsmith.facts.files import shipped
from torchsmith.facts.ranges import version_range
from torchsmith.facts.torch import entry_for, wheel_cudas
from torchsmith.jobs.states import WORDS, State
from torchsmith.recipe import job, models, outcome, values
from torchsmith.recipe.gpus import Gpus

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
EXAMPLES = DOCS / "examples"
PICTURES = DOCS / "pictures"
REFERENCE = DOCS / "recipe-reference.md"
MATRIX = DOCS / "matrix.md"
KEYS = DOCS / "recipe-keys.toml"
DIAGNOSE = DOCS / "diagnose.md"
JOBS = DOCS / "jobs.md"
PRESETS = DOCS / "presets.md"
WIDTH = 120
_SHELL = frozenset("();<>|&")


def pages() -> list[Path]:
    """Every page that is written by hand."""
    return [ROOT / "README.md", *sorted(set(DOCS.glob("*.md")) - {REFERENCE, MATRIX})]


# ------------------------------------------------------------------------------- running


@dataclass(frozen=True)
class Answer:
    """What a terminal showed, with its colours, and how the command ended."""

    text: str
    code: int

    @property
    def plain(self) -> list[str]:
        """The lines, without colours and without spaces at their ends."""
        text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.text)
        return [line.rstrip() for line in text.rstrip().splitlines()]


def ask(command: str, folder: Path) -> Answer:
    """Run a command as a person at a terminal of 120 columns would."""
    environment = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
        "HOME": str(folder),
        "TERM": "xterm-256color",
        "COLUMNS": str(WIDTH),
        "LINES": "50",
        "LANG": "C.UTF-8",
    }
    plain = _plain_call(command)
    if plain:
        _warm()
    process, terminal = pty.fork()
    if process == 0:
        try:
            os.chdir(folder)
            if plain:
                os.environ.clear()
                os.environ.update(environment)
                _become_torchsmith(plain)
            os.execve("/bin/bash", ["bash", "-c", command], environment)
        finally:
            os._exit(1)
    shown = b"".join(_until_closed(terminal))
    # Closing first would hang up on a process that is about to end.
    code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    os.close(terminal)
    return Answer(shown.decode("utf-8", "replace").replace("\r\n", "\n"), code)


def _plain_call(command: str) -> list[str]:
    """The arguments, if a command calls torchsmith and asks nothing of the shell."""
    if "$" in command:
        return []
    words = list(shlex.shlex(command, posix=True, punctuation_chars=True))
    asked = any(set(word) <= _SHELL for word in words)
    return shlex.split(command) if words[:1] == ["torchsmith"] and not asked else []


@cache
def _warm() -> None:
    """Import once what nearly every command needs: a hundred of them are run."""
    for name in (
        *("cli.app", "cli.show_plan", "cli.show_doctor", "host.read", "resolve.resolve"),
        *("plan.build", "plan.render.conda", "plan.render.dockerfile", "plan.render.script"),
    ):
        importlib.import_module(f"torchsmith.{name}")
    shipped()


def _become_torchsmith(arguments: list[str]) -> NoReturn:
    """Go on as the command line itself: what is imported already need not be imported again."""
    from torchsmith.cli import main as torchsmith

    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", encoding="utf-8", buffering=1, closefd=False)  # noqa: SIM115
    sys.argv = arguments
    code = 0
    try:
        torchsmith()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    os._exit(code)


def _until_closed(terminal: int) -> Iterator[bytes]:
    while True:
        try:
            part = os.read(terminal, 1 << 16)
        except OSError:  # Linux answers EIO once the last writer has gone.
            return
        if not part:
            return
        yield part


def scratch(folder: Path) -> Path:
    """Fill a folder with what the pages' commands find beside them."""
    for path in EXAMPLES.iterdir():
        shutil.copy(path, folder)
    return folder


# --------------------------------------------------------------------------------- pages

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"(?<!`)`(torchsmith\s[^`]+)`(?!`)")
_FILE = re.compile(r"# ([\w.-]+\.toml)$")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    body: str
    start: int
    end: int

    @property
    def file(self) -> str:
        """The name a toml block gives itself, or nothing."""
        first, _, _ = self.body.partition("\n")
        match = _FILE.match(first) if self.language == "toml" else None
        return match[1] if match else ""


def blocks(text: str) -> list[Block]:
    """Every fenced block of a page, in order."""
    return [
        Block(match[1], match[2], match.start(2), match.end(2)) for match in _FENCE.finditer(text)
    ]


def _commands(body: str) -> list[tuple[str, list[str]]]:
    """The commands of a console block as they are written, each with the lines below it."""
    commands: list[tuple[str, list[str]]] = []
    for line in body.splitlines():
        if line.startswith("$ "):
            commands.append((line[2:], []))
        elif commands and commands[-1][0].endswith("\\"):
            commands[-1] = (f"{commands[-1][0]}\n{line}", [])
        elif commands:
            commands[-1][1].append(line)
    return commands


def _called(body: str) -> list[str]:
    """The parts of a bash block that call torchsmith."""
    joined = re.sub(r"\\\n\s*", "", body)
    parts = (part.strip() for line in joined.splitlines() for part in line.split(" && "))
    return [part for part in parts if part.startswith("torchsmith ")]


@dataclass
class Page:
    """A page after its commands were run: its text with fresh answers, and what went wrong."""

    path: Path
    text: str = ""
    problems: list[str] = field(default_factory=list)


def run_page(path: Path) -> Page:
    """Run a page's commands in the order they are read."""
    text = path.read_text(encoding="utf-8")
    page = Page(path)
    shown: list[str] = []
    done = 0
    with tempfile.TemporaryDirectory() as name:
        folder = scratch(Path(name))
        for block in blocks(text):
            if block.file:
                (folder / block.file).write_text(block.body, encoding="utf-8")
            elif block.language == "bash":
                for command in _called(block.body):
                    _must_work(page, command, ask(command, folder))
            elif block.language == "console":
                shown += [text[done : block.start], _console(page, block.body, folder)]
                done = block.end
        inline = (" ".join(item.split()) for item in _INLINE.findall(_FENCE.sub("", text)))
        for command in dict.fromkeys(inline):
            _must_work(page, command, ask(command, folder))
    page.text = "".join([*shown, text[done:]])
    if path == DIAGNOSE:
        page.text = between(page.text, "known failures", known_failures())
    if path == JOBS:
        page.text = between(page.text, "states", states())
    if path == PRESETS:
        for name, table in documents().items():
            page.text = between(page.text, f"lines of {name}", beside(table))
    return page


def _must_work(page: Page, command: str, answer: Answer, code: int = 0) -> None:
    if answer.code != code:
        last = " / ".join(answer.plain[-3:])
        page.problems.append(
            f"{page.path.name}: `{command}` ends with {answer.code}, not {code}: {last}"
        )


def _console(page: Page, body: str, folder: Path) -> str:
    commands = _commands(body)
    silent = not any(answer for _, answer in commands)
    lines: list[str] = []
    before = Answer("", 0)
    for index, (command, told) in enumerate(commands):
        lines.append(f"$ {command}")
        if command == "echo $?":
            lines.append(str(before.code))
            continue
        before = ask(command, folder)
        following = commands[index + 1] if index + 1 < len(commands) else ("", [])
        code = int(following[1][0]) if following[0] == "echo $?" and following[1] else 0
        _must_work(page, command, before, code)
        # A command without an answer on the page is run, and keeps its silence.
        if told or (not silent and len(commands) == 1):
            lines += before.plain
    return "\n".join(lines) + "\n"


# ------------------------------------------------------------------------------ pictures


@dataclass(frozen=True)
class Picture:
    """A terminal as it looked."""

    name: str
    title: str
    command: str
    code: int = 0


SHOTS = (
    Picture(
        "plan",
        "a plan",
        'torchsmith plan --torch 1.9.1 --python 3.8 --cuda 11.1 --gpu "RTX 3090" '
        "--host workstation.json",
    ),
    Picture(
        "refusal",
        "a refusal, and what would work",
        'torchsmith plan --torch 1.9.1 --python 3.12 --cuda 10.2 --gpu "RTX 3090" '
        "--host workstation.json",
        3,
    ),
    Picture(
        "doctor",
        "what a machine lacks",
        "torchsmith doctor training.toml --host workstation.json",
        4,
    ),
    Picture(
        "problems",
        "every mistake at once",
        "torchsmith plan wrong.toml",
        2,
    ),
)

# rich's own template fetches a font from the network, which a picture in a README cannot.
_SVG = """\
<svg xml:space="preserve" viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<!-- Rendered by tools/render_docs.py from a real run. -->
<style>
.{unique_id}-matrix {{
  font-family: "DejaVu Sans Mono", Menlo, Consolas, "Liberation Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px;
}}
.{unique_id}-title {{ font-size: 18px; font-weight: bold; font-family: sans-serif; }}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}" />
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def draw(shot: Picture, folder: Path) -> str:
    """The picture of a command and its answer, as SVG."""
    from rich.console import Console
    from rich.text import Text

    answer = ask(shot.command, folder)
    if answer.code != shot.code:
        raise SystemExit(f"{shot.command} ends with {answer.code}: {answer.text}")
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(width=WIDTH, record=True, file=nowhere, highlight=False)
        prompt = Text("$ ", style="bold green")
        console.print(prompt + Text(shot.command, style="bold"), soft_wrap=False)
        text = "\n".join(line.rstrip() for line in answer.text.rstrip().splitlines())
        console.print(Text.from_ansi(text), soft_wrap=False)
        return console.export_svg(title=shot.title, code_format=_SVG, unique_id=shot.name)


def pictures() -> dict[Path, str]:
    """Every picture of a terminal."""
    with tempfile.TemporaryDirectory() as name:
        folder = scratch(Path(name))
        return {PICTURES / f"{shot.name}.svg": draw(shot, folder) for shot in SHOTS}


# ----------------------------------------------------------------------------- reference

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
    (models.TorchWish, "a release, or a table"),
    (models.CudaWish, 'a release, `"none"`, `"host"`, or a table'),
    (models.PatchWish, "a path, or a table"),
    (models.CompanionWish, '`"match"`, `"none"` or a release; `true` and `false` too'),
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


def _cell(text: str) -> str:
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
            lines += [f"| {' | '.join(map(_cell, row))} |" for row in rows(model)]
    return "\n".join(lines) + "\n"


# ------------------------------------------------------------------------ tables of pages


def between(text: str, what: str, content: str) -> str:
    """A page with what is made of data between its two marks."""
    before, start, rest = text.partition(f"<!-- {what}:")
    mark, arrow, _ = rest.partition("-->")
    _, end, after = rest.partition(f"<!-- end of {what} -->")
    return f"{before}{start}{mark}{arrow}\n{content}\n{end}{after}"


def states() -> str:
    """What can become of a job, and what each engine calls it."""
    lines = [
        "",
        f"| state | meaning | {' | '.join(WORDS)} |",
        f"| --- | --- |{' --- |' * len(WORDS)}",
    ]
    for state in State:
        words = (
            ", ".join(f"`{word}`" for word, meant in table.items() if meant is state)
            for table in WORDS.values()
        )
        lines += [f"| `{state}` | {_cell(state.meaning)} | {' | '.join(words)} |"]
    return "\n".join([*lines, ""])


def documents() -> dict[str, Any]:
    """The documents' lines beside the presets', as the tests read them too."""
    return tomllib.loads((DOCS / "presets.toml").read_text(encoding="utf-8"))


def beside(table: Any) -> str:
    """A document's lines beside ours, and what a test machine runs in place of the rest."""
    columns = table["columns"]
    lines = ["", f"| {' | '.join(columns)} |", "| --- " * len(columns) + "|"]
    lines += [f"| {' | '.join(line['cells'])} |" for line in table["line"]]
    lines += ["", "| what the tests cannot run | what they run instead |", "| --- | --- |"]
    for item in table["instead"]:
        name = item["test"].rpartition("::")[2]
        lines += [f"| {item['wanted']} | {item['run']} (`{name}`) |"]
    return "\n".join([*lines, ""])


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


def known_failures() -> str:
    """Every failure that is known, by area."""
    lines: list[str] = []
    for area, items in shipped_failures().areas.items():
        lines += ["", f"### {area.capitalize()}", "", "| failure | what it is | with `--fix` |"]
        lines += ["| --- | --- | --- |"]
        for item in items:
            fix = f"`{item.fix.key}`" if item.fix else ""
            title = re.sub(r"\{\w+(?:\|([^}]*))?\}", lambda gap: gap[1] or "…", item.title)
            lines += [f"| [{item.id}]({item.source}) | {_cell(title)} | {fix} |"]
    return "\n".join(lines)


# ---------------------------------------------------------------------------------- main


def seen(svg: str) -> str:
    """The words of a picture, which do not depend on the version of what drew it."""
    return "\n".join(re.findall(r"<text[^>]*>([^<]*)</text>", svg))


def rendered() -> tuple[dict[Path, str], list[str]]:
    """Every file as it should be, and the problems met on the way."""
    ran = [run_page(path) for path in pages()]
    files = {
        REFERENCE: reference(),
        MATRIX: matrix(),
        **{page.path: page.text for page in ran},
        **pictures(),
    }
    return files, [item for page in ran for item in page.problems]


def is_current(path: Path, wanted: str) -> bool:
    """Whether a file says what it should."""
    if not path.is_file():
        return False
    text = path.read_text(encoding="utf-8")
    return seen(text) == seen(wanted) if path.suffix == ".svg" else text == wanted


def main() -> None:
    """Rewrite what is out of date, or say what is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only say what is out of date")
    check = parser.parse_args().check
    files, problems = rendered()
    stale = [path for path, text in files.items() if not is_current(path, text)]
    for path in stale:
        if not check:
            path.write_text(files[path], encoding="utf-8")
        print(f"{'out of date' if check else 'written'}: {path.relative_to(ROOT)}")
    for problem in problems:
        print(problem, file=sys.stderr)
    if problems or (check and stale):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
