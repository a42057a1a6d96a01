"""Whatever a recipe holds, the answer is a plan, a refusal, or an explained error."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from functools import cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from torchsmith.errors import RecipeError
from torchsmith.facts.files import shipped
from torchsmith.facts.torch import releases
from torchsmith.host.models import Host
from torchsmith.plan.build import make_plan
from torchsmith.plan.models import as_json
from torchsmith.recipe.load import LoadedRecipe, parse_recipe, text_of
from torchsmith.recipe.matrix import expand
from torchsmith.recipe.models import Recipe
from torchsmith.recipe.problems import _fields, _models_in
from torchsmith.resolve.models import Refusal
from torchsmith.resolve.resolve import resolve

pytestmark = pytest.mark.unit

HOST = Host(platform="linux-x86_64")
FACTS = shipped()
QUICK = settings(
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


def toml(value: Any) -> str:
    """Write any value as TOML, tables inline."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return json.dumps(value).replace("\x7f", "\\u007f")
        case float():
            return repr(value) if math.isfinite(value) else str(value)
        case dict():
            return (
                "{" + ", ".join(f"{toml(key)} = {toml(item)}" for key, item in value.items()) + "}"
            )
        case list():
            return "[" + ", ".join(map(toml, value)) + "]"
        case _:
            return str(value)


def document(table: dict[str, Any]) -> str:
    return "".join(f"{toml(key)} = {toml(value)}\n" for key, value in table.items())


def answer(text: str) -> LoadedRecipe | None:
    """The recipe, or nothing if it was refused in a way a person can read."""
    try:
        return parse_recipe(text, "recipe.toml", None)
    except RecipeError as error:
        shown = "".join(map(str, error.problems))
    assert shown
    return None


def follow(loaded: LoadedRecipe) -> bool:
    """Resolve and plan every variant; true if any could be planned."""
    outcomes = [resolve(item, FACTS, HOST, loaded.files) for item in expand(loaded.recipe)]
    resolved = [item for item in outcomes if not isinstance(item, Refusal)]
    for item in outcomes:
        if isinstance(item, Refusal):
            assert item.conflicts
    plan = make_plan(loaded.recipe, resolved, FACTS, "0")
    json.dumps(as_json(plan))
    assert len({step.id for step in plan.steps}) == len(plan.steps)
    return bool(resolved)


@settings(QUICK, max_examples=150)
@given(st.binary(max_size=200))
def test_any_bytes_are_answered(data: bytes) -> None:
    with suppress(ValueError):
        answer(text_of(data))


@settings(QUICK, max_examples=150)
@given(st.text(max_size=200))
def test_any_text_is_answered(text: str) -> None:
    answer(text)


@settings(QUICK, max_examples=200)
@given(st.text(alphabet="[]{}=.,\"'\\#\n\r\t ab1-_:", max_size=80))
def test_any_heap_of_tomls_own_signs_is_answered(text: str) -> None:
    answer('torch = "2.6"\n' + text)


WORDS = (
    "2.6.0 1.9 3.11 host none match 12.6 8.6 native 8G on off gcc-9 linux-x86_64 debian "
    "https://a/b a/b jetson-tx2 x=y trixie release source"
)
TEXTS = st.one_of(st.text(max_size=12), st.sampled_from(WORDS.split()))
LEAVES = st.one_of(
    TEXTS,
    st.integers(-(10**30), 10**30),
    st.integers(0, 4),
    st.booleans(),
    st.floats(),
    st.sampled_from(["1979-05-27", "07:32:00", "1979-05-27T07:32:00Z"]).map(lambda text: Raw(text)),
)


