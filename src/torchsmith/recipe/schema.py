"""The JSON Schemas of a recipe and of a job file, for editors and for people."""

from __future__ import annotations

import json
from typing import Any

from pydantic import TypeAdapter

from torchsmith.facts.files import Facts
from torchsmith.facts.torch import releases
from torchsmith.recipe.job import Job, Jobs
from torchsmith.recipe.models import Recipe

SCHEMA_ID = "https://torchsmith.dev/schema/recipe.schema.json"


def recipe_schema(facts: Facts) -> dict[str, Any]:
    """The schema, with the names facts know, so that an editor can complete them."""
    schema: dict[str, Any] = _without_null(Recipe.model_json_schema())
    definitions = schema["$defs"]
    definitions["Features"] = _features(facts)
    definitions["Gpus"] = _gpus(facts)
    top, matrix = schema["properties"], definitions["Matrix"]["properties"]
    for properties in (top, definitions["MatrixCell"]["properties"]):
        _replace(properties, "features", {"$ref": "#/$defs/Features"})
        _replace(properties, "gpus", {"$ref": "#/$defs/Gpus"})
    _replace(definitions["Packages"]["properties"], "magma_gpus", {"$ref": "#/$defs/Gpus"})
    matrix["features"]["items"] = {"$ref": "#/$defs/Features"}
    matrix["gpus"]["items"] = {"$ref": "#/$defs/Gpus"}
    top["torch"]["anyOf"].insert(0, {"enum": [item.version for item in releases(facts)[::-1]]})
    _replace(top, "board", {"enum": [board.name for board in facts.boards.board]})
    _replace(top, "system", {"enum": [system.name for system in facts.systems.system]})
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        **schema,
        "title": "torchsmith recipe",
    }


def _replace(properties: dict[str, Any], name: str, form: dict[str, Any]) -> None:
    """Replace what a key may hold, and keep what is said about it."""
    kept = {key: properties[name][key] for key in ("description",) if key in properties[name]}
    properties[name] = {**form, **kept}


def _without_null(node: Any) -> Any:
    """TOML has no null: a key that may be left out is only what it is when it is there."""
    if isinstance(node, list):
        return [_without_null(item) for item in node if item != {"type": "null"}]
    if not isinstance(node, dict):
        return node
    kept = {
        key: _without_null(value)
        for key, value in node.items()
        if not (key == "default" and value is None)
    }
    if "anyOf" in kept and len(kept["anyOf"]) == 1:
        (only,) = kept.pop("anyOf")
        return {**only, **kept}
    return kept


def _features(facts: Facts) -> dict[str, Any]:
    return {
        "type": "object",
        "description": "What to build with or without.",
        "additionalProperties": False,
        "properties": {
            feature.name: {
                "enum": [*feature.modes, *([True] if "on" in feature.modes else []), False],
                "description": feature.title,
            }
            for feature in facts.features.feature
        },
    }


def _gpus(facts: Facts) -> dict[str, Any]:
    one = {
        "anyOf": [
            {"enum": ["native", "published", *(gpu.name for gpu in facts.gpus.gpu)]},
            {"type": "string", "minLength": 1, "examples": ["8.6", "7.5;8.6+PTX"]},
            {"type": "number"},
        ]
    }
    return {"anyOf": [*one["anyOf"], {"type": "array", "items": one, "minItems": 1}]}


def schema_text(facts: Facts) -> str:
    """The schema as it is committed."""
    return json.dumps(recipe_schema(facts), indent=2, ensure_ascii=False) + "\n"


def job_schema_text() -> str:
    """The schema of a job file: one job, or several as `[[job]]`."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **_without_null(TypeAdapter[Job | Jobs](Job | Jobs).json_schema()),
        "title": "torchsmith jobs",
    }
    return json.dumps(schema, indent=2, ensure_ascii=False) + "\n"
