"""What a person may name by mistake, to every command: the answer is a sentence that fits."""

from __future__ import annotations

import json
import re
from pathlib import Path
from platform import machine

import pytest
from tests.every_command import LEAVES, options
from tests.unit.conftest import Run

pytestmark = pytest.mark.unit

# How each command is given a file, `@`; the ending such a file has.
FILES = {
    "plan @": ".toml",
    "image render --preset training-image --host @": ".json",
    "build @ --dry-run": ".toml",
    "build --preset quickstart --dry-run --bundle @": ".bundle",
    "bundle @": ".toml",
    "doctor @": ".toml",
    "image build @ --dry-run": ".toml",
    "image render @": ".toml",
    "image push @ --to x.example/y": ".toml",
    "run @ --dry-run": ".toml",
    "verify @ --no-run": ".whl",
    "verify x.whl --policy @": ".toml",
    "verify x.whl --key @": ".pem",
    "verify x.whl --recipe @": ".toml",
    "inspect @": ".whl",
    "fits @": ".whl",
    "inspect  @": ".conda",
    "finish @": ".whl",
    "finish x.whl --libraries wheels --pins @": ".txt",
    "conda @": ".whl",
    "conda --explain @": ".txt",
    "libtorch @": ".whl",
    "key trust @": ".pem",
    "diagnose @": ".log",
    "publish @ --index index": ".whl",
    "publish @ --channel channel": ".conda",
    "job submit @ --to local --dry-run": ".toml",
    "job render @ --to slurm": ".toml",
    "job import @": ".yaml",
    "bench --read @": ".json",
    "parity --read @": ".json",
    "parity a=@ b=@": ".whl",
}


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHSMITH_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.mark.parametrize("words", FILES)
def test_a_file_that_is_missing_or_a_folder_is_called_that(
    run: Run, tmp_path: Path, words: str
) -> None:
    ending = FILES[words]
    (tmp_path / f"folder{ending}").mkdir()
    (tmp_path / f"loop{ending}").symlink_to(f"loop{ending}")
    for name, reason in (
        (f"missing{ending}", "does not exist"),
        (f"folder{ending}", "is a folder, not a file"),
        (f"loop{ending}", "(cannot be read: Too many|does not exist)"),
    ):
        code, _, err = run(*words.replace("@", name).split())
        assert code == 2, err
        assert re.search(rf"error: {name} {reason}", err), err
        assert "problem in the recipe" not in err
        assert "Errno" not in err
        assert "With --debug" not in err


@pytest.mark.parametrize("words", FILES)
def test_whatever_is_in_a_file_no_command_breaks(run: Run, tmp_path: Path, words: str) -> None:
    ending = FILES[words]
    for name, content in (("empty", b""), ("text", b"hello\n"), ("bytes", bytes(range(256)) * 9)):
        (tmp_path / f"{name}{ending}").write_bytes(content)
        code, out, err = run(*words.replace("@", f"{name}{ending}").split())
        assert code in (0, 2, 8, 9), err
        assert out or err
        assert "Traceback" not in err
        assert "Errno" not in err


def test_a_mistake_in_a_job_file_is_explained_as_one(run: Run, tmp_path: Path) -> None:
    text = '[[job]]\nname = "My Job"\n[[job.role]]\ncommand = "true"\n'
    (tmp_path / "job.toml").write_text(text, encoding="utf-8")
    code, _, err = run("job", "render", "job.toml", "--to", "slurm")
    assert code == 2
    assert "line 2: job#1.name: 'My Job': expected a name of letters, digits, '_' and '-'" in err
    assert "error: job.toml: 1 problem in the job file" in err
    assert "`torchsmith schema --job` describes every key" in err


