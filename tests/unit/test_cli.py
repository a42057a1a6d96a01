"""The command line as a person meets it: answers, refusals, exit codes, nothing half-written."""

from __future__ import annotations

import io
import json
import resource
import sqlite3
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import typer
from tests.unit.conftest import Run

from torchsmith.cli.app import command_line
from torchsmith.recipe.presets import find_preset

pytestmark = pytest.mark.unit


def recipe(folder: Path, text: str) -> str:
    path = folder / "recipe.toml"
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_one_line_says_whether_it_can_exist_and_what_would_be_done(run: Run) -> None:
    code, out, _ = run(
        "plan", "--torch", "1.9.1", "--python", "3.8", "--cuda", "11.1", "--gpu", "RTX 3090"
    )
    assert code == 0
    assert "torch-1.9.1+cu111.sm86-cp38-cp38-linux_x86_64.whl" in out
    assert "TORCH_CUDA_ARCH_LIST=8.6" in out


def test_what_cannot_exist_ends_with_3_and_names_what_would(run: Run) -> None:
    code, out, err = run("plan", "--torch", "1.13", "--python", "3.12")
    assert code == 3
    assert "Python 3.12" in out
    assert "what works: Python 3.11" in out
    assert "would not build" in err


def test_a_refusal_is_data_with_json(run: Run) -> None:
    code, out, _ = run("plan", "--torch", "1.13", "--python", "3.12", "--json")
    assert code == 3
    (refused,) = json.loads(out)["refused"]
    assert refused["conflicts"][0]["kind"] == "python-torch"
    assert refused["nearest"]


def test_explain_gives_the_reason_for_every_choice(run: Run) -> None:
    code, out, _ = run("plan", "--preset", "jetson-tx2", "--explain")
    assert code == 0
    assert "patch torch = torch-1.1-threads-512.patch: " in out
    assert "GPU = 6.2: the GPU of the Jetson TX2" in out
    assert "https://" in out


def test_json_holds_the_whole_plan(run: Run) -> None:
    code, out, _ = run("plan", "--preset", "orion-vgpu", "--json")
    assert code == 0
    plan = json.loads(out)
    assert {"name", "variants", "steps", "files"} <= set(plan)
    for step in plan["steps"]:
        assert len(step["key"]) == 64
        assert set(step["needs"]) <= {other["id"] for other in plan["steps"]}


def test_the_same_recipe_gives_the_same_bytes(run: Run) -> None:
    for form in (["--json"], ["--as", "script"], ["--as", "dockerfile"], ["--as", "conda"]):
        assert run("plan", "--preset", "gemfield-conda", *form) == run(
            "plan", "--preset", "gemfield-conda", *form
        )


def test_flags_win_over_the_recipe(run: Run, tmp_path: Path) -> None:
    path = recipe(tmp_path, 'torch = "2.6.0"\npython = "3.11"\n[features]\nmkldnn = "off"\n')
    code, out, _ = run("plan", path, "--python", "3.12", "--feature", "fbgemm=off")
    assert code == 0
    assert "cp312" in out
    assert "USE_MKLDNN=0" in out
    assert "USE_FBGEMM=0" in out


def test_without_a_recipe_the_embedded_default_is_planned(run: Run) -> None:
    code, out, err = run("plan")
    assert code == 0
    assert "quickstart: torch 2.6.0" in out
    assert "embedded default" in err


def test_a_recipe_in_the_folder_is_found(run: Run, tmp_path: Path) -> None:
    recipe(tmp_path, 'name = "mine"\ntorch = "2.6.0"\npython = "3.11"\n')
    code, out, _ = run("plan")
    assert code == 0
    assert out.startswith("mine: ")


def test_a_rendering_is_written_where_asked_and_nowhere_else(run: Run, tmp_path: Path) -> None:
    code, _, _ = run("plan", "--preset", "jetson-tx2", "--as", "script", "-o", "out/build.sh")
    assert code == 0
    script = tmp_path / "out" / "build.sh"
    assert script.stat().st_mode & 0o111
    assert [path.name for path in script.parent.iterdir()] == ["build.sh"]


