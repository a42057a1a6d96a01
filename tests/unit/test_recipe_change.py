"""A recipe is changed in one place; its comments, its order and its other values stay."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchsmith.diagnose.models import Fix
from torchsmith.diagnose.recipe_change import change_for, difference, with_key
from torchsmith.errors import UsageError

pytestmark = pytest.mark.unit

RECIPE = """\
# my lab
torch = "2.6.0"   # the newest
gpus = [
  "8.0",  # A100
  "8.6",
]

# how it is built
[build]
# as many as there are cores
jobs = 8  # eight
env = { A = "1" }

[features]
nccl = "on"
"""


def test_a_value_is_exchanged_and_its_comment_stays() -> None:
    changed = with_key(RECIPE, ("build", "jobs"), 4)
    assert changed == RECIPE.replace("jobs = 8  # eight", "jobs = 4  # eight")


def test_a_key_is_put_into_its_table() -> None:
    changed = with_key(RECIPE, ("features", "gloo"), "off")
    assert changed == RECIPE.replace("[features]\n", '[features]\ngloo = "off"\n')


def test_a_key_of_the_top_stands_above_the_first_table() -> None:
    changed = with_key(RECIPE, ("cpu",), "portable")
    assert '"8.6",\n]\ncpu = "portable"\n\n# how it is built\n[build]' in changed


def test_a_table_that_is_not_there_comes_at_the_end() -> None:
    assert with_key('torch = "2.6.0"', ("build", "jobs"), 2) == (
        'torch = "2.6.0"\n\n[build]\njobs = 2\n'
    )


def test_a_value_of_several_lines_is_exchanged_whole() -> None:
    changed = with_key(RECIPE, ("gpus",), ["9.0"])
    assert tomllib.loads(changed)["gpus"] == ["9.0"]
    assert "# how it is built" in changed


def test_a_table_in_a_table_is_found_or_made() -> None:
    text = "[build]\n# c\n"
    assert tomllib.loads(with_key(text, ("build", "env", "A"), "1")) == {
        "build": {"env": {"A": "1"}}
    }


def test_what_cannot_be_changed_safely_is_left_to_a_person() -> None:
    with pytest.raises(UsageError) as refused:
        with_key(RECIPE, ("build", "env", "B"), "2")
    assert 'build.env.B = "2"' in refused.value.hint


def test_windows_line_ends_stay() -> None:
    text = RECIPE.replace("\n", "\r\n")
    changed = with_key(text, ("build", "memory"), "8G")
    assert changed.count("\n") == changed.count("\r\n")


def test_half_of_the_jobs_or_of_the_cores() -> None:
    fix = Fix(key="build.jobs", how="halve")
    assert change_for(fix, RECIPE, 64).value == 4
    assert change_for(fix, 'torch = "2.6.0"\n', 64).value == 32
    with pytest.raises(UsageError):
        change_for(fix, "[build]\njobs = 1\n", 64)


def test_a_list_grows_and_an_arch_list_too() -> None:
    fix = Fix(key="gpus", how="append", value="8.9")
    assert change_for(fix, RECIPE, 1).value == ["8.0", "8.6", "8.9"]
    assert change_for(fix, 'gpus = "8.0;8.6"\n', 1).value == "8.0;8.6;8.9"
    with pytest.raises(UsageError):
        change_for(Fix(key="gpus", how="append", value="8.0"), RECIPE, 1)


def test_the_difference_is_shown() -> None:
    change = change_for(Fix(key="features.nccl", value="off"), RECIPE, 1)
    shown = difference(change.before, change.after, "lab.toml")
    assert '-nccl = "on"' in shown
    assert '+nccl = "off"' in shown


@given(
    st.sampled_from(["build.jobs", "build.memory", "cpu", "features.nccl", "gpus", "new.table.k"]),
    st.one_of(st.text(max_size=20), st.integers(0, 99), st.lists(st.text(max_size=5), max_size=3)),
)
def test_whatever_is_set_nothing_else_changes(key: str, value: str | int | list[str]) -> None:
    path = tuple(key.split("."))
    before = tomllib.loads(RECIPE)
    after = tomllib.loads(with_key(RECIPE, path, value))
    there: object = after
    for part in path:
        assert isinstance(there, dict)
        there = there[part]
    assert there == value
    for name in before:
        if name != path[0]:
            assert after[name] == before[name]