def test_a_preset_in_the_place_of_a_file_is_recognised(run: Run) -> None:
    code, _, err = run("plan", "quickstart")
    assert (code, err) == (
        2,
        "error: quickstart does not exist\n"
        "  It is a preset: --preset quickstart; `torchsmith init --preset quickstart` writes it.\n",
    )


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("init x.toml --preset nope", "Presets: dgx-spark,"),
        ("facts stack nope", "`torchsmith facts stack` lists them."),
        ("build --engine nerdctl", "Known are "),
        ("bench --cases --group nope", "Known are "),
        ("timeline", "`torchsmith build` builds something."),
    ],
)
def test_a_hint_names_nothing_that_is_not_meant(run: Run, words: str, hint: str) -> None:
    code, _, err = run(*words.split())
    assert code == 2
    assert err.splitlines()[1].startswith(f"  {hint}")


def test_flags_that_are_wrong_are_named_and_have_no_lines(run: Run) -> None:
    code, _, err = run("plan", "--torch", "2.6.0", "--cuda", "12x", "--gpu", "RTX 309")
    assert code == 2
    assert "error: --cuda: '12x': expected a CUDA release such as 12.6" in err
    assert "--gpu: 'RTX 309'" in err
    assert "line " not in err
    code, out, _ = run("plan", "--torch", "v2.6.0", "--python", "3.11", "--cuda", "cu126")
    assert code == 0
    assert "CUDA 12.6" in out
    assert "error: --compiler: 'a/b'" in run("plan", "--torch", "2.6.0", "--compiler", "a/b")[2]
    assert "did you mean 'jetson-tx2'" in run("plan", "--torch", "2.6.0", "--board", "tx2")[2]


def test_an_image_that_is_named_after_another_release_is_told_of(run: Run) -> None:
    told = "torch 1.2.0 goes into an image called orion-pytorch:1.1.0-py3.5"
    assert told in run("plan", "--preset", "orion-vgpu", "--torch", "1.2.0")[2]
    assert "an image called" not in run("plan", "--preset", "orion-vgpu", "--python", "3.6")[2]


def test_a_torch_on_the_command_line_is_laid_over_the_recipe_that_is_here(
    run: Run, tmp_path: Path
) -> None:
    text = 'torch = "2.6.0"\npython = "3.11"\n[features]\nmkldnn = "off"\n'
    (tmp_path / "recipe.toml").write_text(text)
    code, out, err = run("plan", "--torch", "2.4.1")
    assert code == 0
    assert "torch 2.4.1" in out
    assert "USE_MKLDNN=0" in out
    assert "recipe.toml with --torch laid over it" in err


@pytest.mark.parametrize(
    "words",
    ["run @ --dry-run", "image push @ --to x.example/y --dry-run", "image build @ --dry-run"],
)
def test_a_recipe_without_an_image_has_none_to_run_or_push(
    run: Run, tmp_path: Path, words: str
) -> None:
    (tmp_path / "lab.toml").write_text('torch = "2.6.0"\npython = "3.11"\n')
    code, _, err = run(*words.replace("@", "lab.toml").split())
    assert code == 2
    assert "error: the recipe asks for no image" in err


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("plan", "--torch", ""), "--torch"),
        (("plan", "--torch="), "--torch"),
        (("store", "share", "--store", ""), "--store"),
        (("key", "export", "-o", ""), "-o"),
        (("plan", ""), "an argument"),
        (("build", "--dry-run", "--preset", "quickstart", "--python", ""), "--python"),
    ],
)
def test_an_empty_value_is_refused_and_not_left_out(
    run: Run, tmp_path: Path, words: tuple[str, ...], name: str
) -> None:
    """A variable that is not set, in a script, must not build something else for hours."""
    code, out, err = run(*words)
    assert (code, out) == (2, "")
    assert f"error: {name} has an empty value" in err
    assert "Give it a value, or leave it out" in err
    assert not (tmp_path / "shared").exists()


@pytest.mark.parametrize("output", [".", "/", "..", "folder", "x" * 300])
def test_a_result_that_cannot_have_its_name_is_refused_in_a_sentence(
    run: Run, tmp_path: Path, output: str
) -> None:
    (tmp_path / "folder").mkdir()
    for words in ("plan --torch 2.6.0 --python 3.11 --json -o", "key export -o"):
        code, _, err = run(*words.split(), output)
        assert code == 5
        assert "cannot be written: " in err


