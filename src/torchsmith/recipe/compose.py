"""Writing recipes: from flags, from answers, over another recipe."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pydantic import ValidationError

from torchsmith.errors import RecipeError, RecipeProblem, UsageError
from torchsmith.recipe.load import LoadedRecipe, parse_recipe
from torchsmith.recipe.models import Recipe
from torchsmith.recipe.problems import problems_of

_PLAIN = ("torch", "platform", "board", "system", "cuda", "cpu", "profile")
_LISTS = ("python", "gpus")

_COMMENTS = {
    "torch": "The release; 2.6 alone means its newest patch release.",
    "python": "One variant for each.",
    "platform": "The machine it runs on.",
    "board": "Sets platform, GPU and patches.",
    "system": "The distribution to build in; leave it out to build on this machine.",
    "cuda": 'A toolkit release, "none", or "host" for what is installed here.',
    "gpus": 'Names, compute capabilities ("8.6", "7.5;8.6+PTX"), or "native".',
    "cpu": '"portable", "native", or a CPU the compiler knows.',
    "profile": "release, minimal or debug.",
}


def _value(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _pairs(items: object, what: str, default: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    assert isinstance(items, list)
    for item in items:
        name, equals, value = str(item).partition("=")
        if not name or (equals and not value):
            raise UsageError(f"{what} {item!r} is not written like name=value")
        pairs[name] = value or default
    return pairs


def _key(name: str) -> str:
    plain = name.isascii() and name.replace("_", "").replace("-", "").isalnum()
    return name if plain else json.dumps(name, ensure_ascii=False)


def compose(wishes: Mapping[str, object], *, commented: bool = False) -> str:
    """A recipe file for these wishes; keys it does not know are an error of ours, not a user's."""
    lines: list[str] = []

    def put(name: str, text: str) -> None:
        if commented:
            lines.append(f"# {_COMMENTS[name]}")
        lines.append(f"{name} = {text}")

    for name in (*_PLAIN, *_LISTS):
        value = wishes.get(name)
        if value:
            listed = value if isinstance(value, list) else [value]
            put(name, _value(listed) if name in _LISTS else _value(value))
    if wishes.get("compiler"):
        lines += ["", "[build]", f"compiler = {_value(wishes['compiler'])}"]
    if features := wishes.get("features"):
        lines += ["", "[features]"]
        pairs = _pairs(features, "--feature", "on")
        lines += [f"{_key(name)} = {_value(mode)}" for name, mode in pairs.items()]
    if companions := wishes.get("companions"):
        lines += ["", "[companions]"]
        pairs = _pairs(companions, "--with", "match")
        lines += [f"{_key(name)} = {_value(version)}" for name, version in pairs.items()]
    return "\n".join(lines) + "\n"


def overridden(loaded: LoadedRecipe, wishes: Mapping[str, object]) -> LoadedRecipe:
    """A recipe with flags laid over it; the flags win."""
    base = loaded.recipe.model_dump(by_alias=True, exclude_unset=True)
    # Only the keys the flags name are taken from the composed recipe.
    text = compose({"torch": base["torch"]["release"], **wishes})
    flags = parse_recipe(text, "the command line", None).recipe
    update = flags.model_dump(by_alias=True, exclude_unset=True)
    if "torch" not in wishes:
        update.pop("torch")
    for name, value in update.items():
        both = name in ("features", "companions", "build") and isinstance(base.get(name), dict)
        base[name] = {**base[name], **value} if both else value
        matrix = base.get("matrix")
        if isinstance(matrix, dict):
            matrix.pop(name, None)
    try:
        return LoadedRecipe(Recipe.model_validate(base), loaded.path, loaded.files)
    except ValidationError as error:
        problems = problems_of(error, base, {})
        raise RecipeError(loaded.path, problems or [RecipeProblem("cannot be combined")]) from None