class Raw:
    """A piece of TOML as it is."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text

    __repr__ = __str__


ANYTHING = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=2)
    ),
    max_leaves=4,
)


@cache
def plausible_keys(model: type[BaseModel], depth: int = 3) -> dict[str, st.SearchStrategy[Any]]:
    """For every key of a model values that look right, and some that do not."""
    keys: dict[str, st.SearchStrategy[Any]] = {}
    for name, field in _fields(model).items():
        inner = _models_in(field.annotation) if depth else []
        tables = [plausible(item, depth - 1) for item in inner]
        lists = [st.lists(table, max_size=2) for table in tables]
        keys[name] = st.one_of(*tables, *lists, LEAVES, st.lists(LEAVES, max_size=3), ANYTHING)
    return keys


def plausible(model: type[BaseModel], depth: int = 3) -> st.SearchStrategy[dict[str, Any]]:
    """Tables with the keys a model has, and now and then one it has not."""
    keys = plausible_keys(model, depth)
    known = st.fixed_dictionaries({}, optional=keys)
    strange = st.dictionaries(st.sampled_from([*keys, "nmae", "a b", ""]), ANYTHING, max_size=1)
    return st.one_of(known, st.builds(lambda first, second: {**first, **second}, known, strange))


@settings(QUICK, max_examples=100)
@given(plausible(Recipe))
def test_any_recipe_of_right_keys_and_wrong_values_is_answered(table: dict[str, Any]) -> None:
    if loaded := answer(document(table)):
        follow(loaded)


@settings(QUICK, max_examples=100)
@given(st.data())
def test_any_one_wrong_value_in_a_right_recipe_is_answered(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(_fields(Recipe))))
    value = data.draw(plausible_keys(Recipe)[name])
    table = {"torch": "2.6.0", "cuda": "12.6", "gpus": "8.6", name: value}
    if loaded := answer(document(table)):
        follow(loaded)


VERSIONS = st.sampled_from([item.version for item in releases(FACTS)])
NUMBERS = st.from_regex(r"[0-9]{1,3}(\.[0-9]{1,3}){0,3}", fullmatch=True)
TORCH = st.one_of(VERSIONS, VERSIONS.map(lambda text: text.rsplit(".", 1)[0]), NUMBERS)
CUDA = st.one_of(
    st.sampled_from(["none", "host", *(item.version for item in FACTS.cuda.toolkit)]), NUMBERS
)
GPU = st.one_of(
    st.sampled_from(["native", "published", *(gpu.name for gpu in FACTS.gpus.gpu)]),
    st.from_regex(r"[0-9]{1,2}\.[0-9][af]?(\+PTX)?", fullmatch=True),
)
PYTHON = st.one_of(st.just("host"), st.from_regex(r"[23]\.[0-9]{1,2}", fullmatch=True))
MODES = st.sampled_from(["on", "off", "system", "static"])
FEATURES = st.dictionaries(
    st.sampled_from([item.name for item in FACTS.features.feature]), MODES, max_size=4
)
COMPANION = st.one_of(st.sampled_from(["match", "none"]), NUMBERS)
NAME = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,8}", fullmatch=True)
COMPILER = st.one_of(
    st.sampled_from(["gcc", "clang", "gcc-", "gcc-x", "icc", "nvcc-12", "gcc-9.4.0.1", "clang-14"]),
    st.builds("{}-{}".format, st.sampled_from(["gcc", "clang"]), st.integers(0, 30)),
    NAME,
)
SHA = "0" * 64


def name_of(table: Any) -> str:
    return str(table["name"])


SOURCE = st.one_of(
    st.just({"kind": "debian"}),
    st.just({"kind": "debian", "suite": "trixie"}),
    st.just({"kind": "git", "url": "https://a/b.git", "mirrors": ["https://c/d"]}),
    st.just({"kind": "archive", "url": "https://a/b.tar.gz", "sha256": SHA}),
    st.just({"kind": "archive", "path": "b.tar.gz", "sha256": SHA}),
    st.just({"kind": "folder", "path": "/opt/torch"}),
    st.just({"kind": "bundle", "path": "x.bundle"}),
)
TRAIN = st.fixed_dictionaries(
    {"name": NAME},
    optional={
        "uid": st.sampled_from([1000, "caller"]),
        "pip": st.just(["a"]),
        "conda": st.just(["b"]),
    },
)
IMAGE = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["a", "a:b", "host:5000/a/b:c"]),
        "base": st.just("debian:12"),
        "build": st.sampled_from(["wheels", "inside"]),
        "foundation": st.just({"name": "a", "from": "b"}),
        "train": st.lists(TRAIN, max_size=2, unique_by=name_of),
        "client": st.just([{"files": ["a"], "run": ["./a"]}]),
    },
)
EXTENSION = st.sampled_from(
    [
        {"name": "a", "sdist": "a==1", "sha256": "0" * 64, "check": "import a"},
        {"name": "b", "git": {"url": "https://a/b", "ref": "main"}},
        {"name": "c", "folder": "c"},
    ]
)
ROLE = st.fixed_dictionaries(
    {"command": st.sampled_from(["x", "echo '$(a)' \"b\""])},
    optional={"tasks": st.integers(1, 3), "gpus": st.integers(0, 9), "shm_mb": st.just(64)},
)
JOB = st.fixed_dictionaries(
    {"name": st.just("job"), "role": st.lists(ROLE, min_size=1, max_size=1)},
    optional={
        "image": st.just("a:b"),
        "distributed": st.booleans(),
        "backend": st.sampled_from(["nccl", "gloo", "mpi"]),
    },
)
CELL = st.fixed_dictionaries({}, optional={"python": PYTHON, "cuda": CUDA, "features": FEATURES})
VALID: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {
        "torch": st.one_of(
            TORCH,
            st.fixed_dictionaries(
                {"release": TORCH},
                optional={
                    "ref": st.just("v1/x"),
                    "commit": st.just("0" * 40),
                    "version": st.sampled_from(["1.0+x", "1!2.0a1", "3"]),
                    "use": st.sampled_from(["source", "wheel"]),
                },
            ),
        )
    },
    optional={
        "name": NAME,
        "python": st.one_of(PYTHON, st.lists(PYTHON, min_size=1, max_size=2)),
        "platform": st.sampled_from(["host", "linux-x86_64", "linux-aarch64"]),
        "board": st.sampled_from([item.name for item in FACTS.boards.board]),
        "jetpack": NUMBERS,
        "system": st.sampled_from([item.name for item in FACTS.systems.system]),
        "cuda": st.one_of(
            CUDA,
            st.fixed_dictionaries(
                {"version": CUDA},
                optional={
                    "toolkit": st.sampled_from(["system", "wheels", "image"]),
                    "cudnn": NUMBERS,
                    "nccl": NUMBERS,
                    "nvcc_flags": st.just(["-Xfatbin", "-compress-all"]),
                },
            ),
        ),
        "gpus": st.one_of(GPU, st.lists(GPU, min_size=1, max_size=3)),
        "cpu": st.sampled_from(["portable", "native", "haswell", "-mcpu=cortex-a57"]),
        "profile": st.sampled_from(["release", "minimal", "debug"]),
        "features": FEATURES,
        "source": SOURCE,
        "patches": st.just(["a.patch", {"file": "b/a.patch", "project": "vision"}]),
        "build": st.fixed_dictionaries(
            {},
            optional={
                "compiler": COMPILER,
                "memory": st.just("8G"),
                "env": st.just({"A": "$(x) 'y' \"z\""}),
                "cmake": st.just({"B": "a;b"}),
                "apt": st.just(["g++"]),
            },
        ),
        "companions": st.fixed_dictionaries(
            {},
            optional={
                "vision": COMPANION,
                "audio": COMPANION,
                "text": COMPANION,
                "extension": st.lists(EXTENSION, max_size=3, unique_by=name_of),
            },
        ),
        "packages": st.fixed_dictionaries(
            {},
            optional={
                "conda": st.booleans(),
                "libtorch": st.booleans(),
                "magma": st.booleans(),
                "magma_gpus": GPU,
                "label": st.sampled_from(["none", "x.y", "CU-1"]),
            },
        ),
        "image": IMAGE,
        "publish": st.fixed_dictionaries(
            {},
            optional={
                "index": st.just("a/b"),
                "channel": st.just("c"),
                "anaconda_user": st.just("u"),
                "repository": st.just("https://a/b"),
                "registry": st.just("a.b/c"),
            },
        ),
        "job": st.lists(JOB, max_size=1),
        "matrix": st.fixed_dictionaries(
            {},
            optional={
                "torch": st.lists(TORCH, max_size=2),
                "cuda": st.lists(CUDA, max_size=2),
                "features": st.lists(FEATURES, max_size=2),
                "include": st.lists(CELL, max_size=2),
                "exclude": st.lists(CELL, max_size=1),
            },
        ),
    },
)


@settings(QUICK, max_examples=60)
@given(VALID)
def test_any_right_recipe_is_planned_or_refused_with_reasons(table: dict[str, Any]) -> None:
    if loaded := answer(document(table)):
        follow(loaded)
