"""What unit tests share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from torchsmith.cli import main

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Run:
    """The command line: its exit code, what it printed, what it complained of."""
    monkeypatch.chdir(tmp_path)
    host = tmp_path / "host.json"
    host.write_text('{"platform": "linux-x86_64", "system": "debian-12"}', encoding="utf-8")

    def call(*arguments: str) -> tuple[int, str, str]:
        here = ["--host", str(host)] if arguments[0] in ("plan", "doctor") else []
        monkeypatch.setattr(sys, "argv", ["torchsmith", *arguments, *here])
        try:
            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        said = capsys.readouterr()
        return code, said.out, said.err

    return call
