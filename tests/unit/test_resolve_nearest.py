"""The nearest combination breaks no rule, and every cure removes what it is said to cure."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torchsmith.facts.cuda import renamed_arch, runs_on, toolkits
from torchsmith.facts.files import Facts
from torchsmith.facts.torch import companion_releases, releases
from torchsmith.resolve.build_rules import clashes
from torchsmith.resolve.combination import Combination
from torchsmith.resolve.nearest import nearest_working
from torchsmith.resolve.refusal import changes_between, cures, described

pytestmark = pytest.mark.unit

FACTS = Facts()
TORCHES = [item.version for item in releases(FACTS)]
PYTHONS = sorted({python for item in releases(FACTS) for python in item.pythons})
CUDAS = [item.version for item in toolkits(FACTS)]
ARCHS = [item.arch for item in FACTS.cuda.arch]
SYSTEMS = [item.name for item in FACTS.systems.system]
COMPANIONS = {
    name: ["match", *(item.version for item in companion_releases(FACTS, name))]
    for name in ("vision", "audio", "text")
}


@st.composite
def combinations(draw: st.DrawFn) -> Combination:
    """Anything a recipe could ask for, most of it impossible."""
    cuda = draw(st.sampled_from([*CUDAS, "", "11.9", "14.0"]))
    chosen = draw(st.sets(st.sampled_from(list(COMPANIONS)), max_size=2))
    return Combination(
        torch=draw(st.sampled_from(TORCHES)),
        python=draw(st.sampled_from(PYTHONS)),
        cuda=cuda,
        archs=tuple(draw(st.lists(st.sampled_from(ARCHS), max_size=2, unique=True))),
        cudnn=draw(st.sampled_from(["", "", "7.6.5", "8.0.5", "8.9", "9.1"])) if cuda else "",
        compiler=draw(st.sampled_from([None, None, ("gcc", "5"), ("gcc", "13"), ("clang", "14")])),
        companions=tuple(
            (name, draw(st.sampled_from(COMPANIONS[name]))) for name in sorted(chosen)
        ),
        system=draw(st.sampled_from(["", *SYSTEMS])),
    )


@settings(max_examples=40, derandomize=True)
@given(combinations())
def test_the_nearest_combination_breaks_no_rule(asked: Combination) -> None:
    near = nearest_working(FACTS, asked)
    if near is None:
        # Only a GPU no toolkit or torch has ever known leaves nothing.
        assert any(clash.conflict.kind.startswith("arch-") for clash in clashes(FACTS, asked))
        return
    assert clashes(FACTS, near) == ()
    if not clashes(FACTS, asked):
        assert near == asked
    else:
        assert changes_between(asked, near)


@settings(max_examples=15, derandomize=True)
@given(combinations())
def test_every_cure_removes_its_clash_and_causes_no_other(asked: Combination) -> None:
    before = {clash.identity for clash in clashes(FACTS, asked)}
    for clash in clashes(FACTS, asked):
        for cure in cures(FACTS, asked, clash):
            left = {other.identity for other in clashes(FACTS, cure.combination)}
            assert clash.identity not in left, cure.text
            assert left < before, cure.text
            assert cure.changes == changes_between(asked, cure.combination)
            assert cure.text == described(asked, cure.combination)


@settings(max_examples=40, derandomize=True)
@given(combinations())
def test_where_one_thing_is_wrong_every_cure_is_a_whole_one(asked: Combination) -> None:
    broken = clashes(FACTS, asked)
    if len(broken) == 1:
        found = cures(FACTS, asked, broken[0])
        assert found
        assert all(not clashes(FACTS, cure.combination) for cure in found)


def near(**wish: object) -> Combination:
    found = nearest_working(FACTS, Combination(**wish))  # type: ignore[arg-type]
    assert found is not None
    return found


def test_python_moves_before_torch_does() -> None:
    assert near(torch="1.13.1", python="3.12").python == "3.11"
    assert near(torch="2.4.1", python="3.13").python == "3.12"


def test_torch_moves_no_further_than_it_has_to() -> None:
    found = near(torch="2.5.1", python="3.11", cuda="12.8", archs=("12.0",))
    assert (found.torch, found.cuda) == ("2.7.1", "12.8")


def test_a_patch_release_is_nearer_than_any_other() -> None:
    found = near(torch="1.10.0", companions=(("vision", "0.11.2"), ("audio", "0.10.1")))
    assert (found.torch, found.companions) == (
        "1.10.1",
        (("vision", "0.11.2"), ("audio", "0.10.1")),
    )


def test_the_gpu_stays_where_it_is() -> None:
    for gpu in ("3.7", "6.1", "7.0", "8.9", "9.0", "10.0", "12.0"):
        assert near(torch="2.6.0", cuda="12.6", archs=(gpu,)).archs == (gpu,)


def test_a_toolkit_pytorch_publishes_for_is_preferred() -> None:
    assert near(torch="2.9.1", cuda="11.8").cuda == "12.6"
    assert near(torch="2.3.1", cuda="12.4").cuda == "12.1"


def test_torch_stays_where_a_companion_has_no_release_for_it() -> None:
    for torch in ("2.6.0", "2.15.0"):
        found = near(torch=torch, companions=(("text", "match"),))
        assert (found.torch, found.companions) == (torch, ())


def test_torch_stays_where_older_code_runs_on_the_same_gpu() -> None:
    found = near(torch="1.13.1", cuda="11.7", python="3.10", archs=("8.9",))
    assert (found.torch, found.archs) == ("1.13.1", ("8.6",))


def test_ptx_that_was_asked_for_stays() -> None:
    found = near(torch="2.9.1", cuda="13.0", archs=("7.0", "9.0+PTX"))
    assert found.archs == ("7.0", "9.0+PTX")


@pytest.mark.parametrize(
    ("gpu", "code", "ptx", "runs"),
    [
        ("8.9", "8.6", False, True),
        ("8.6", "8.9", False, False),
        ("9.0", "8.6", False, False),
        ("9.0", "8.6", True, True),
        ("9.0", "9.0a", False, True),
        ("10.0", "9.0a", True, False),
        ("10.3", "10.0f", False, True),
        ("12.1", "12.0a", False, False),
        ("8.7", "8.6", False, False),
        ("8.9", "8.7", False, False),
        ("11.0", "10.1", False, True),
        ("7.5", "8.0", True, False),
    ],
)
def test_which_code_runs_on_which_gpu(gpu: str, code: str, ptx: bool, runs: bool) -> None:
    assert runs_on(gpu, code, ptx=ptx) is runs


def test_thor_has_a_name_for_each_cuda() -> None:
    assert renamed_arch("12.9", "11.0a") == "10.1a"
    assert renamed_arch("13.0", "10.1") == "11.0"
    assert renamed_arch("13.0", "10.0") == "10.0"


def test_the_nearest_of_a_slice_of_the_grid_is_planned_to_its_end() -> None:
    tool = runpy.run_path(str(Path(__file__).parents[2] / "tools/try_nearest.py"))
    assert len(tool["GRID"]) >= 3000
    made = tool["tried"](FACTS, iter(tool["GRID"][7::317]))
    assert made.broken == []
    assert made.count["cured"] > made.count["accepted"]