def test_an_output_that_cannot_be_written_is_said(run: Run, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept", encoding="utf-8")
    code, _, err = run("plan", "--preset", "quickstart", "--as", "script", "-o", "file/x.sh")
    assert code == 5
    assert "cannot be written" in err
    assert (tmp_path / "file").read_text(encoding="utf-8") == "kept"


def test_doctor_fails_a_machine_without_tools_and_says_how_to_mend_it(run: Run) -> None:
    code, out, err = run("doctor", "--preset", "quickstart")
    assert code == 4
    assert "install git" in out
    assert "cannot do it" in err


def test_doctor_json_can_be_handed_back_as_a_host(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("doctor", "--json")
    assert code == 4
    told = json.loads(out)
    assert told["host"]["platform"] == "linux-x86_64"
    assert told["rating"] == "fail"
    (tmp_path / "host.json").write_text(out, encoding="utf-8")
    assert run("plan", "--preset", "quickstart")[0] == 0


def test_a_host_file_that_is_none_is_refused(run: Run, tmp_path: Path) -> None:
    (tmp_path / "host.json").write_text("[1, 2]", encoding="utf-8")
    code, _, err = run("plan", "--preset", "quickstart")
    assert code == 2
    assert "does not describe a machine" in err


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        (("gpu", "rtx 3090"), "8.6"),
        (("torch", "1.9.1"), "dfbd030854359207cb3040b864614affeace11ce"),
        (("cuda", "12.4"), "550.54.14"),
        (("board", "jetson-tx2"), "at most 512"),
        (("companion", "vision", "0.3.0"), "torch 1.1.0"),
        (("features", "--torch", "1.1.0"), "NO_FBGEMM=1"),
        (("systems",), "ubuntu-16.04"),
    ],
)
def test_facts_answer_questions(run: Run, question: tuple[str, ...], answer: str) -> None:
    code, out, _ = run("facts", *question)
    assert code == 0
    assert answer in out
    code, out, _ = run("facts", *question, "--json")
    assert code == 0
    assert answer in out
    assert json.loads(out)["lines"]


@pytest.mark.parametrize(
    ("question", "hint"),
    [
        (("gpu", "rtx 3099"), "Did you mean"),
        (("torch", "1.9.9"), "1.9"),
        (("torch", "new; rm"), "is not a release"),
        (("cuda", "11.9"), "11."),
        (("board", "jetson-tx3"), "jetson-tx2"),
        (("companion", "vison"), "vision"),
    ],
)
def test_an_unknown_name_gets_the_nearest(run: Run, question: tuple[str, ...], hint: str) -> None:
    code, _, err = run("facts", *question)
    assert code == 2
    assert hint in err


def test_init_writes_a_commented_recipe_that_plans(run: Run, tmp_path: Path) -> None:
    code, out, _ = run("init", "--torch", "2.6.0", "--cuda", "12.6", "--gpu", "RTX 3090")
    assert code == 0
    assert "torchsmith plan recipe.toml" in out
    text = (tmp_path / "recipe.toml").read_text(encoding="utf-8")
    assert tomllib.loads(text)["gpus"] == ["RTX 3090"]
    assert text.count("#") > 8
    assert run("plan", "--python", "3.11")[0] == 0


def test_init_replaces_nothing_unless_forced(run: Run, tmp_path: Path) -> None:
    path = Path(recipe(tmp_path, "# mine\n"))
    code, _, err = run("init", "--torch", "2.6.0")
    assert code == 2
    assert "already exists" in err
    assert path.read_text(encoding="utf-8") == "# mine\n"
    assert run("init", "--torch", "2.6.0", "--force")[0] == 0


class Typed(io.StringIO):
    """What a person types."""

    def isatty(self) -> bool:
        return True


