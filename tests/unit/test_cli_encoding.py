"""Terminals and pipes that are not UTF-8 get plain text, and files as they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.unit.test_cli_inputs import ASKED

pytestmark = pytest.mark.unit

PROGRAM = """
import sys
from torchsmith.cli import main
for line in sys.argv[1:]:
    sys.argv = ["torchsmith", *line.split()]
    try:
        main()
    except SystemExit as end:
        assert end.code in (0, 4), (line, end.code)
    sys.stdout.flush()
"""


def called(folder: Path, encoding: str, *lines: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, *lines],
        cwd=folder,
        env={
            **os.environ,
            "PYTHONIOENCODING": encoding,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "TORCHSMITH_STORE": str(folder / "store"),
        },
        capture_output=True,
        check=False,
    )


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_every_command_answers_in_any_encoding(tmp_path: Path, encoding: str) -> None:
    lines = [f"{command} {rest}" for command, rest in ASKED.items()]
    done = called(tmp_path, encoding, *lines)
    assert done.returncode == 0, done.stderr[-3000:]
    assert b"|-- " in done.stdout
    assert b"`-- " in done.stdout
    assert b"Traceback" not in done.stderr


def test_json_and_files_are_utf_8_whatever_a_terminal_shows(tmp_path: Path) -> None:
    text = 'torch = "2.6.0"\npython = "3.11"\ndescription = "für Zoë — 你好"\n'
    (tmp_path / "recipe.toml").write_text(text, encoding="utf-8")
    told = json.loads(called(tmp_path, "ascii", "plan --json").stdout.decode("utf-8"))
    assert told["version"] == 1
    written = called(tmp_path, "ascii", "init - --preset training-image").stdout.decode("utf-8")
    assert tomllib.loads(written)["torch"]


def test_a_script_in_a_pipe_is_the_one_that_is_written(tmp_path: Path) -> None:
    """An ASCII terminal's dashes would be other words in it."""
    text = 'name = "a"\ntorch = "2.6.0"\npython = "3.11"\n[build.env]\nNOTE = "für — Zoë"\n'
    (tmp_path / "recipe.toml").write_text(text, encoding="utf-8")
    printed = called(tmp_path, "ascii", "plan --as script")
    assert printed.returncode == 0, printed.stderr
    assert "für — Zoë" in printed.stdout.decode("utf-8")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_closed_stream_is_dev_null(tmp_path: Path, closed: str) -> None:
    """What is opened next must not become standard output."""
    (tmp_path / "recipe.toml").write_text('torch = "2.6.0"\npython = "3.11"\n', encoding="utf-8")
    for words in ("-V", "facts cuda", "plan --json", "log", "facts gpu nothing"):
        line = f'"$PY" -m torchsmith {words} {closed}'
        done = subprocess.run(
            ["sh", "-c", line],
            cwd=tmp_path,
            env={**os.environ, "PY": sys.executable, "TORCHSMITH_STORE": str(tmp_path / "store")},
            capture_output=True,
            check=False,
        )
        assert done.returncode == (2 if "nothing" in words else 0), done.stderr
        assert b"Traceback" not in done.stderr
