"""Text of others cannot command the terminal it is shown on."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from torchsmith.cli.output import PrintableStream, rich_console
from torchsmith.printable import printable, printable_json, printable_lines

pytestmark = pytest.mark.unit

CLIPBOARD = "\x1b]52;c;cm0gLXJm\x07"
ATTACKS = (
    CLIPBOARD,
    "\x1b]0;title\x1b\\",
    "\x1b[2J\x1b[H",
    "\x1b[1A\x1b[2K",
    "\x9b2J",
    "\x1bP$qm\x1b\\",
    "\x1b[6n",
    "\x08\x08\x08",
    "\x7f",
    "\u202egnp.exe",
    "\u2066hidden\u2069",
    "a\u2028b",
    "\U000e0041",
    "\x1b[" + "1;" * 100_000 + "m",
)
HARMFUL = frozenset("\x07\x08\x1b\x7f\x9b\u202e\u2066\u2028\U000e0041")


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_control_character_is_left(attack: str) -> None:
    for made in (printable(attack), printable_lines(attack), printable_json(f'"{attack}"')):
        assert not HARMFUL & set(made)


def test_a_line_stays_one_line() -> None:
    assert printable("torch\nok torch: signed\rby me\t") == "torch?ok torch: signed?by me?"


def test_words_of_every_language_stay() -> None:
    text = "Größe 大小 размер حجم 👩 é\u0301 ±1 µs"
    assert printable(text) == text
    assert printable_lines(f"{text}\n\t{text}\n") == f"{text}\n\t{text}\n"


def test_colours_go_and_progress_bars_become_lines() -> None:
    assert printable_lines("\x1b[31;1merror\x1b[0m: a\r\n") == "error: a\n"
    assert printable_lines(" 10%\r 20%\r") == " 10%\n 20%\n"


def test_a_json_document_keeps_its_meaning() -> None:
    value = {"name": "a\x9bb\u202ec\U000e0041d\ne"}
    text = printable_json(json.dumps(value, ensure_ascii=False, indent=1))
    assert json.loads(text) == value
    assert not HARMFUL & set(text)


def test_our_own_styles_pass_through_a_guarded_stream() -> None:
    behind = io.StringIO()
    print(f"\x1b[32mok\x1b[0m \x1b[8mhidden{CLIPBOARD}", file=PrintableStream(behind))
    assert behind.getvalue() == "\x1b[32mok\x1b[0m hidden?]52;c;cm0gLXJm?\n"


def test_text_in_a_live_display_holds_no_sequences_of_others() -> None:
    from rich.progress import Progress, TextColumn

    behind = io.StringIO()
    console = rich_console(behind, force_terminal=True, width=200)
    with Progress(TextColumn("{task.fields[now]}", markup=False), console=console) as progress:
        progress.add_task("", now=CLIPBOARD)
        console.print(f"built {CLIPBOARD}", markup=False)
    assert "\x1b[?25l" in behind.getvalue(), "rich hides the cursor itself"
    assert "\x1b]52" not in behind.getvalue()
    assert "\x07" not in behind.getvalue()


def run_on_a_terminal(*words: str, env: dict[str, str]) -> bytes:
    """What a command writes to the terminal it runs on."""
    outer, inner = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "torchsmith", *words],
        stdin=subprocess.DEVNULL,
        stdout=inner,
        stderr=inner,
        env={**os.environ, **env},
    ) as process:
        os.close(inner)
        said = b""
        # The kernel's word for "everybody has closed it".
        with contextlib.suppress(OSError):
            while chunk := os.read(outer, 65536):
                said += chunk
        os.close(outer)
    assert process.returncode is not None
    return said


@pytest.mark.parametrize("terminal", [True, False])
def test_a_file_name_in_an_error_cannot_command_the_terminal(
    tmp_path: Path, terminal: bool
) -> None:
    words = ("inspect", str(tmp_path / f"a{CLIPBOARD}\u202e.whl"))
    if terminal:
        said = run_on_a_terminal(*words, env={"TERM": "xterm-256color"})
    else:
        made = subprocess.run(
            [sys.executable, "-m", "torchsmith", *words], capture_output=True, check=False
        )
        said = made.stdout + made.stderr
    assert b"]52;c;" in said
    assert b"\x1b]" not in said
    assert "\u202e".encode() not in said


@pytest.mark.parametrize("terminal", [True, False])
def test_a_log_with_escapes_is_diagnosed_without_them(tmp_path: Path, terminal: bool) -> None:
    log = tmp_path / f"b{CLIPBOARD.replace('/', '')}.log"
    log.write_text(f"{CLIPBOARD} fatal error: nothing.h: No such file\u202e\x9b2J\x07\n")
    words = ("diagnose", str(log))
    if terminal:
        said = run_on_a_terminal(*words, env={"TERM": "xterm-256color"})
    else:
        made = subprocess.run(
            [sys.executable, "-m", "torchsmith", *words], capture_output=True, check=False
        )
        said = made.stdout + made.stderr
    assert b"nothing.h" in said
    assert b"\x07" not in said
    assert b"\x1b]" not in said
    assert "\x9b".encode() not in said
    assert "\u202e".encode() not in said
