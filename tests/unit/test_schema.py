"""The JSON Schema is current, valid, agrees with the models, and helps an editor."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tests.unit.conftest import Run

from torchsmith.errors import RecipeError
from torchsmith.facts.files import shipped
from torchsmith.recipe.compose import commented_recipe
from torchsmith.recipe.load import parse_recipe
from torchsmith.recipe.schema import recipe_schema, schema_text

pytestmark = pytest.mark.unit

ROOT = Path(__file__).parents[2]
COMMITTED = ROOT / "schema" / "recipe.schema.json"
SCHEMA = recipe_schema(shipped())
VALIDATOR = Draft202012Validator(SCHEMA)


def errors(text: str) -> list[str]:
    return [error.message for error in VALIDATOR.iter_errors(tomllib.loads(text))]


def test_the_committed_schema_is_what_the_command_prints() -> None:
    printed = subprocess.run(
        [sys.executable, "-m", "torchsmith", "schema"], capture_output=True, check=True
    ).stdout
    assert printed == COMMITTED.read_bytes(), "torchsmith schema > schema/recipe.schema.json"
    assert printed == schema_text(shipped()).encode()


def _keys(part: Any, place: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, item in part.get("properties", {}).items():
        # What a table says of itself need not be said again where it stands.
        table = SCHEMA["$defs"].get(item.get("$ref", "").rpartition("/")[2], {})
        yield f"{place}.{name}", {**table, **item}
    for name, item in part.get("$defs", {}).items():
        yield from _keys(item, name)


def test_every_key_is_explained_to_an_editor() -> None:
    keys = dict(_keys(SCHEMA, "recipe"))
    assert len(keys) > 200
    assert [name for name, item in keys.items() if not item.get("description")] == []


def test_the_schema_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "recipes").glob("*.toml")), ids=lambda path: path.stem
)
def test_every_preset_obeys_the_schema_and_the_models(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert errors(text) == []
    parse_recipe(text, path.name, path.parent)


def test_the_recipe_init_writes_obeys_the_schema() -> None:
    wishes = {"torch": "2.6.0", "gpus": ["RTX 3090"], "cuda": "12.6", "companions": ["vision"]}
    text = commented_recipe({**wishes, "features": ["nccl=off"], "compiler": "gcc-12"})
    assert errors(text) == []
    parse_recipe(text, "recipe.toml", None)


@pytest.mark.parametrize(
    "text",
    [
        "torch = { release = '2.6', ref = 'main', build_number = 1 }\ncuda = false",
        "torch = '2.6'\npython = ['3.11', 'host']\ngpus = [8.6, 'native']",
        "torch = '2.6'\ngpus = '7.5;8.6+PTX'\ncuda = { version = 'host' }",
        "torch = '2.6'\npatches = ['a.patch', { file = 'b.patch', strip = 0 }]",
        "torch = '2.6'\n[companions]\nvision = true\ntext = '0.1'\n",
        "torch = '2.6'\n[features]\nnccl = false\nmkldnn = true",
        "torch = '2.6'\n[matrix]\ngpus = ['8.6', ['7.5']]\nfeatures = [{ nccl = 'off' }]\n"
        "include = [{ features = { nccl = 'on' }, gpus = '8.6', torch = '2.5' }]",
    ],
)
def test_what_the_models_take_the_schema_takes(text: str) -> None:
    assert errors(text) == []
    text = text.replace("patches = ['a.patch', { file = 'b.patch', strip = 0 }]", "")
    parse_recipe(text, "recipe.toml", None)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "torch = 2.6",
        "torch = '2.6; rm -rf /'",
        "torch = '１.９'",
        "torch = { release = '2.6', relese = 1 }",
        "torch = '2.6'\ntorhc = '2.6'",
        "torch = '2.6'\npython = '3'",
        "torch = '2.6'\npython = []",
        "torch = '2.6'\nboard = 'jetson-tx3'",
        "torch = '2.6'\nsystem = 'ubuntu-20.40'",
        "torch = '2.6'\nplatform = 'win-64'",
        "torch = '2.6'\nprofile = 'fast'",
        "torch = '2.6'\ngpus = []",
        "torch = '2.6'\ncuda = true",
        "torch = '2.6'\nname = '$(reboot)'",
        "torch = '2.6'\n[features]\nncll = 'on'",
        "torch = '2.6'\n[features]\nnccl = 'maybe'",
        "torch = '2.6'\n[build]\njobs = 0",
        "torch = '2.6'\n[build]\nmemory = 'lots'",
        "torch = '2.6'\n[build]\npython = '3.11'",
        "torch = '2.6'\n[source]\nurl = 'x'",
        "torch = '2.6'\n[packages]\nconda = 'yes'",
        "torch = '2.6'\n[image.foundation]\nname = 'a'",
        "torch = '2.6'\n[[job]]\nname = 'a'",
        "torch = '2.6'\n[[job]]\nname = 'a'\nrole = [{ command = 'x', gpus = -1 }]",
        "torch = '2.6'\n[matrix.matrix]",
        "torch = '2.6'\n[matrix]\npython = '3.11'",
        "torch = '2.6'\n[[matrix.include]]\nmatrix = {}",
    ],
)
def test_what_the_schema_refuses_the_models_refuse(text: str) -> None:
    assert errors(text) != []
    with pytest.raises(RecipeError):
        parse_recipe(text, "recipe.toml", None)


def test_an_editor_can_complete_the_names_facts_know() -> None:
    top, parts = SCHEMA["properties"], SCHEMA["$defs"]
    assert {"nccl", "mkldnn", "distributed"} <= set(parts["Features"]["properties"])
    assert "jetson-tx2" in top["board"]["enum"]
    assert "ubuntu-20.04" in top["system"]["enum"]
    assert "2.6.0" in top["torch"]["anyOf"][0]["enum"]
    assert "RTX 3090" in json.dumps(parts["Gpus"])
    assert "wheels" in parts["Cuda"]["properties"]["toolkit"]["enum"]


def described(node: Any) -> bool:
    """Whether a key says what it is, itself or by the table it refers to."""
    reference = node.get("$ref", "").rsplit("/", 1)[-1] or node.get("items", {}).get("$ref", "")
    table = SCHEMA["$defs"].get(reference.rsplit("/", 1)[-1], {})
    return bool(node.get("description") or table.get("description"))


def test_every_key_at_the_top_is_described() -> None:
    silent = [name for name, node in SCHEMA["properties"].items() if not described(node)]
    assert silent == []


def test_every_feature_and_every_table_is_described() -> None:
    assert all(item["description"] for item in SCHEMA["$defs"]["Features"]["properties"].values())
    tables = {name: part for name, part in SCHEMA["$defs"].items() if part.get("type") == "object"}
    assert [name for name, part in tables.items() if not part.get("description")] == []


def test_the_schema_speaks_of_nothing_toml_cannot_say() -> None:
    assert '"null"' not in schema_text(shipped())


def test_checks_of_a_table_are_made_ready_only_where_a_recipe_has_it() -> None:
    program = """
from torchsmith.recipe import models
from torchsmith.recipe.load import parse_recipe
tables = models.Build, models.Companions, models.Image, models.Job, models.Matrix, models.Publish
parse_recipe('torch = "2.6.0"\\n[build]\\njobs = 2\\n', "recipe.toml", None)
print([table.__name__ for table in tables if table.__pydantic_complete__])
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "['Build']"


def test_the_schema_of_jobs_takes_one_job_or_several(run: Run) -> None:
    code, out, _ = run("schema", "--job")
    schema = json.loads(out)
    assert code == 0
    Draft202012Validator.check_schema(schema)
    check = Draft202012Validator(schema)
    one = tomllib.loads((ROOT / "examples/jobs/digits.toml").read_text(encoding="utf-8"))
    for table in (one, {"job": [one, one]}):
        assert check.is_valid(table)
    assert not check.is_valid({**one, "rolle": []})
    assert '"null"' not in out