@pytest.mark.parametrize("output", [".", "folder", "/proc/x", "recipe.toml/x"])
@pytest.mark.parametrize("command", ["lock", "bundle"])
def test_where_nothing_can_be_written_nothing_is_fetched(
    run: Run, tmp_path: Path, command: str, output: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "recipe.toml").write_text('torch = "2.6.0"\npython = "3.11"\n')
    code, _, err = run(command, "-o", output)
    assert code == 5
    assert err.startswith(f"error: {output} cannot be written: ")
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    "words", ["store gc --days 99999999999999", "job list --limit 99999999999999999999"]
)
def test_a_number_without_end_is_refused(run: Run, words: str) -> None:
    code, _, err = run(*words.split())
    assert code == 2
    assert "must be less than" in err


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("plan --torch 2.6.0 -o x", "--output needs --as or --json"),
        ("plan --torch 2.6.0 --as script --explain", "--explain and --as do not go together"),
        ("plan --torch 2.6.0 --json --explain", "--explain and --json do not go together"),
        ("plan --torch 2.6.0 --json --as conda", "--as and --json do not go together"),
        ("diagnose x.log --yes", "--yes needs --fix"),
        ("conda x.whl --channel here", "--channel does nothing without --explain"),
        ("conda --explain x.txt -o here", "--output does nothing with --explain"),
        ("doctor --workers 4", "--workers does nothing without --env"),
        ("doctor --timeout=9", "--timeout does nothing without --env"),
        ("verify x.whl --signature --save", "--save does nothing where only signatures"),
        ("verify x.whl --no-run --keep", "--keep does nothing with --no-run"),
        ("verify . --save", "--save does nothing without a wheel"),
        ("bench --read x.json a b", "YOURS OTHER... does nothing with --read"),
        ("bench --read x.json --suite quick", "--suite does nothing with --read"),
        ("bench --cases --html x.html", "--html does nothing with --cases"),
        ("parity --read x.json --operator add", "--operator does nothing with --read"),
        ("parity --operators a b", "YOURS OTHER does nothing with --operators"),
        ("parity --device both a b", "'both' is not one of 'cpu', 'cuda'"),
        ("diagnose --list --fix x.toml", "--fix does nothing with --list"),
        ("init --list new.toml", "PATH does nothing with --list"),
        ("init --list --torch 2.6.0", "--torch does nothing with --list"),
        ("finish x.whl --pins x.txt", "--pins does nothing without --libraries wheels"),
        ("publish x.whl --index i --force", "--force does nothing without --to anaconda"),
        ("publish x.whl --index i --repository r", "--repository does nothing without --to pypi"),
        ("publish x.whl --index i --bucket s3://b", "--bucket does nothing without --to s3"),
        ("publish x.whl --index i --work w", "--work does nothing where files are named"),
        ("yank x==1 --index i --undo --reason r", "--reason does nothing with --undo"),
        ("timeline --json --slowest 3", "--slowest does nothing with --json"),
        ("run x --batch 1M", "--batch does nothing without --workers"),
        ("build --claim c", "--claim does nothing without --on"),
        ("build --on slurm --claim c", "--claim does nothing with --on slurm"),
        ("build --on local --partition p", "--partition does nothing with --on local"),
        ("build --on slurm -o here", "--output does nothing with --on"),
        (
            "build --preset quickstart --python 3.11 --dry-run --engine podman",
            "--engine does nothing where no step runs in a container",
        ),
    ],
)
def test_a_flag_that_would_change_nothing_is_refused(run: Run, words: str, reason: str) -> None:
    code, out, err = run(*words.split())
    assert code == 2, err
    assert reason in err
    assert not out or json.loads(out)["error"]["message"] == reason


