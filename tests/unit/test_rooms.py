"""A room imports from the rooms before it, never from one after it; the middle touches nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2] / "src" / "torchsmith"
FILES = sorted(ROOT.rglob("*.py"))

# Earliest first, as docs/layout.md lists them; what stands on one line stands side by side.
RANKS = (
    ("errors",),
    (
        "checks",
        "files",
        "foreign",
        "http_client",
        "inputs",
        "names",
        "owners",
        "printable",
        "programs",
        "redact",
        "secret_names",
        "secret_places",
        "settings",
        "tasks",
        "templates",
        "temporary",
        "yaml_text",
    ),
    *(
        (room,)
        for room in (
            *("facts", "recipe", "host", "resolve", "plan"),
            *("sources", "toolchain", "verify", "package", "engine"),
            *("ship", "diagnose", "jobs", "images", "bench", "web", "cli"),
        )
    ),
)
RANK = {room: rank for rank, rooms in enumerate(RANKS) for room in rooms}
# The package itself holds the version; `__main__` is the command line's front door.
RANK |= {"__init__": -1, "__main__": len(RANKS)}

PURE = ("resolve", "plan")
OUTSIDE = {
    *("os", "io", "pathlib", "shutil", "tempfile", "glob", "fcntl", "mmap"),
    *("subprocess", "multiprocessing", "threading", "concurrent", "asyncio", "signal"),
    *("socket", "ssl", "http", "urllib", "requests", "httpx"),
    *("time", "random", "secrets", "uuid", "platform", "getpass", "locale", "sqlite3"),
}
OUTSIDE_CALLS = {"open", "input", "print", "read_text", "read_bytes", "write_text", "write_bytes"}
CLOCKS = {"now", "today", "utcnow"}


@dataclass(frozen=True)
class Import:
    """One imported module: where, and whether it is paid for at start-up."""

    file: Path
    line: int
    module: str
    at_start: bool

    @property
    def room(self) -> str:
        parts = self.module.split(".")
        return parts[1] if len(parts) > 1 else "__init__"

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line} imports {self.module}"


def room_of(file: Path) -> str:
    first = file.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def imports_in(file: Path, node: ast.AST, at_start: bool = True) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(file, child.lineno, alias.name, at_start)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, f"{file}:{child.lineno}: relative import"
            assert child.module is not None
            if child.module == "torchsmith":
                for alias in child.names:
                    name = (
                        "torchsmith" if alias.name == "__version__" else f"torchsmith.{alias.name}"
                    )
                    yield Import(file, child.lineno, name, at_start)
            else:
                yield Import(file, child.lineno, child.module, at_start)
        else:
            inner = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from imports_in(
                file, child, at_start and not inner and not is_type_checking(child)
            )


def tree_of(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"), str(file))


IMPORTS = [item for file in FILES for item in imports_in(file, tree_of(file))]
OURS = [item for item in IMPORTS if item.module.split(".")[0] == "torchsmith"]


def test_every_room_has_its_place_in_the_order() -> None:
    assert {room_of(file) for file in FILES} == set(RANK)


def test_the_page_about_the_layout_lists_the_rooms_in_their_order() -> None:
    page = (ROOT.parents[1] / "docs/layout.md").read_text("utf-8")
    listed = re.findall(r"^  (\w+)/ ", page, re.M)
    assert listed == [room for rooms in RANKS[2:] for room in rooms]


def test_a_room_imports_no_later_one() -> None:
    late = [item for item in OURS if RANK[item.room] > RANK[room_of(item.file)]]
    assert [str(item) for item in late] == []


def test_the_imports_are_seen() -> None:
    assert {room_of(item.file) for item in OURS} >= {"recipe", "resolve", "plan", "cli"}


def test_the_command_line_pays_for_heavy_imports_only_in_the_command_that_needs_them() -> None:
    heavy = [
        item
        for item in IMPORTS
        if room_of(item.file) == "cli"
        and not item.file.name.startswith("show_")
        and item.at_start
        and (
            item.module.split(".")[0] in ("pydantic", "rich", "msgspec", "packaging")
            or (item.room not in ("cli", "errors", "printable", "__init__") and item in OURS)
        )
    ]
    assert [str(item) for item in heavy] == []


def test_what_shows_things_is_not_loaded_before_it_is_needed() -> None:
    early = [
        item
        for item in OURS
        if item.at_start
        and item.module.startswith("torchsmith.cli.show_")
        and not item.file.name.startswith("show_")
    ]
    assert [str(item) for item in early] == []


def test_resolving_and_planning_import_nothing_that_touches_the_world() -> None:
    touching = [
        item
        for item in IMPORTS
        if room_of(item.file) in PURE and item.module.split(".")[0] in OUTSIDE
    ]
    assert [str(item) for item in touching] == []


def calls(file: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.Call):
            function = node.func
            name = function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")
            yield node.lineno, name


@pytest.mark.parametrize("room", PURE)
def test_resolving_and_planning_read_no_file_and_no_clock(room: str) -> None:
    touching = [
        f"{file.relative_to(ROOT)}:{line} calls {name}()"
        for file in FILES
        if room_of(file) == room
        for line, name in calls(file)
        if name in OUTSIDE_CALLS | CLOCKS
    ]
    assert touching == []
