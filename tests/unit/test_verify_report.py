"""A report says what was seen, and is kept whole."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from torchsmith.checks import Check, few, holds
from torchsmith.errors import OutputError
from torchsmith.verify.report import Report, as_json, beside, from_json, keep, lines

pytestmark = pytest.mark.unit

GOOD = Check("behaviour", "autograd", "pass")
BAD = Check("numerics", "fft", "fail", "ended by SIGSEGV", "", "Fatal error\nline 2", "build again")
ODD = Check("libraries", "search paths", "warn", "libx.so: /usr/lib", "$ORIGIN")
GONE = Check("gpu", "matmul on the gpu", "absent", detail="built without CUDA")


def report(*checks: Check) -> Report:
    return Report(
        ("torch.whl",),
        "0.1",
        checks,
        torch="2.6.0",
        python="3.11.7",
        features={"mkldnn": True, "cuda": False, "numa": None},
    )


@pytest.mark.parametrize(
    ("checks", "rating"),
    [
        ((GOOD, GONE), "pass"),
        ((GOOD, ODD), "warn"),
        ((GOOD, ODD, BAD), "fail"),
        ((), "pass"),
    ],
)
def test_the_worst_check_decides(checks: tuple[Check, ...], rating: str) -> None:
    assert report(*checks).rating == rating


def test_what_a_torch_lacks_is_said() -> None:
    made = report(GOOD)
    assert made.lacks == ("cuda",)
    assert "  lacks  cuda" in list(lines(made))


def test_a_failure_comes_with_its_reason_and_cure() -> None:
    text = "\n".join(lines(report(GOOD, BAD)))
    assert "x   fft  ended by SIGSEGV" in text
    assert "| line 2" in text
    assert "cure    build again" in text
    assert text.endswith("1 passed, 1 failed")


def test_a_cure_is_told_once_in_a_group() -> None:
    second = Check("numerics", "svd", "fail", "wrong", cure="build again")
    assert "\n".join(lines(report(BAD, second))).count("build again") == 1


def test_a_group_that_is_absent_for_one_reason_takes_one_line() -> None:
    other = Check("gpu", "nccl", "absent", detail="built without CUDA")
    assert [line for line in lines(report(GONE, other)) if "without CUDA" in line] == [
        "-   built without CUDA"
    ]


def test_a_kept_report_is_the_same_when_read(tmp_path: Path) -> None:
    made = report(GOOD, BAD, ODD, GONE)
    place = beside(tmp_path / "torch-2.6.0-cp311-cp311-linux_x86_64.whl")
    keep(made, place)
    assert place.name == "torch-2.6.0-cp311-cp311-linux_x86_64.whl.verify.json"
    assert from_json(place.read_bytes()) == made
    assert json.loads(place.read_bytes())["rating"] == "fail"
    assert [path.name for path in tmp_path.iterdir()] == [place.name]


def test_a_report_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    place = tmp_path / "report.json"
    place.mkdir()
    with pytest.raises(OutputError):
        keep(report(GOOD), place)
    assert list(tmp_path.iterdir()) == [place]


def test_json_is_one_document() -> None:
    assert json.loads(as_json(report(GOOD)))["checks"] == [
        {"group": "behaviour", "name": "autograd", "status": "pass"}
    ]


def test_what_is_wanted_is_told_only_where_it_is_missing() -> None:
    assert holds("g", "n", True, found="a", wanted="b", cure="c") == Check("g", "n", "pass", "a")
    assert holds("g", "n", False, found="a", wanted="b", cure="c").wanted == "b"


def test_of_many_some_are_named() -> None:
    assert few(("a", "b", "c"), 2) == "a, b and 1 more"
    assert few(("a", "b"), 2) == "a, b"
