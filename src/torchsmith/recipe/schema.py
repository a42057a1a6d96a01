"""The JSON Schema of a recipe, for editors and for people."""

from __future__ import annotations

import json
from typing import Any

from torchsmith.facts.files import Facts
from torchsmith.recipe.models import Cuda, Patch, Recipe, Torch

SCHEMA_ID = "https://torchsmith.dev/schema/recipe.schema.json"


def recipe_schema(facts: Facts) -> dict[str, Any]:
    """The schema, with the names facts know, so that an editor can complete them."""
    schema = Recipe.model_json_schema()
    definitions = schema["$defs"]
    # Fields that take a shorthand refer to the table by name only.
    for model in (Torch, Cuda, Patch):
        own = model.model_json_schema()
        definitions.update(own.pop("$defs", {}))
        definitions[model.__name__] = own
    features = {
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
    definitions["Features"] = features
    schema["properties"]["features"] = {"$ref": "#/$defs/Features"}
    for name in ("Matrix", "MatrixCell"):
        place = definitions[name]["properties"]["features"]
        reference = {"$ref": "#/$defs/Features"}
        if name == "Matrix":
            place["items"] = reference
        else:
            definitions[name]["properties"]["features"] = {"anyOf": [reference, {"type": "null"}]}
    boards = [board.name for board in facts.boards.board]
    systems = [system.name for system in facts.systems.system]
    schema["properties"]["board"] = {
        "enum": boards,
        "description": "A board; sets platform and GPU.",
    }
    schema["properties"]["system"] = {
        "enum": systems,
        "description": "Distribution to build and run on.",
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        **schema,
        "title": "torchsmith recipe",
    }


def schema_text(facts: Facts) -> str:
    """The schema as it is committed."""
    return json.dumps(recipe_schema(facts), indent=2, ensure_ascii=False) + "\n"
