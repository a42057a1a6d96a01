"""Render what the documentation shows, from real runs: nothing in it is typed by hand twice.

    python -m tools.render_docs            rewrite what is out of date
    python -m tools.render_docs --check    only say what is (exit 1)

Six things are rendered:

- the pages of the reference, see ``tools/reference_pages.py``;
- the answers in ``console`` blocks of README.md and the pages below docs/. A block that shows only
  commands is run and left as it is. A command must end with 0, unless ``$ echo $?`` follows;
- the pictures in docs/pictures/ that a command draws;
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
import os
import pty
import re
import shlex
import shutil
import sys
import tempfile
import tomllib
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from tools.reference_pages import PAGES, cell

from torchsmith.diagnose.knowledge import shipped as shipped_failures
from torchsmith.facts.files import shipped
from torchsmith.jobs.states import WORDS, State

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
EXAMPLES = DOCS / "examples"
PICTURES = DOCS / "pictures"
DIAGNOSE = DOCS / "diagnose.md"
JOBS = DOCS / "jobs.md"
PRESETS = DOCS / "presets.md"
WIDTH = 120
_SHELL = frozenset("();<>|&")


def pages() -> list[Path]:
    """Every page that is written by hand."""
    return [ROOT / "README.md", *sorted(set(DOCS.rglob("*.md")) - set(PAGES))]


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
        *("cli.app", "cli.plan", "cli.doctor", "host.read", "resolve.resolve"),
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

# Pictures that a command draws, from what lies in docs/examples/.
DRAWN = {
    "bench-cpu.svg": "torchsmith bench --read bench-cpu.json --html bench-cpu.svg",
    "bench-gpu.svg": "torchsmith bench --read bench-gpu.json --html bench-gpu.svg",
}


def draw(picture: str) -> str:
    """The picture as its command draws it today."""
    with tempfile.TemporaryDirectory() as name:
        folder = scratch(Path(name))
        answer = ask(DRAWN[picture], folder)
        if answer.code:
            raise SystemExit(f"{DRAWN[picture]} ends with {answer.code}: {answer.text}")
        return (folder / picture).read_text(encoding="utf-8")


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
        lines += [f"| `{state}` | {cell(state.meaning)} | {' | '.join(words)} |"]
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


def known_failures() -> str:
    """Every failure that is known, by area."""
    lines: list[str] = []
    for area, items in shipped_failures().areas.items():
        lines += ["", f"### {area.capitalize()}", "", "| failure | what it is | with `--fix` |"]
        lines += ["| --- | --- | --- |"]
        for item in items:
            fix = f"`{item.fix.key}`" if item.fix else ""
            title = re.sub(r"\{\w+(?:\|([^}]*))?\}", lambda gap: gap[1] or "…", item.title)
            lines += [f"| [{item.id}]({item.source}) | {cell(title)} | {fix} |"]
    return "\n".join(lines)


# ---------------------------------------------------------------------------------- main


def rendered() -> tuple[dict[Path, str], list[str]]:
    """Every file as it should be, and the problems met on the way."""
    ran = [run_page(path) for path in pages()]
    files = {
        **{path: page() for path, page in PAGES.items()},
        **{page.path: page.text for page in ran},
        **{PICTURES / name: draw(name) for name in DRAWN},
    }
    return files, [item for page in ran for item in page.problems]


def is_current(path: Path, wanted: str) -> bool:
    """Whether a file says what it should."""
    return path.is_file() and path.read_text(encoding="utf-8") == wanted


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
