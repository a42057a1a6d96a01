"""A comparison as a page, a table, a file; and what explains a loss."""

from __future__ import annotations

import json
import random
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.unit.conftest import Run
from tests.unit.test_bench_statistics import measured

from torchsmith.bench.launch import parse_side, parse_sides
from torchsmith.bench.measure import GROUPS, choose
from torchsmith.bench.page import group_picture, page, seconds, times
from torchsmith.bench.reasons import reasons, rules, traits
from torchsmith.bench.result import (
    Contender,
    Facts,
    Machine,
    Measured,
    Method,
    Result,
    as_json,
    read_result,
)
from torchsmith.bench.verdicts import judge
from torchsmith.errors import UsageError

pytestmark = pytest.mark.unit

OURS = Facts(
    torch="2.6.0+cpu",
    python="3.11.7",
    config="PyTorch built with:\n  - GCC 12.2\n  - OpenMP 201511 (a.k.a. OpenMP 4.5)\n"
    "  - CPU capability usage: AVX512\n  - Build settings: BLAS_INFO=open, BUILD_TYPE=Release, "
    "CXX_FLAGS= -O2 -fPIC, LAPACK_INFO=open, USE_MKLDNN=0, ",
    capability="AVX512",
    threads=2,
    libraries=("libgomp-f9a9ad78.so.1", "libopenblas-234bd196.so.0"),
    openblas_core="Prescott",
)
PIP = Facts(
    torch="2.13.0+cpu",
    python="3.11.7",
    config="PyTorch built with:\n  - GCC 13.3\n"
    "  - Intel(R) oneAPI Math Kernel Library Version 2024.2-Product Build 20240605 for Intel\n"
    "  - Intel(R) MKL-DNN v3.12.0 (Git Hash 80afa71)\n"
    "  - Build settings: BLAS_INFO=mkl, CXX_FLAGS= -O2 -march=native, LAPACK_INFO=mkl, ",
    capability="AVX512",
    threads=2,
    mkl=True,
    mkldnn=True,
    libraries=("libgomp.so.1",),
)


@pytest.fixture(scope="module")
def result() -> Result:
    chance = random.Random(2)
    cases = (
        *measured(chance, 5, 0.5, 0.01),
        Measured("torch.compile <x>", "compile", "cpu", missing={"ours": "no <functorch>"}),
        Measured("eigh", "linalg", "cpu", failed={"pip": "ended by SIGSEGV"}),
    )
    sides = (
        Contender("ours", "ENV & co", facts=OURS),
        Contender("pip", "wheel.whl", settings={"threads": "2"}, facts=PIP),
    )
    compared, groups, noise = judge(cases, "ours", ["pip"])
    return Result(
        made="2026-01-01T00:00:00Z",
        torchsmith="0",
        seconds=12.0,
        stopped="interrupted",
        method=Method("quick", 12, 2, 0.005, 3, 1, 2, (0, 1), True, 0.05),
        machine=Machine("a processor", 2, "Linux-x86_64", (0.5, 2.0)),
        sides=sides,
        cases=cases,
        compared=compared,
        groups=groups,
        noise=noise,
        reasons=reasons(sides, groups),
    )


