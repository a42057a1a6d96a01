"""What pip takes for Pythons that new releases have left behind: wheels, or what compiles there."""

from __future__ import annotations

import json

import pytest
from packaging.requirements import Requirement
from tools.refresh_pins import NOTHING, SNAPSHOT, Answers, differences, requirements, take, taken
from tools.refresh_pypi import File

from torchsmith.facts.files import shipped

pytestmark = pytest.mark.unit

# Without a wheel, and installed all the same.
COMPILED = {
    ("3.5", "cffi<1.15", "linux-aarch64"): "libffi's headers are in the image",
    ("3.5", "numpy<1.18", "linux-aarch64"): "its archive holds what Cython wrote",
    ("3.5", "pyyaml", "linux-aarch64"): "plain Python where libyaml is not",
    ("3.5", "pyyaml", "linux-x86_64"): "plain Python where libyaml is not",
}
# Of Intel's libraries, which only x86-64 presets ask for.
NOT_THERE = {
    ("3.8", "mkl-include==2022.2.1", "linux-aarch64"),
    ("3.8", "mkl-static==2022.2.1", "linux-aarch64"),
}


def snapshot() -> Answers:
    answers: Answers = json.loads(SNAPSHOT.read_text(encoding="utf-8"))
    return answers


def test_the_snapshot_has_everything_that_environments_ask_for() -> None:
    wanted = requirements(shipped())
    asked = take(lambda _: [], wanted)
    stale = "run python -m tools.refresh_pins"
    assert {python: set(texts) for python, texts in asked.items()} == {
        python: set(texts) for python, texts in snapshot().items()
    }, stale


def test_everything_is_a_wheel_or_known_to_compile() -> None:
    others = {
        (python, text, platform): answer
        for python, texts in snapshot().items()
        for text, platforms in texts.items()
        for platform, answer in platforms.items()
        if not answer.endswith(", a wheel")
    }
    assert {where for where, answer in others.items() if answer == NOTHING} == NOT_THERE
    assert others.keys() - NOT_THERE == COMPILED.keys()


def file(name: str, python: str = "", *, yanked: bool = False) -> File:
    return File(name, f"https://example/{name}", yanked, has_metadata=False, requires_python=python)


FILES = [
    file("cffi-1.14.6-cp35-cp35m-manylinux1_x86_64.whl"),
    file("cffi-1.14.6-cp38-cp38-manylinux1_x86_64.whl"),
    file("cffi-1.14.6.tar.gz"),
    # It says nothing of the Pythons that it needs, and has no wheel for the oldest.
    file("cffi-1.15.1-cp36-cp36m-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"),
    file("cffi-1.15.1.zip"),
    file("cffi-1.16.0-cp38-cp38-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", ">=3.8"),
    file("cffi-1.16.0.tar.gz", ">=3.8"),
    file("cffi-1.17.0-cp38-cp38-manylinux_2_28_x86_64.whl", ">=3.8"),
    file("cffi-1.18.0rc1.tar.gz"),
    file("cffi-1.19.0.tar.gz", yanked=True),
]


@pytest.mark.parametrize(
    ("asked", "python", "answer"),
    [
        ("cffi", "3.5", "cffi 1.15.1, to be compiled"),
        ("cffi<1.15", "3.5", "cffi 1.14.6, a wheel"),
        ("cffi", "3.6", "cffi 1.15.1, a wheel"),
        # Its newest wheel is for a newer glibc than Ubuntu 16.04's.
        ("cffi", "3.8", "cffi 1.16.0, a wheel"),
        ("cffi<1.14", "3.8", NOTHING),
    ],
)
def test_the_release_is_the_one_that_pip_takes(asked: str, python: str, answer: str) -> None:
    assert taken(FILES, Requirement(asked), python, "linux-x86_64") == answer


def test_what_changed_is_named() -> None:
    wheel = {"linux-x86_64": "six 1.17.0, a wheel"}
    before: Answers = {"3.5": {"six": wheel, "wheel": wheel}}
    after: Answers = {"3.5": {"six": {"linux-x86_64": NOTHING}}}
    assert [line.partition(":")[0] for line in differences(before, after)] == ["Python 3.5"] * 2
    assert [*differences(before, before)] == []