def test_the_jobs_of_a_farm_are_told_which_container_tool_to_take(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = 'torch = "2.6.0"\npython = "3.11"\nsystem = "debian-12"\n'
    (tmp_path / "lab.toml").write_text(text, encoding="utf-8")
    words = "build lab.toml --on local --dry-run --engine podman --network host"
    code, out, err = run(*words.split())
    assert code == 0, err
    assert "--engine podman --network host" in out
    monkeypatch.setenv("TORCHSMITH_ENGINE", "podman")
    (tmp_path / "lab.toml").write_text('torch = "2.6.0"\npython = "3.11"\n', encoding="utf-8")
    code, out, err = run("build", "lab.toml", "--on", "local", "--dry-run")
    assert code == 0, err
    assert "--engine" not in out


def test_a_variable_may_say_what_this_command_does_not_need(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHSMITH_ENGINE", "podman")
    assert run("build", "--preset", "quickstart", "--python", "3.11", "--dry-run")[0] == 0


@pytest.mark.parametrize(
    ("words", "title"),
    [("torch v2.6.0", "torch 2.6.0"), ("cuda cu126", "CUDA 12.6"), ("cuda 126", "CUDA 12.6")],
)
def test_facts_take_a_release_as_recipes_do(run: Run, words: str, title: str) -> None:
    code, out, _ = run("facts", *words.split())
    assert code == 0
    assert out.startswith(title)
    code, _, err = run("facts", words.split()[0], "12x")
    assert code == 2
    assert f"`torchsmith facts {words.split()[0]}` lists them" in err


def test_an_empty_word_of_another_program_is_its_own(run: Run) -> None:
    assert run("guard", "--dry-run", "--", "printf", "")[0] == 0


# A command line of each command with --json that fails, or changes nothing.
HARMLESS = {
    "plan": "missing.toml",
    "build": "--dry-run --preset quickstart --python 3.11",
    "guard": "--dry-run true",
    "doctor": "missing.toml",
    "verify": "missing.whl",
    "inspect": "missing.whl",
    "fits": "missing.whl",
    "finish": "missing.whl --dry-run",
    "conda": "missing.whl --dry-run",
    "libtorch": "missing.whl --dry-run",
    "diagnose": "missing.log",
    "log": "last",
    "timeline": "last",
    "bench": "--cases",
    "parity": "--operators",
    "publish": "missing.whl --index index --dry-run",
    "yank": "a==1 --index index",
    "remove": "a.whl --index index",
    "image build": "--dry-run --preset quickstart",
    "image push": "missing.toml --dry-run",
    "image pull": "Not:A:Name",
    "job submit": "missing.toml --dry-run",
    "job render": "missing.toml --to slurm",
    "job list": "",
    "job status": "nothing",
    "store list": "",
    "key show": "",
    "key list": "",
    "key export": "",
    "key trust": "missing.pem",
    "key revoke": "nothing",
    "key rotate": "",
    "store verify": "",
    "store share": "",
    "store gc": "--dry-run",
    "config": "",
    "init": "--list",
    "lock": "missing.toml",
    "bundle": "missing.toml",
    "run": "missing.toml --dry-run",
    "image render": "missing.toml",
    "image wheels": "missing --engine nothing",
    "job logs": "nothing",
    "job cancel": "nothing",
    "job import": "missing.yaml",
    "facts gpu": "nothing",
    "facts torch": "2.6.0",
    "facts cuda": "12.6",
    "facts board": "nothing",
    "facts stack": "nothing",
    "facts companion": "vision",
    "facts features": "",
    "facts systems": "",
}
WITH_JSON = [" ".join(words) for words in LEAVES if "--json" in options(words)]


def test_every_command_with_json_is_tried() -> None:
    assert set(WITH_JSON) == set(HARMLESS)


@pytest.mark.parametrize("command", WITH_JSON)
@pytest.mark.parametrize("wrong", ["", "--no-such-option"])
def test_json_parses_and_has_a_version_however_a_command_ends(
    run: Run, command: str, wrong: str
) -> None:
    words = [*command.split(), *HARMLESS[command].split(), "--json", *wrong.split()]
    code, out, err = run(*words)
    told = json.loads(out)
    assert told["version"] == 1
    if "error" in told:
        assert told["error"]["exit_code"] == code
        assert told["error"]["message"] in err or "Error:" in err
    else:
        assert code == 0, err
    assert bool(wrong) <= ("error" in told)


def test_a_dry_run_tells_the_same_to_programs_and_to_people(run: Run) -> None:
    words = ("build", "--dry-run", "--preset", "quickstart", "--python", "3.11")
    told = json.loads(run(*words, "--json")[1])
    shown = run(*words)[1]
    assert told["dry_run"] is True
    assert [step["title"] in shown for step in told["steps"]] == [True] * len(told["steps"])
    assert {step["status"] for step in told["steps"]} == {"to run"}
    assert told["seconds"] == sum(step["seconds"] for step in told["steps"]) > 0


def test_a_dry_run_says_what_the_build_itself_would_be_refused_for(run: Run) -> None:
    there = "linux-x86_64" if machine() == "aarch64" else "linux-aarch64"
    words = ("--preset", "quickstart", "--python", "3.11", "--platform", there)
    code, out, err = run("build", "--dry-run", *words)
    assert (code, "Nothing was run" in out) == (0, True)
    assert f"{there} cannot be compiled on this" in err
    assert err.count("the build itself would end here") == 1 + ("packages are missing" in err)


def test_only_steps_that_compile_need_packages_and_a_dry_run_names_them(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torchsmith.engine.preflight.missing_packages", list)
    words = ("--preset", "quickstart", "--python", "3.11", "--dry-run")
    _, out, err = run("build", *words)
    assert "Nothing was run" in out
    assert "system packages are missing: " in err
    assert "the build itself would end here. " in err
    for more in (("--step", "fetch"), ("--install-deps",)):
        assert "packages are missing" not in run("build", *words, *more)[2]


# What people may ask in each command without a file; those that serve, build or push are not.
ASKED = {
    "plan": "--preset orion-vgpu --explain",
    "doctor": "--preset quickstart",
    "build": "--preset quickstart --python 3.11 --dry-run",
    "init": "--list",
    "schema": "",
    "log": "",
    "store list": "",
    "store verify": "",
    "store gc": "--dry-run",
    "diagnose": "--list",
    "key list": "",
    "job list": "",
    "image render": "--preset training-image",
    "bench": "--cases",
    "parity": "--operators",
    "facts gpu": "",
    "facts torch": "2.6.0",
    "facts cuda": "12.6",
    "facts board": "jetson-tx2",
    "facts stack": "torch-scatter",
    "facts companion": "vision",
    "facts features": "",
    "facts systems": "",
}
PLACES = {"a file": "file", "where nobody writes": "/proc/nowhere"}


@pytest.mark.parametrize("command", ASKED)
@pytest.mark.parametrize("place", PLACES)
def test_a_store_that_cannot_be_used_is_called_that_and_stops_no_question(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, place: str
) -> None:
    (tmp_path / "file").write_text("kept")
    monkeypatch.setenv("TORCHSMITH_STORE", str(tmp_path / PLACES[place]))
    code, out, err = run(*command.split(), *ASKED[command].split())
    if code == 5:
        assert "error: the store " in err
        assert "--store FOLDER" in err
    else:
        assert code in (0, 4), err
        assert out
    assert "Traceback" not in err
    assert (tmp_path / "file").read_text() == "kept"


def test_a_build_into_a_store_that_cannot_be_used_says_where_to_put_it(
    run: Run, tmp_path: Path
) -> None:
    (tmp_path / "recipe.toml").write_text('torch = "2.6.0"\npython = "3.11"\n')
    code, _, err = run("job", "list", "--store", "/proc/nowhere")
    assert code == 5
    assert "the store /proc/nowhere cannot be used" in err
    assert "TORCHSMITH_STORE" in err
