"""A program that misbehaves is an answer of `None`, never an error."""

from __future__ import annotations

import os
import re
import selectors
import time
from pathlib import Path

import pytest

from torchsmith.host.probe import Programs, ask, first_version, read_text, run, together

pytestmark = pytest.mark.unit


def script(path: Path, body: str) -> Path:
    """Put a program where a search path can find it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_a_program_that_works_is_heard(tmp_path: Path) -> None:
    assert run([str(script(tmp_path / "p", "echo one; echo two"))]) == "one\ntwo\n"


def test_a_missing_program_is_none(tmp_path: Path) -> None:
    assert run([str(tmp_path / "nothing")]) is None


def test_a_folder_or_a_plain_file_is_none(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello")
    assert run([str(tmp_path)]) is None
    assert run([str(tmp_path / "text")]) is None


def test_an_executable_of_another_format_is_none(tmp_path: Path) -> None:
    odd = tmp_path / "odd"
    odd.write_bytes(b"\x7fELF\0\0\0not really")
    odd.chmod(0o755)
    assert run([str(odd)]) is None


def test_a_name_no_system_accepts_is_none() -> None:
    assert run(["a\0b"]) is None


def test_a_failing_program_is_none_but_its_words_are_kept(tmp_path: Path) -> None:
    path = str(script(tmp_path / "p", "echo said; echo why >&2; exit 3"))
    assert run([path]) is None
    answer = ask([path])
    assert answer is not None
    assert (answer.code, answer.out, answer.err) == (3, "said\n", "why\n")


def gone(pid: int) -> bool:
    """Whether a process has ended; whoever adopted it may not have noticed yet."""
    status = read_text(Path(f"/proc/{pid}/status")) or ""
    return not status or re.search(r"^State:\s+[ZX]", status, re.MULTILINE) is not None


def test_a_hanging_program_is_ended_with_what_it_started(tmp_path: Path) -> None:
    path = script(tmp_path / "p", f"/bin/sleep 1000 & echo $! > {tmp_path}/child; wait")
    assert run([str(path)], timeout=0.5) is None
    child = int((tmp_path / "child").read_text())
    # The kernel ends what it was told to kill when that gets a core: on a busy machine, later.
    end = time.monotonic() + 60
    while not gone(child) and time.monotonic() < end:
        time.sleep(0.05)
    assert gone(child)


def test_a_program_that_closes_its_output_and_stays_is_none(tmp_path: Path) -> None:
    path = script(tmp_path / "p", "exec >&- 2>&-; exec /bin/sleep 1000")
    assert run([str(path)], timeout=0.3) is None


def test_what_a_program_leaves_running_does_not_hold_up_its_answer(tmp_path: Path) -> None:
    path = script(tmp_path / "p", f"/bin/sleep 1000 & echo $! > {tmp_path}/child; echo 1.0")
    try:
        assert run([str(path)], timeout=60) == "1.0\n"
    finally:
        os.kill(int((tmp_path / "child").read_text()), 9)


def test_words_said_while_nobody_looked_are_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A busy machine can stop us between looking at the pipes and looking at the program.
    select = selectors.DefaultSelector.select

    def slow_select(
        self: selectors.DefaultSelector, timeout: float | None = None
    ) -> list[tuple[selectors.SelectorKey, int]]:
        ready = select(self, timeout)
        if not ready:
            time.sleep(0.2)
        return ready

    monkeypatch.setattr(selectors.DefaultSelector, "select", slow_select)
    path = script(tmp_path / "p", "/bin/sleep 0.15; echo 1.0")
    assert run([str(path)], timeout=60) == "1.0\n"


def test_a_program_that_never_stops_printing_is_none(tmp_path: Path) -> None:
    path = script(tmp_path / "p", "while :; do echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa; done")
    assert run([str(path)], timeout=60) is None


def test_binary_output_is_text_with_marks_where_it_is_none(tmp_path: Path) -> None:
    path = script(tmp_path / "p", r"printf '\377\000\3761.2.3'")
    assert run([str(path)]) == "�\0�1.2.3"


def test_programs_speak_english_and_are_not_asked_to_type(tmp_path: Path) -> None:
    path = script(tmp_path / "p", 'read line && echo "typed $line"; echo "$LC_ALL"')
    assert run([str(path)], {"LC_ALL": "de_DE.UTF-8"}) == "C\n"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("cmake version 3.25.1", "3.25.1"),
        ("git version 2.39.5 (Apple Git-154)", "2.39.5"),
        ("1.13.0.git.kitware.jobserver-pipe-1", "1.13.0"),
        ("Docker version 20.10.24+dfsg1, build 297e128", "20.10.24"),
        ("mold 1.10.1 (compatible with GNU ld)", "1.10.1"),
        ("Ubuntu clang version 14.0.0-1ubuntu1", "14.0.0"),
        ("v18", None),
        ("1234567890.1", None),
        ("no version here", None),
        ("", None),
        (None, None),
    ],
)
def test_a_version_is_found_in_what_programs_print(text: str | None, version: str | None) -> None:
    assert first_version(text) == version


def test_the_search_path_is_followed_in_order(tmp_path: Path) -> None:
    second = script(tmp_path / "b/tool", "")
    first = script(tmp_path / "a/tool", "")
    programs = Programs({"PATH": f"{tmp_path}/a:{tmp_path}/none:{tmp_path}/b:{tmp_path}/a"})
    assert programs.all("tool") == [first, second]
    assert programs.find("other", "tool") == first
    assert programs.find("other") is None


def test_only_files_that_may_be_run_are_programs(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_text("")
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    programs = Programs({"PATH": str(tmp_path)})
    assert [programs.find(name) for name in ("folder", "text", "broken", "loop")] == [None] * 4


@pytest.mark.parametrize("path", ["", ":", ".", "bin:./bin", "/no/such/folder", "/etc/passwd"])
def test_a_search_path_that_leads_nowhere_is_empty(path: str) -> None:
    assert Programs({"PATH": path}).find("sh") is None


def test_a_folder_whose_name_is_not_text_is_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    script(folder / "tool", "echo 1.0")
    assert Programs({"PATH": str(folder)}).find("tool") is None


def test_files_that_cannot_be_read_are_none(tmp_path: Path) -> None:
    assert read_text(tmp_path) is None
    assert read_text(tmp_path / "none") is None
    assert read_text(Path("a\0b")) is None


def test_work_done_together_keeps_its_order() -> None:
    assert together(lambda number: number * 2, range(40)) == list(range(0, 80, 2))
    assert together(str, []) == []
