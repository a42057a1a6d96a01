"""Where git does not answer, a release Debian has and we can build is taken from there."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchsmith.engine import door
from torchsmith.engine.store import Store
from torchsmith.facts.files import shipped
from torchsmith.host.models import Host
from torchsmith.recipe.load import parse_recipe
from torchsmith.recipe.models import Recipe
from torchsmith.sources.git import answers, with_reachable_source

pytestmark = pytest.mark.unit


def recipe(text: str) -> Recipe:
    return parse_recipe(text, "test", None).recipe


def test_debians_source_is_taken_when_git_does_not_answer() -> None:
    chosen, said = with_reachable_source(recipe('torch = "2.6.0"'), shipped(), lambda _: False)
    assert chosen.source.kind == "debian"
    assert chosen.source.suite
    assert "does not answer" in said


def test_git_is_kept_when_it_answers() -> None:
    asked = recipe('torch = "2.6.0"')
    assert with_reachable_source(asked, shipped(), lambda _: True) == (asked, "")


@pytest.mark.parametrize(
    "text",
    [
        'torch = "2.7.1"',
        'torch = { release = "2.6.0", ref = "main" }',
        'torch = { release = "2.6.0", use = "wheel" }',
        'torch = "2.6.0"\n[source]\nkind = "git"',
        # focal has no libonnx-dev, no libtensorpipe-dev and other packages that it takes.
        'torch = "2.6.0"\nsystem = "ubuntu-20.04"',
        'torch = "2.6.0"\nboard = "jetson-agx-orin"\ncuda = "host"',
    ],
)
def test_nothing_else_is_changed_and_nobody_is_asked(text: str) -> None:
    def never(url: str) -> bool:
        raise AssertionError(url)

    asked = recipe(text)
    assert with_reachable_source(asked, shipped(), never) == (asked, "")


def test_a_repository_that_is_not_there_does_not_answer() -> None:
    assert not answers("file:///nowhere/at/all")


def test_only_the_variants_debian_has_are_taken_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "answers", lambda _: False)
    loaded = parse_recipe(
        'torch = "2.6.0"\npython = "3.12"\n[matrix]\ntorch = ["2.6.0", "2.8.0"]', "test", None
    )
    notes: list[str] = []
    host = Host(platform="linux-x86_64", system="debian-12")
    plan = door.plan_recipe(loaded, host, Store(tmp_path / "store"), say=notes.append)
    assert {item.torch: item.source.kind for item in plan.variants} == {
        "2.6.0": "debian",
        "2.8.0": "git",
    }
    assert len(notes) == 1
