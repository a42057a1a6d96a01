"""The nodes of a cluster: what it says of them, and what the doctor found on each.

machines/NAME.json in the store is what `torchsmith doctor --json` said on a machine; whoever looks
at a node here writes it, and so may the machine itself.
"""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import msgspec
from msgspec import Struct

from torchsmith.checks import Check, Rating
from torchsmith.engine.disk import room, write_whole
from torchsmith.errors import TorchsmithError
from torchsmith.foreign import decode
from torchsmith.jobs.targets.slurm import Slurm
from torchsmith.owners import read_plain

_FOLDER = "machines"
_LONGEST = 4 << 20
_MOST = 2000
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}")


class Report(Struct, frozen=True):
    """What the doctor said on a machine."""

    checks: tuple[Check, ...]
    rating: Rating


@dataclass(frozen=True)
class Node:
    """A machine that builds or runs jobs; `state` is its cluster's word, `problem` a plain one."""

    name: str
    state: str = ""
    has: str = ""
    at: float | None = None
    report: Report | None = None
    problem: str = ""


def nodes(root: Path) -> tuple[list[Node], str]:
    """The cluster's nodes and every machine of a report; and why the cluster is not asked."""
    known: dict[str, tuple[str, str]] = {}
    silent = ""
    if shutil.which("sinfo") is not None:
        try:
            known = {item.name: (item.state, item.has) for item in Slurm().nodes()}
        except TorchsmithError as error:
            silent = error.message
    reported = [path.stem for path in sorted((root / _FOLDER).glob("[!.]*.json"))]
    names = list(dict.fromkeys([*known, *reported]))[:_MOST]
    return [_node(root, name, *known.get(name, ("", ""))) for name in names], silent


def _node(root: Path, name: str, state: str, has: str) -> Node:
    path = root / _FOLDER / f"{name}.json"
    try:
        at = path.stat().st_mtime
        content = read_plain(path, _LONGEST)
    except (OSError, ValueError):
        return Node(name, state, has)
    try:
        return Node(name, state, has, at, decode(content, Report))
    except msgspec.MsgspecError:
        return Node(name, state, has, at, problem=f"{path.name} is no report of the doctor")


def examine(root: Path, name: str) -> None:
    """Run the doctor on a node, and keep its report."""
    if not _NAME.fullmatch(name):
        raise TorchsmithError(f"{name!r} is not the name of a node")
    report = Slurm().run_on(name, [sys.executable, "-m", "torchsmith", "doctor", "--json"])
    with room(root):
        write_whole(root / _FOLDER / f"{name}.json", report)