def test_init_asks_again_where_an_answer_cannot_work(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = ["9.9.9", "2.6.0", "3.6", "3.11,3.12", "99.9", "none", "vison", "vision"]
    monkeypatch.setattr(sys, "stdin", Typed("\n".join(typed) + "\n"))
    code, _, err = run("init")
    assert code == 0, err
    table = tomllib.loads((tmp_path / "recipe.toml").read_text(encoding="utf-8"))
    assert table["torch"] == "2.6.0"
    assert table["python"] == ["3.11", "3.12"]
    assert table["companions"] == {"vision": "match"}
    assert "torch 2.6.0 needs Python 3.9 or newer" in err
    assert "vison: is not a key of a recipe (did you mean 'vision'?)" in err


def test_init_takes_a_torch_that_is_too_old_for_this_machine_s_python(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Typed("1.9.1\n\n\n\n"))
    code, out, err = run("init")
    assert (code, err) == (0, "")
    assert "[3.9]" in out
    table = tomllib.loads((tmp_path / "recipe.toml").read_text(encoding="utf-8"))
    assert (table["torch"], table["python"]) == ("1.9.1", ["3.9"])


def test_a_question_without_an_answer_ends_as_ctrl_c_does(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", Typed("2.6.0\n"))
    code, _, err = run("init")
    assert (code, err.split()) == (130, ["interrupted"])
    assert not (tmp_path / "recipe.toml").exists()


def test_ctrl_c_is_told_to_a_script_as_that(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("torchsmith.cli.planning.read_machine", stopped)
    code, out, err = run("plan", "--torch", "2.6.0", "--json")
    assert (code, err) == (130, "interrupted\n")
    assert json.loads(out)["error"] == {
        "message": "interrupted",
        "hint": "The same command goes on.",
        "exit_code": 130,
    }


def test_a_rendering_does_not_take_the_place_of_a_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("mine", encoding="utf-8")
    code, _, err = run("plan", "--preset", "quickstart", "--as", "dockerfile", "-o", "kept")
    assert code == 5
    assert "Name a folder" in err
    assert (tmp_path / "kept").read_text(encoding="utf-8") == "mine"


def test_facts_call_a_package_of_a_stack_that(run: Run) -> None:
    code, _, err = run("facts", "stack", "nosuch")
    assert code == 2
    assert err.startswith("error: no package of a stack named 'nosuch' is known\n")


def test_what_init_offers_can_be_switched_on_beside_what_was_asked_for(
    run: Run, tmp_path: Path
) -> None:
    asked = ("--torch", "2.6.0", "--with", "vision", "--feature", "mkldnn=off")
    assert run("init", *asked)[0] == 0
    text = (tmp_path / "recipe.toml").read_text(encoding="utf-8")
    head, mark, rest = text.partition("# More that can be said")
    offered = "\n".join(line.removeprefix("# ") for line in rest.splitlines()[1:] if line != "#")
    assert mark
    assert tomllib.loads(head + offered)["companions"] == {"vision": "match"}


def test_init_with_bad_answers_writes_nothing(run: Run, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    code, _, err = run("init", "--torch", "1.9.1; rm -rf /")
    assert code == 2
    assert "1.9.1; rm -rf /" in err
    assert sorted(tmp_path.iterdir()) == before


def test_init_starts_from_a_preset(run: Run, tmp_path: Path) -> None:
    assert run("init", "--preset", "jetson-tx2", "tx2.toml")[0] == 0
    assert run("plan", "tx2.toml")[0] == 0
    code, _, err = run("init", "--preset", "jetson-tx3", "tx3.toml")
    assert code == 2
    assert "jetson-tx2" in err


def test_flags_change_a_preset_and_keep_its_comments(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "recipe.toml"
    flags = ("--torch", "2.7.1", "--feature", "fbgemm=on")
    assert run("init", str(path), "--preset", "quickstart", *flags)[0] == 0
    text = path.read_text(encoding="utf-8")
    table = tomllib.loads(text)
    assert (table["name"], table["torch"]) == ("quickstart", "2.7.1")
    assert table["features"]["fbgemm"] == "on"
    preset = find_preset("quickstart").path.read_text(encoding="utf-8")
    assert comments(text) == comments(preset)
    code, _, err = run(
        "init", "-", "--preset", "quickstart", "--torch", "1.9.1", "--python", "3.12"
    )
    assert code == 3
    assert "what works: Python 3.9" in err


def comments(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("#")]


def test_every_problem_of_a_recipe_is_told_at_once(run: Run, tmp_path: Path) -> None:
    path = recipe(
        tmp_path,
        'torch = "1.9.1; rm -rf /"\npythn = "3.8"\ngpus = ["RTX 3099"]\n[image]\nshm_size = 8\n',
    )
    code, out, err = run("plan", path)
    assert code == 2
    assert out == ""
    assert "line 1" in err
    assert "did you mean 'python'" in err
    assert "line 5" in err


def test_an_unknown_command_or_flag_ends_with_2(run: Run) -> None:
    assert run("plan", "--no-such-flag")[0] == 2
    assert run("bild")[0] == 2


@pytest.mark.parametrize(
    ("error", "said", "expected"),
    [
        (
            OSError(28, "No space left on device", "/store/x"),
            "/store/x: No space left on device",
            7,
        ),
        (PermissionError(13, "Permission denied", "/x"), "/x: Permission denied", 4),
        (OSError(30, "Read-only file system"), "Read-only file system", 4),
        (OSError(36, "File name too long", "xx"), "xx: File name too long", 2),
        (MemoryError(), "not enough memory", 4),
        (RecursionError(), "nested too deep", 2),
        (sqlite3.OperationalError("attempt to write a readonly database"), "readonly database", 5),
        (sqlite3.DatabaseError("file is not a database"), "file is not a database", 5),
    ],
)
def test_what_the_machine_refuses_is_a_sentence_and_no_bug(
    error: Exception, said: str, expected: int, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: object) -> None:
        raise error

    monkeypatch.setattr("torchsmith.recipe.schema.schema_text", lambda _: refuse())
    code, _, complaint = run("schema")
    assert code == expected
    assert said in complaint
    assert "Traceback" not in complaint


def test_a_store_that_is_no_database_is_a_sentence(run: Run, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    for name in ("journal.db", "jobs.db"):
        (store / name).write_bytes(b"no database at all" * 100)
    for words in (("log", "--store", str(store)), ("job", "list", "--store", str(store))):
        code, _, said = run(*words)
        assert code != 0
        assert "Traceback" not in said
        assert said.startswith("error: ")


def test_only_the_command_that_is_named_is_read() -> None:
    """The options of all of them take as long as a plan; whoever names none is shown all."""
    named = typer.main.get_command(command_line(["plan", "--help"]))
    others = [typer.main.get_command(command_line(words)) for words in ([], ["-h"], ["no-such"])]
    assert set(getattr(named, "commands", {})) == {"plan"}
    assert all({"plan", "build", "job"} <= set(getattr(one, "commands", {})) for one in others)


@pytest.mark.parametrize(
    ("memory", "stack"), [(4 << 30, 8 << 30), (48 << 20, 0)], ids=["no thread", "hardly any"]
)
def test_too_little_memory_is_said_in_a_sentence(memory: int, stack: int, tmp_path: Path) -> None:
    def limit() -> None:
        if stack:
            # A thread takes as much as this, so none can be started.
            hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
            resource.setrlimit(resource.RLIMIT_STACK, (stack, hard))
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))

    done = subprocess.run(
        [sys.executable, "-m", "torchsmith", "doctor"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=limit,
    )
    assert done.returncode == 4
    assert "there is not enough memory" in done.stderr
    assert "Traceback" not in done.stderr
