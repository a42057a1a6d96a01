"""The facts say what upstream's own tables say, and where they do not, a program tells."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tools.compare_upstream import (
    ORIGINS,
    STORED,
    compare_drivers,
    compare_matrix,
    compare_releases,
    main,
)

from torchsmith.facts.files import shipped

pytestmark = pytest.mark.unit

HEADER = "| PyTorch version | Python | C++ | Stable CUDA | Experimental CUDA |\n| --- | --- |\n"
ARCHS = (
    "For Release 2.12 and 2.13 PyTorch Supports\n"
    "| CUDA | architectures supported for Linux x86 and Windows |\n| --- | --- |\n"
)


def test_the_facts_are_those_of_the_stored_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--stored"]) == 0
    assert capsys.readouterr().out == "nothing differs\n"


@pytest.mark.parametrize(
    ("row", "differences"),
    [
        ("| 2.8 | >=3.9, <=3.13, (3.13t experimental) | C++17 | CUDA 12.8 (CUDNN 9.1) | -- |", []),
        (
            "| 2.8 | >=3.9, <=3.16 | C++23 | CUDA 12.8 | CUDA 13.4 |",
            [
                "torch 2.8: RELEASE.md says C++23, the facts C++17",
                "torch 2.8: RELEASE.md has Python 3.16, the facts do not",
                "torch 2.8.0: upstream has CUDA 13.4, the facts no wheels of it",
            ],
        ),
        (
            "| 9.9 | >=3.10 | C++20 | CUDA 13.0 | -- |",
            ["torch 9.9: RELEASE.md has it, the facts do not"],
        ),
    ],
)
def test_a_row_of_release_md_is_compared(row: str, differences: Sequence[str]) -> None:
    assert list(compare_releases(HEADER + row, shipped())) == differences


def test_compute_capabilities_are_compared() -> None:
    told = list(compare_releases(ARCHS + "| 12.6.3 | Maxwell(5.0), Hopper(9.0) |", shipped()))
    assert len(told) == 2
    assert "torch 2.12, CUDA 12.6, linux-x86_64: RELEASE.md says 5.0;9.0" in told[0]


def test_the_build_matrix_is_read_and_not_run() -> None:
    text = (
        "import nothing_of_that_name\n"
        'PYTHON_ARCHES_DICT = {"release": ["3.12", "3.19"]}\n'
        'CUDA_ARCHES_DICT = {"release": ["12.6"]}\n'
        'CURRENT_STABLE_VERSION = "2.13.0"\n'
    )
    told = list(compare_matrix(text, shipped()))
    assert told == ["torch 2.13.0: the build matrix has Python 3.19"]
    newer = text.replace("2.13.0", "9.9.0")
    assert "do not know it" in next(compare_matrix(newer, shipped()))


def test_drivers_are_compared_in_any_table() -> None:
    cell = "<tr><td>CUDA 12.6 {}</td><td>&gt;={}</td><td>&gt;=561.17</td></tr>\n"
    page = cell.format("Update 3", "560.35.05") + cell.format("GA", "560.28.03")
    assert list(compare_drivers(page, shipped())) == []
    assert list(compare_drivers(cell.format("GA", "999.1"), shipped())) == [
        "CUDA 12.6: NVIDIA asks for driver 999.1, the facts for 560.28.03"
    ]
    assert "their form has changed" in next(compare_drivers("<p>nothing</p>", shipped()))


def test_what_cannot_be_read_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--stored", "--release-md", "there-is-none.md"]) == 2
    printed = capsys.readouterr()
    assert "there-is-none.md was not read" in printed.err
    assert printed.out == "nothing differs in what was read\n"
    assert {f"{origin.option}.txt" for origin in ORIGINS} == {f.name for f in STORED.iterdir()}
