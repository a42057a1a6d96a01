"""The probe runs on old Pythons, and what it compares with is what the formulas give."""

from __future__ import annotations

import ast
import json
import os
import runpy
import subprocess
import time
from pathlib import Path

import pytest

from torchsmith.facts.ranges import release
from torchsmith.host import read_host
from torchsmith.verify.probe import script
from torchsmith.verify.probing import read_document

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
FOLDER = Path(script.__file__).parent
FILES = sorted(FOLDER.glob("*.py"))


@pytest.fixture(scope="module")
def oldest(tmp_path_factory: pytest.TempPathFactory) -> str:
    pythons = read_host(tmp_path_factory.mktemp("host"), brief=True).pythons
    three = [python for python in pythons if release(python.version) >= (3, 5)]
    return min(three, key=lambda python: release(python.version)).path


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.name))
def test_every_file_is_python_3_5(file: Path) -> None:
    ast.parse(file.read_text(encoding="utf-8"), feature_version=(3, 5))


def test_the_oldest_python_here_compiles_and_runs_it(oldest: str) -> None:
    check = "import sys; [compile(open(name).read(), name, 'exec') for name in sys.argv[1:]]"
    subprocess.run([oldest, "-I", "-c", check, *map(str, FILES)], check=True)
    done = subprocess.run(
        [oldest, "-I", str(FOLDER / "script.py"), "{}"], capture_output=True, text=True, check=True
    )
    found = read_document(done.stdout, done.stderr, 0)
    by_name = {check.name: check for check in found.checks}
    assert by_name["import torch"].status == "fail"
    assert by_name["matmul"].status == "absent"


def test_the_reference_is_what_its_program_computes() -> None:
    made = runpy.run_path(str(ROOT / "tools/make_reference.py"))
    assert made["TARGET"].read_text(encoding="utf-8") == made["text"]()


def test_the_reference_is_json_with_a_result_for_every_input() -> None:
    table = json.loads((FOLDER / "reference.json").read_text(encoding="utf-8"))
    assert {"matmul", "conv2d", "svd", "fft", "rng", "png", "jpeg"} <= set(table)
    assert all("want" in case for case in table.values())


def test_a_crash_is_the_result_of_the_check_that_crashed() -> None:
    said = script.isolated(os.abort, 20)
    assert (said["status"], said["found"]) == ("fail", "ended by SIGABRT")


def test_a_hang_is_ended() -> None:
    said = script.isolated(lambda: time.sleep(3600), 0.5)
    assert (said["status"], said["found"]) == ("fail", "did not end within 0.5 s")
    # It was not waited for, however busy the machine is.
    assert said["seconds"] < 1800


def test_an_exit_in_the_middle_is_a_failure() -> None:
    assert script.isolated(lambda: os._exit(3), 20)["found"] == "ended with code 3"


def test_what_a_check_raises_or_says_comes_back() -> None:
    def wrong() -> None:
        raise ValueError("off by one")

    said = script.isolated(wrong, 20)
    assert said["found"] == "ValueError: off by one"
    assert "Traceback" in said["detail"]
    assert script.isolated(lambda: "fine", 20)["found"] == "fine"


def test_workers_left_behind_do_not_hold_up_the_answer() -> None:
    def leaves_one() -> str:
        if os.fork() == 0:
            time.sleep(60)
        return "done"

    said = script.isolated(leaves_one, 20)
    assert said["found"] == "done"
    assert said["seconds"] < 10
