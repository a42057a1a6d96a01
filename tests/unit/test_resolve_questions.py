"""What others have published about a combination is what the resolver answers."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from torchsmith.facts.conditions import Place
from torchsmith.facts.files import Facts
from torchsmith.host.models import Host
from torchsmith.recipe.matrix import Variant
from torchsmith.recipe.models import Recipe
from torchsmith.resolve.models import Refusal, Resolution
from torchsmith.resolve.resolve import resolve
from torchsmith.resolve.toolchain import default_system

pytestmark = pytest.mark.unit

FACTS = Facts()
DATA = Path(__file__).parents[1] / "data" / "questions.toml"
SOURCES: list[dict[str, Any]] = tomllib.loads(DATA.read_text(encoding="utf-8"))["source"]


def answer(question: dict[str, Any]) -> Resolution | Refusal:
    if "board" in question:
        of_board = dict(question)
        of_board["torch"] = {"release": question["torch"], "use": of_board.pop("use", "source")}
        recipe = Recipe.model_validate(of_board)
        return resolve(Variant("question", recipe), FACTS, Host(platform="linux-x86_64"))
    wish = {"platform": "linux-x86_64", "python": "3.10", "cuda": "none", **question}
    torch = wish["torch"]
    wish["torch"] = {"release": torch, "use": wish.pop("use", "source")}
    compiler = wish.pop("compiler", "")
    if compiler:
        wish["build"] = {"compiler": compiler}
    cuda = wish["cuda"]["version"] if isinstance(wish["cuda"], dict) else wish["cuda"]
    cuda = "" if cuda == "none" else cuda
    if cuda:
        wish.setdefault("gpus", ["published"])
    place = Place(wish["platform"], bundled=("xnnpack", "gloo", "fbgemm", "mkldnn"))
    python = wish["python"]
    wish.setdefault("system", default_system(FACTS, cuda, torch, place, python, compiler))
    recipe = Recipe.model_validate(wish)
    return resolve(Variant("question", recipe), FACTS, Host(platform=wish["platform"]))


def accepted(question: dict[str, Any]) -> bool:
    """Whether it is planned, and without the caution that it may not work."""
    made = answer(question)
    return isinstance(made, Resolution) and not any(
        caution.standing in ("fails", "unknown") for caution in made.cautions
    )


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source["url"])
def test_the_answer_is_the_published_one(source: dict[str, Any]) -> None:
    refused = [item for item in source.get("yes", []) if isinstance(answer(item), Refusal)]
    assert refused == []
    assert [item for item in source.get("no", []) if accepted(item)] == []


def test_there_are_enough_questions() -> None:
    assert sum(len(source.get(side, [])) for source in SOURCES for side in ("yes", "no")) >= 800