class Balance(HTMLParser):
    """Every element that is opened is closed, in order."""

    EMPTY = frozenset({"meta", "!doctype"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass


def test_the_page_is_well_formed_and_fetches_nothing(result: Result) -> None:
    text = page(result)
    parser = Balance()
    parser.feed(text)
    assert parser.open == []
    addresses = [url for url in re.findall(r"https?://[^\s\"'<]+", text) if "w3.org" not in url]
    assert addresses == []
    assert re.findall(r"<(?:script|link|img|iframe)|@import|url\(|src=", text) == []


def test_the_page_says_what_was_found_and_what_not(result: Result) -> None:
    text = page(result)
    assert "interrupted" in text
    assert "no &lt;functorch&gt;" in text
    assert "SIGSEGV" in text
    assert "ENV &amp; co" in text
    assert "prefers-color-scheme: dark" in text
    assert "Where yours loses, and why" in text


def test_a_picture_alone_is_readable_on_a_phone(result: Result) -> None:
    drawn = ElementTree.fromstring(group_picture(result, "pip"))
    width = float(drawn.get("viewBox", "").split()[2])
    # Its letters are 12 pixels high at full width.
    assert 12 * 360 / width >= 8


def test_the_picture_is_an_svg_with_every_group(result: Result) -> None:
    drawn = ElementTree.fromstring(group_picture(result, "pip"))
    titles = [item.text or "" for item in drawn.iter("{http://www.w3.org/2000/svg}title")]
    assert len(titles) == len(result.groups)
    assert titles[0].startswith("matmul: ours is 0.5")
    assert group_picture(result, "nobody") == ""


def test_a_loss_is_explained_by_what_differs(result: Result) -> None:
    (reason,) = result.reasons
    text = " ".join(reason.because)
    assert "took this processor for a Prescott" in text
    assert "yours uses OpenBLAS, the other MKL 2024.2" in text
    assert "2.6.0+cpu against 2.13.0+cpu" in text
    assert "Fourier" not in text


def test_a_loss_without_a_difference_says_so(result: Result) -> None:
    same = (result.sides[0], replace(result.sides[0], name="pip"))
    (reason,) = reasons(same, result.groups)
    assert reason.because[0].startswith("Nothing that torch says of its build differs")


def test_the_rules_are_about_groups_and_traits_that_exist(result: Result) -> None:
    known = traits(result.sides[0])
    for rule in rules():
        assert rule.trait in known
        assert set(rule.groups) <= {*GROUPS, "*"}
        assert rule.say.format(yours="a", other="b")


def test_a_result_is_the_same_after_a_file(result: Result, tmp_path: Path) -> None:
    place = tmp_path / "result.json"
    place.write_bytes(as_json(result))
    assert read_result(place) == result
    place.write_text('{"format": 99}')
    with pytest.raises(UsageError, match="format 99"):
        read_result(place)
    place.write_text("nonsense")
    with pytest.raises(UsageError, match="not a result"):
        read_result(place)


def test_a_kept_result_is_shown_and_drawn_again(result: Result, tmp_path: Path, run: Run) -> None:
    kept, drawn = tmp_path / "result.json", tmp_path / "page.html"
    kept.write_bytes(as_json(result))
    code, said, _ = run("bench", "--read", str(kept), "--html", str(drawn))
    assert code == 0
    assert "matmul" in said
    assert "slower" in said
    assert "cases that differ" in said
    assert "every case" in run("bench", "--read", str(kept), "--all")[1]
    assert "not whole: interrupted after 12 s" in said
    assert "torch.compile <x>: missing in ours: no <functorch>" in said
    assert drawn.read_text().startswith("<!doctype html>")
    assert run("bench", "--read", str(kept), "--html", str(tmp_path / "p.svg"))[0] == 0
    ElementTree.parse(tmp_path / "p.svg")
    # Programs that draw SVG know no CSS variables: all would be black.
    assert "var(" not in (tmp_path / "p.svg").read_text()
    assert '<div class="wide"><svg' in drawn.read_text()
    assert json.loads(run("bench", "--read", str(kept), "--json")[1])["format"] == 1


def test_sides_are_read_as_people_write_them() -> None:
    side = parse_side("ours=/a,b/env,env:OMP_NUM_THREADS=1,set:allow_tf32=on")
    assert (side.name, side.target) == ("ours", "/a,b/env")
    assert side.environ == {"OMP_NUM_THREADS": "1"}
    assert side.settings == {"allow_tf32": "on"}
    assert parse_side("/opt/torch/bin/python").name == "torch"
    assert parse_side("/w/torch-2.6.0+cpu-cp311-cp311-linux_x86_64.whl").name == "torch-2.6.0+cpu"
    assert parse_side("image:localhost/torch:2").image == "localhost/torch:2"
    assert [parse_side(text).published for text in ("pip", "a=pip:2.6.0", "./pip")] == [
        *("", "2.6.0", None)
    ]
    first, second = parse_sides(["/a", "/a,set:threads=2"], ["env:X=1", "set:threads=1"])
    assert (first.name, second.name) == ("a", "a,threads=2")
    assert (first.settings, second.settings) == ({"threads": "1"}, {"threads": "2"})
    assert second.environ == {"X": "1"}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], "two sides"),
        (["a=/x"], "two sides"),
        (["a=/x", "a=/y"], "two sides are called 'a'"),
        (["/x", "/y,set:speed=1"], "no setting 'speed'"),
        (["/x", "/y,env:NOTHING"], "is not a setting"),
        (["/no/such/place", "/y"], "/no/such/place does not exist"),
        (["pip", "/y"], "pip is held against an environment or a wheel"),
        (["/x", "/y", "--group", "matmull"], "Did you mean matmul?"),
        (["/x", "/y", "--threads", "5000"], "need as many processors"),
        (["--read", "/no/such/file"], "does not exist"),
        (["--html", "result.pdf"], "drawn as .html or .svg"),
    ],
)
def test_what_cannot_be_compared_is_refused(arguments: list[str], complaint: str, run: Run) -> None:
    code, _, said = run("bench", *arguments)
    assert code == 2
    assert complaint in said


def test_cases_are_listed_by_suite_and_device(run: Run) -> None:
    quick = run("bench", "--cases")[1].splitlines()
    full = run("bench", "--cases", "--suite", "full", "--device", "both")[1].splitlines()
    assert len(quick) >= 45
    assert len(full) >= 180
    assert {line.split()[1] for line in quick} == set(GROUPS)
    names = [(case.device, case.name) for case in choose("full", ("cpu", "cuda"))]
    assert len(set(names)) == len(names)


def test_numbers_are_written_in_few_digits() -> None:
    assert [times(value) for value in (0.0027, 0.5, 1.234, 12.34, 123.4)] == [
        *("0.0027x", "0.50x", "1.23x", "12.3x", "123x")
    ]
    assert [seconds(value) for value in (1.5, 0.0123, 4.5e-6, 3e-9)] == [
        *("1.5 s", "12.3 ms", "4.5 µs", "3 ns")
    ]
