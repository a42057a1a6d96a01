"""The documentation shows what happens: its commands work, its answers and links are current."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
import typing
from collections.abc import Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import BaseModel, TypeAdapter
from tests.every_command import LEAVES, options
from tools import reference_pages, render_docs

from torchsmith.errors import RecipeError
from torchsmith.facts.files import shipped
from torchsmith.host.models import Host
from torchsmith.recipe.load import parse_recipe
from torchsmith.recipe.matrix import expand
from torchsmith.recipe.models import Recipe
from torchsmith.recipe.presets import presets
from torchsmith.resolve.models import Refusal
from torchsmith.resolve.resolve import resolve

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
MEND = "python -m tools.render_docs"


PAGES: list[Path] = render_docs.pages()
EVERY_PAGE = [*PAGES, *reference_pages.PAGES, ROOT / "CHANGELOG.md"]
RECIPES = [
    (page, block)
    for page in PAGES
    for block in render_docs.blocks(page.read_text(encoding="utf-8"))
    if block.language == "toml"
]


def name(value: object) -> str:
    return value.name if isinstance(value, Path) else ""


@cache
def ran(page: Path) -> Any:
    """A page after its commands were run, once for all tests."""
    return render_docs.run_page(page)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_every_command_ends_as_the_page_says(page: Path) -> None:
    assert ran(page).problems == []


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_answers_are_what_the_commands_print_today(page: Path) -> None:
    assert ran(page).text == page.read_text(encoding="utf-8"), MEND


@pytest.mark.parametrize("picture", render_docs.DRAWN)
def test_a_picture_is_what_its_command_draws_today(picture: str) -> None:
    drawn = (render_docs.PICTURES / picture).read_text(encoding="utf-8")
    assert drawn == render_docs.draw(picture), MEND


def test_pictures_are_small_and_fetch_nothing() -> None:
    for path in render_docs.PICTURES.iterdir():
        assert path.stat().st_size < 150_000
    for path in render_docs.PICTURES.glob("*.svg"):
        text = path.read_text(encoding="utf-8")
        assert re.findall(r"(?:href=|url\()[\"']?https?:", text) == []
        # Many viewers, and pages that show a picture as such, know no variables of CSS.
        assert "var(" not in text, path.name


@pytest.mark.parametrize("page", reference_pages.PAGES, ids=name)
def test_a_page_of_the_reference_is_current(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == reference_pages.PAGES[page](), MEND


def _tables(model: type[BaseModel]) -> set[type[BaseModel]]:
    """Every model a recipe is made of."""
    found = {model}

    def look(hint: Any) -> None:
        if isinstance(hint, type) and issubclass(hint, BaseModel) and hint not in found:
            found.update(_tables(hint))
        for part in typing.get_args(hint):
            look(part)

    for hint in typing.get_type_hints(model, include_extras=True).values():
        look(hint)
    return found


def test_the_reference_has_every_table_of_a_recipe() -> None:
    assert set(reference_pages.models_shown()) == _tables(Recipe)


@pytest.mark.parametrize("model", reference_pages.models_shown(), ids=lambda model: model.__name__)
def test_every_key_has_a_meaning_and_an_example_that_loads(model: type[BaseModel]) -> None:
    hints = typing.get_type_hints(model, include_extras=True)
    extras = reference_pages.extras()[model.__name__]
    for key, _, _, meaning, example in reference_pages.rows(model):
        assert meaning, f"{model.__name__}.{key}: a description"
        assert example, f"{model.__name__}.{key}: an example in {reference_pages.KEYS.name}"
    for field, info in model.model_fields.items():
        key = info.alias or field
        table = tomllib.loads(extras.pop(key)["example"])
        hint = hints[field]
        shape: Any = Annotated[hint, *info.metadata] if info.metadata else hint
        TypeAdapter(shape).validate_python(table[key])
    assert extras == {}, "examples of keys that are gone"


@pytest.mark.parametrize(
    ("page", "block"), RECIPES, ids=[f"{page.name}:{block.start}" for page, block in RECIPES]
)
def test_every_recipe_on_a_page_loads(page: Path, block: Any) -> None:
    table = tomllib.loads(block.body)
    text = block.body if "torch" in table else f'torch = "2.6.0"\n{block.body}'
    parse_recipe(text, page.name, None)


@pytest.mark.parametrize(
    ("page", "block"), RECIPES, ids=[f"{page.name}:{block.start}" for page, block in RECIPES]
)
def test_every_recipe_on_a_page_can_be_built(page: Path, block: Any) -> None:
    table = tomllib.loads(block.body)
    text = block.body if "torch" in table else f'torch = "2.6.0"\n{block.body}'
    loaded = parse_recipe(text, page.name, None)
    host = json.loads((render_docs.EXAMPLES / "workstation.json").read_text(encoding="utf-8"))
    here = Host.model_validate(host.get("host", host))
    if loaded.recipe.torch.use == "installed":
        return
    for variant in islice(expand(loaded.recipe), 4):
        outcome = resolve(variant, shipped(), here, loaded.files)
        assert not isinstance(outcome, Refusal), outcome


def test_the_wrong_recipe_is_wrong_and_shown_as_it_is() -> None:
    text = (render_docs.EXAMPLES / "wrong.toml").read_text(encoding="utf-8")
    with pytest.raises(RecipeError):
        parse_recipe(text, "wrong.toml", None)
    page = (render_docs.DOCS / "errors.md").read_text(encoding="utf-8")
    assert text in page


def _anchors(text: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w -]", "", item.lower()).replace(" ", "-") for item in headings}


@pytest.mark.parametrize("page", EVERY_PAGE, ids=name)
def test_every_link_and_picture_leads_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    for link in links:
        if re.match(r"[a-z]+:", link):
            continue
        place, _, anchor = link.partition("#")
        target = (page.parent / place).resolve() if place else page
        assert target.is_file(), link
        assert target.is_relative_to(ROOT), link
        if anchor:
            assert anchor in _anchors(target.read_text(encoding="utf-8")), link


def test_every_picture_is_shown_and_says_what_it_shows() -> None:
    shown = {
        (page.parent / link).resolve(): text
        for page in EVERY_PAGE
        for text, link in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    }
    assert set(shown) == set(render_docs.PICTURES.iterdir())
    assert all(shown.values())


def test_every_command_with_json_is_documented() -> None:
    page = (render_docs.DOCS / "json.md").read_text(encoding="utf-8")
    told = page.partition("## What each")[2]
    for words in LEAVES:
        if "--json" in options(words):
            assert words[0] in told
            assert len(words) == 1 or words[0] == "facts" or " ".join(words) in told


@pytest.mark.parametrize("preset", [item.name for item in presets()])
def test_every_preset_is_documented(preset: str) -> None:
    page = (render_docs.DOCS / "presets.md").read_text(encoding="utf-8")
    assert f"\n## {preset}\n" in page
    assert f"(docs/presets.md#{preset})" in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", EVERY_PAGE, ids=name)
def test_pages_name_no_place_of_the_machine_they_were_written_on(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"(?<![\w.])(?:/root|/home|/tmp|/work)/[\w./-]+", text) == []


def _shown(page: Path) -> Iterator[str]:
    """The commands in the blocks of a page that are shown and not run, without what is beside."""
    for block in render_docs.blocks(page.read_text(encoding="utf-8")):
        if block.language == "text":
            joined = re.sub(r"\\\n\s*", "", block.body)
            for line in joined.splitlines():
                found = re.match(r"(?:\$ )?(torchsmith \w.*?)(?: {2,}| [#>|] ?|$)", line)
                if found and "…" not in found[1]:
                    yield found[1]


SHOWN = [(page, command) for page in PAGES for command in dict.fromkeys(_shown(page))]


@pytest.mark.parametrize(
    ("page", "command"), SHOWN, ids=[f"{page.name}:{command[11:50]}" for page, command in SHOWN]
)
def test_a_command_that_is_only_shown_can_be_read(page: Path, command: str) -> None:
    words = shlex.split(command)[1:]
    named = next(
        leaf for leaf in sorted(LEAVES, key=len, reverse=True) if leaf == (*words,)[: len(leaf)]
    )
    LEAVES[named].make_context(" ".join(named), words[len(named) :])
