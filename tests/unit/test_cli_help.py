"""The help: every command is there, in whole sentences and without Python types."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from tests.every_command import EVERY
from tests.unit.conftest import Run

from torchsmith import __version__

pytestmark = pytest.mark.unit


def test_the_help_names_every_command_in_a_section_and_cuts_none_short(run: Run) -> None:
    code, out, _ = run("help")
    assert code == 0
    assert "..." not in out.partition("Options:")[2]
    assert "\nCommands:" not in out, "a command that is in no section"
    for words, command in EVERY.items():
        if len(words) == 1:
            assert re.search(rf"^  {words[0]} +\S", out, re.M)
            assert " ".join(command.help.partition("\n\n")[0].split()) in " ".join(out.split())


@pytest.mark.parametrize("words", EVERY, ids=" ".join)
def test_no_help_names_a_python_type(run: Run, words: tuple[str, ...]) -> None:
    code, out, _ = run("help", *words)
    assert code == 0
    assert (code, out, "") == run(*words, "--help") if words else True
    assert re.findall(r"<\w|list\[|\{\w+\}|\bstr\b", out) == []


def test_a_version_is_asked_for_as_elsewhere(run: Run) -> None:
    for flag in ("-V", "--version"):
        assert run(flag) == (0, f"torchsmith {__version__}\n", "")


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("pl", "plan"), ("image re", "render"), ("plan --preset jetson-t", "jetson-tx2")],
)
def test_a_shell_completes_commands_and_presets(typed: str, offered: str) -> None:
    words = f"torchsmith {typed}"
    done = subprocess.run(
        [sys.executable, "-m", "torchsmith"],
        env={
            "_TORCHSMITH_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(words.count(" ")),
            "PYTHONPATH": ":".join(sys.path),
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [offered]
