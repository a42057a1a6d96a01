"""`torchsmith diagnose` as a person meets it, and what a failed build says by itself."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest
from tests.unit.conftest import Run

from torchsmith.cli.diagnose import known_of_lines, known_of_log
from torchsmith.errors import StepFailed

pytestmark = pytest.mark.unit

KILLED = "c++: fatal error: Killed signal terminated program cc1plus\n"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "build.log"
    path.write_text(f"[1/2] Building\n{KILLED}", encoding="utf-8")
    return path


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "lab.toml"
    path.write_text('torch = "2.6.0"\n\n[build]\njobs = 8 # mine\n', encoding="utf-8")
    return path


def test_a_known_failure_ends_with_0_and_says_what_cures_it(run: Run, log: Path) -> None:
    code, out, _ = run("diagnose", str(log))
    assert code == 0
    assert "line 2: c++: fatal error" in out
    assert "cure: Run fewer compilers" in out
    assert "https://" in out


def test_an_unknown_failure_ends_with_10_and_says_what_to_attach(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text("a.cpp:1:1: error: no such thing\n", encoding="utf-8")
    code, out, err = run("diagnose", "x.log")
    assert code == 10
    assert "line 1: a.cpp:1:1: error: no such thing" in out
    assert "not known" in err
    assert "doctor --json" in err


def test_standard_input_is_read(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(KILLED.encode())))
    code, out, _ = run("diagnose", "-", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["known"] is True
    assert found["named"][0]["id"] == "compiler-killed"
    assert found["named"][0]["fix"] == {"key": "build.jobs", "how": "halve", "value": ""}


def test_every_known_failure_is_listed(run: Run) -> None:
    code, out, _ = run("diagnose", "--list")
    assert code == 0
    assert "compiler-killed" in out
    listed = json.loads(run("diagnose", "--list", "--json")[1])["failures"]
    assert len(listed) >= 220


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "-- Could NOT find CUDA (missing: X)\n-- Build files have been written to: /b\n",
            "ends well",
        ),
        ("epoch 1\nepoch 2\n", "no failure was found in 2 lines"),
    ],
)
def test_a_log_without_a_failure_says_so_and_ends_with_0(
    run: Run, tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "x.log").write_text(text, encoding="utf-8")
    code, out, err = run("diagnose", "x.log")
    assert (code, err) == (0, "")
    assert said in out


def test_what_came_right_after_all_is_told(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text(
        "fatal: clone of 'https://github.com/a/b.git' into submodule path 'x' failed\n"
        "Submodule path 'x': checked out 'a2e59f0'\n",
        encoding="utf-8",
    )
    code, out, _ = run("diagnose", "x.log")
    assert code == 0
    assert "it came right after all (line 1)" in out


def test_a_private_key_in_a_log_is_not_quoted_line_by_line(run: Run, tmp_path: Path) -> None:
    line = "NqVwYS81VP7Hb1DX8pPd5khxE3pyIgKpaUnArl63XykWZeiN"
    (tmp_path / "x.log").write_text(
        f"error: -----BEGIN RSA PRIVATE KEY-----\n{line}\n{line}\n-----END RSA PRIVATE KEY-----\n"
        "fatal error: it\n",
        encoding="utf-8",
    )
    for options in ((), ("--json",)):
        _, out, _ = run("diagnose", "x.log", *options)
        assert line not in out
        assert "fatal error: it" in out


def test_a_log_that_is_empty_or_packed_is_one_sentence(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.zip").write_bytes(b"PK\x03\x04...")
    (tmp_path / "x.log").write_bytes(b"")
    for name, said in (("x.zip", "a zip archive; unpack it first"), ("x.log", "x.log is empty")):
        code, _, err = run("diagnose", name)
        assert code == 2
        assert said in err


@pytest.mark.parametrize("arguments", [(), ("nothing.log",), (".",)])
def test_a_log_that_is_not_there_is_one_sentence(run: Run, arguments: tuple[str, ...]) -> None:
    code, _, err = run("diagnose", *arguments)
    assert code == 2
    assert err.startswith("error: ")
    assert "Traceback" not in err


def test_a_change_is_shown_and_made_only_on_yes(run: Run, log: Path, recipe: Path) -> None:
    before = recipe.read_text(encoding="utf-8")
    code, out, err = run("diagnose", str(log), "--fix", str(recipe))
    assert code == 0
    assert "+jobs = 4 # mine" in out
    assert "nothing was written" in err
    assert recipe.read_text(encoding="utf-8") == before
    recipe.chmod(0o600)
    code, _, _ = run("diagnose", str(log), "--fix", str(recipe), "--yes")
    assert code == 0
    assert recipe.read_text(encoding="utf-8") == before.replace("jobs = 8", "jobs = 4")
    assert recipe.stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in recipe.parent.iterdir()) == [
        "build.log",
        "host.json",
        "lab.toml",
    ]


def test_a_cure_that_is_no_change_of_a_recipe_says_so(
    run: Run, recipe: Path, tmp_path: Path
) -> None:
    (tmp_path / "x.log").write_text("No space left on device\n", encoding="utf-8")
    code, _, err = run("diagnose", "x.log", "--fix", str(recipe), "--yes")
    assert code == 2
    assert "disk-full is not cured by a change of the recipe" in err


def test_every_cause_is_mended_and_not_only_the_first(
    run: Run, recipe: Path, tmp_path: Path
) -> None:
    (tmp_path / "x.log").write_text(
        "No space left on device\n"
        f"{KILLED}"
        "foo.c:1:10: fatal error: Python.h: No such file or directory\n",
        encoding="utf-8",
    )
    code, out, err = run("diagnose", "x.log", "--fix", str(recipe), "--yes")
    assert code == 0
    assert "+jobs = 4" in out
    assert "build.jobs, build.apt changed" in err
    assert "jobs = 4 # mine" in recipe.read_text(encoding="utf-8")


def test_a_change_that_plan_refuses_is_not_offered(run: Run, tmp_path: Path) -> None:
    text = 'torch = "2.6.0"\ngpus = ["8.0"]\n\n[cuda]\nversion = "12.4"\n'
    recipe = tmp_path / "lab.toml"
    recipe.write_text(text, encoding="utf-8")
    (tmp_path / "x.log").write_text(
        "NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current "
        "PyTorch installation.\n",
        encoding="utf-8",
    )
    code, out, err = run("diagnose", "x.log", "--fix", str(recipe), "--yes")
    assert code == 2
    assert "note: not offered: no-kernel-image" in err
    assert "+gpus" not in out
    assert recipe.read_text(encoding="utf-8") == text


def test_an_older_compiler_is_offered_where_plan_refuses_the_newest(
    run: Run, tmp_path: Path
) -> None:
    recipe = tmp_path / "lab.toml"
    text = 'torch = "2.1.0"\npython = "3.11"\ncuda = "12.1"\nsystem = "ubuntu-22.04"\n'
    recipe.write_text(text, encoding="utf-8")
    (tmp_path / "x.log").write_text(
        "host_config.h:132:2: error: #error -- unsupported GNU version! gcc versions later than 12 "
        "are not supported!\n",
        encoding="utf-8",
    )
    code, out, err = run("diagnose", "x.log", "--fix", str(recipe), "--yes")
    assert code == 0, err
    # With gcc 12 FBGEMM's copy in this release would fail next.
    assert '+compiler = "gcc-11"' in out


def test_what_can_be_planned_is_written_though_another_change_cannot(
    run: Run, tmp_path: Path
) -> None:
    recipe = tmp_path / "lab.toml"
    recipe.write_text('torch = "2.6.0"\ngpus = ["8.0"]\n\n[cuda]\nversion = "12.4"\n', "utf-8")
    (tmp_path / "x.log").write_text(
        "NVIDIA GeForce RTX 5090 with CUDA capability sm_120 is not compatible with the current "
        f"PyTorch installation.\n{KILLED}",
        encoding="utf-8",
    )
    code, _, err = run("diagnose", "x.log", "--fix", str(recipe), "--yes")
    assert code == 0
    assert "not offered" in err
    assert run("plan", str(recipe))[0] == 0
    assert "jobs" in recipe.read_text(encoding="utf-8")


def test_a_recipe_that_is_wrong_is_not_changed(run: Run, log: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.toml"
    bad.write_text("torhc = 1\n", encoding="utf-8")
    code, _, _ = run("diagnose", str(log), "--fix", str(bad), "--yes")
    assert code == 2
    assert bad.read_text(encoding="utf-8") == "torhc = 1\n"


def test_a_failed_step_says_what_is_known_of_it(log: Path) -> None:
    (line,) = known_of_log(log, ("x",))
    assert line.startswith("known: A compiler was killed: memory ran out — Run fewer")


def test_a_failed_step_whose_log_is_gone_is_known_by_its_excerpt() -> None:
    assert known_of_log(Path("/nowhere/x.log"), (KILLED,))


def test_a_failed_step_nobody_knows_says_nothing_more(tmp_path: Path) -> None:
    assert known_of_log(tmp_path, ("something",)) == []


def test_the_command_line_says_it_after_the_error(
    run: Run, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(**_: object) -> None:
        raise StepFailed("compile", "compile torch", "it ended with 1", ("x",), str(log))

    monkeypatch.setattr("torchsmith.cli.app.command_line", lambda _: failing)
    code, _, err = run("build")
    assert code == 6
    assert err.index("error: compile torch") < err.index("known: A compiler was killed")


def test_what_a_failed_check_said_is_known_without_a_log() -> None:
    said = ["ImportError: libtorch_cuda.so: cannot open shared object file: No such file"]
    assert [line[:7] for line in known_of_lines(said)] == ["known: "]
    assert known_of_lines(["all is well"]) == []
