"""What a bare machine lacks for a build is found before it begins, and has a package's name."""

from __future__ import annotations

import shutil
from collections.abc import Sequence

import pytest

from torchsmith.engine import preflight
from torchsmith.engine.schedule import part
from torchsmith.facts.files import shipped
from torchsmith.host.models import Host
from torchsmith.plan.build import make_plan
from torchsmith.plan.models import Plan
from torchsmith.programs import Answer
from torchsmith.recipe.load import parse_recipe
from torchsmith.recipe.matrix import expand
from torchsmith.resolve.models import Resolution
from torchsmith.resolve.resolve import resolve

pytestmark = pytest.mark.unit

BARE = Host(platform="linux-x86_64", system="debian-12")
DEBIAN = 'torch = "2.6.0"\npython = "3.11"\n[source]\nkind = "debian"\nsuite = "trixie"\n'
# Without FBGEMM, whose copy in 2.6 does not compile with the gcc 12 that is here.
GIT = 'torch = "2.6.0"\npython = "3.11"\n[features]\nfbgemm = "off"\n'


def planned(text: str, host: Host = BARE) -> Plan:
    loaded = parse_recipe(text, "test", None)
    facts = shipped()
    outcomes = [resolve(item, facts, host, loaded.files) for item in expand(loaded.recipe)]
    resolved = [item for item in outcomes if isinstance(item, Resolution)]
    assert len(resolved) == len(outcomes), outcomes
    return make_plan(loaded.recipe, resolved, facts, "test")


def asked_for(
    monkeypatch: pytest.MonkeyPatch, plan: Plan, there: Sequence[str], python: str = ""
) -> list[str]:
    """The packages asked for where only some programs are; `python` is what that one lacks."""
    monkeypatch.setattr(shutil, "which", lambda name: name if name in there else None)
    monkeypatch.setattr(preflight, "ask", lambda _: Answer(0, python, ""))
    asked: list[str] = []
    installed = preflight.ensure_programs(plan, asked.extend)
    assert installed == bool(asked)
    return asked


def test_a_machine_without_anything_gets_the_distributions_own_compiler(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = planned(DEBIAN)
    assert plan.variants[0].compiler.version == "12.2.0"
    found = asked_for(monkeypatch, plan, ["python3.11"], "dev\nvenv\n")
    assert found == ["gcc", "g++", "patch", "python3.11-dev", "python3.11-venv"]


def test_steps_that_only_fetch_need_no_compiler_and_no_headers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    only = part(planned(DEBIAN), ["fetch"])
    assert asked_for(monkeypatch, only, ["python3.11"], "dev\nvenv\n") == ["patch"]


def test_uv_brings_a_python_with_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    there = ["gcc", "g++", "patch", "uv", "python3.11"]
    assert asked_for(monkeypatch, planned(DEBIAN), there, "dev\nvenv\n") == []


def test_what_is_there_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    there = ["gcc", "g++", "patch", "git", "python3.11"]
    assert asked_for(monkeypatch, planned(DEBIAN), there) == []
    assert asked_for(monkeypatch, planned(GIT), there) == []


def test_git_is_for_sources_from_git(monkeypatch: pytest.MonkeyPatch) -> None:
    there = ["gcc", "g++", "patch", "python3.11"]
    assert asked_for(monkeypatch, planned(GIT), there) == ["git"]


def test_a_release_too_old_for_its_gcc_gets_another_that_is_packaged() -> None:
    old = planned('torch = "1.8.0"\npython = "3.8"\ncuda = "none"\n')
    compiler = old.variants[0].compiler
    assert compiler.cc == f"gcc-{compiler.version}"
    assert compiler.version != "14"


def test_nothing_is_asked_of_this_machine_for_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = planned(f'system = "debian-12"\n{DEBIAN}')
    assert asked_for(monkeypatch, plan, []) == []


def test_builds_for_several_pythons_want_a_compiler_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    several = planned(DEBIAN.replace('"3.11"', '["3.11", "3.12"]'))
    assert preflight.lacks_cache(several)
    assert not preflight.lacks_cache(planned(DEBIAN))
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    assert not preflight.lacks_cache(several)
