"""Writing recipes: from flags, from answers, over another recipe."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from pydantic import ValidationError

from torchsmith.errors import RecipeError, UsageError
from torchsmith.facts.files import shipped
from torchsmith.facts.torch import find_release, releases
from torchsmith.recipe.load import LoadedRecipe, meaning_problems, parse_recipe
from torchsmith.recipe.models import Recipe
from torchsmith.recipe.outcome import Training
from torchsmith.recipe.problems import problems_of
from torchsmith.recipe.toml import toml_lines, toml_value

# What problems of flags are said to be in, instead of a file.
COMMAND_LINE = "the command line"
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


def _pairs(items: object, what: str, default: str) -> dict[str, str]:
    pairs: dict[str, str] = {}
    assert isinstance(items, list)
    for item in items:
        name, equals, value = str(item).partition("=")
        if not name or (equals and not value):
            raise UsageError(f"{what} {item!r} is not written like name=value")
        pairs[name] = value or default
    return pairs


_RELEASE = re.compile(r"v?(\d+(?:\.\d+){0,2})")
_CANDIDATE = re.compile(r"v(\d+\.\d+\.\d+)-rc\d+|(?:orig/)?release/(\d+\.\d+)")
_MOVING = re.compile(r"main|master|nightly|viable/strict|[0-9a-f]{12,40}")


def _torch(text: str) -> str:
    """A release, its tag, a candidate, a branch or a commit, as TOML.

    What is no release is built from that ref, with the facts of the release it belongs to.
    """
    if found := _RELEASE.fullmatch(text):
        return toml_value(found[1])
    facts = shipped()
    newest = releases(facts)[-1].version
    if found := _CANDIDATE.fullmatch(text):
        wanted = found[1] or found[2]
        newest = wanted if find_release(facts, wanted) else newest
    elif not _MOVING.fullmatch(text):
        return toml_value(text)
    return f"{{ release = {toml_value(newest)}, ref = {toml_value(text)} }}"


def compose(flags: Mapping[str, object], *, commented: bool = False) -> str:
    """A recipe file for these wishes; keys it does not know are an error of ours, not a user's."""
    lines: list[str] = []

    def put(name: str, text: str) -> None:
        if commented:
            lines.append(f"# {_COMMENTS[name]}")
        lines.append(f"{name} = {text}")

    for name in (*_PLAIN, *_LISTS):
        value = flags.get(name)
        if value:
            listed = value if isinstance(value, list) else [value]
            plain = _torch(str(value)) if name == "torch" else toml_value(value)
            put(name, toml_value(listed) if name in _LISTS else plain)
    if flags.get("compiler"):
        lines += ["", "[build]", f"compiler = {toml_value(flags['compiler'])}"]
    if features := flags.get("features"):
        lines += ["", "[features]", *toml_lines(_pairs(features, "--feature", "on"))]
    if companions := flags.get("companions"):
        # As of torch, the tag of a release is as good as its number.
        pairs = {
            name: found[1] if (found := _RELEASE.fullmatch(text)) else text
            for name, text in _pairs(companions, "--with", "match").items()
        }
        lines += ["", "[companions]", *toml_lines(pairs)]
    return "\n".join(lines) + "\n"


def _laid_over(name: str, below: object, value: object) -> object:
    """A flag over what a recipe says: of a table it changes what it names, and no more."""
    tables = ("features", "companions", "build", "torch", "cuda")
    if name not in tables or not isinstance(below, dict) or not isinstance(value, dict):
        return value
    if name == "cuda" and value.get("version") == "none":
        return value
    # Another torch is not at the old one's commit.
    kept = {k: v for k, v in below.items() if name != "torch" or k not in _OF_ONE_RELEASE}
    return {**kept, **value}


def with_training(
    loaded: LoadedRecipe,
    only: Sequence[str] = (),
    *,
    tag: str = "",
    timezone: str = "",
    uid: int | None = None,
    gid: int | None = None,
) -> LoadedRecipe:
    """A recipe whose training images are as a command line says.

    `timezone` is for all of them, `uid` and `gid` stand for the caller's numbers. `tag` is the name
    of one: of the one that `only` names, or that is the only one.
    """
    image = loaded.recipe.image
    if image is None or not image.train:
        raise UsageError(
            "this recipe has no [[image.train]]", "Only such images have a user and a time zone."
        )
    meant = [item for item in image.train if not only or item.name in only]
    if tag and len(meant) != 1:
        names = ", ".join(item.name for item in image.train)
        raise UsageError("--tag is the name of one image", f"Say of which with --only: {names}.")
    numbers = {"uid": uid, "gid": gid}
    train: list[Training] = []
    for item in image.train:
        fields = item.model_dump(exclude_unset=True)
        fields |= {k: v for k, v in numbers.items() if v and getattr(item, k) == "caller"}
        fields |= {"timezone": timezone} if timezone else {}
        fields |= {"name": tag} if tag and item in meant else {}
        try:
            train.append(Training.model_validate(fields))
        except ValidationError as error:
            if error.errors()[0]["loc"][0] == "timezone":
                raise UsageError(
                    f"--timezone: {timezone!r} is not a time zone", "Such as Asia/Seoul or Etc/UTC."
                ) from None
            raise UsageError(
                f"--tag: {tag!r} is not the name of an image", "Such as train_1"
            ) from None
    if len({item.name for item in train}) < len(train):
        raise UsageError(f"--tag: {tag} is another image of this recipe", "Choose another name.")
    recipe = loaded.recipe.model_copy(update={"image": image.model_copy(update={"train": train})})
    return LoadedRecipe(recipe, loaded.path, loaded.files)


_OF_ONE_RELEASE = ("ref", "commit", "version")


def overridden(loaded: LoadedRecipe, wishes: Mapping[str, object]) -> LoadedRecipe:
    """A recipe with flags laid over it; the flags win."""
    base = loaded.recipe.model_dump(by_alias=True, exclude_unset=True)
    # Only the keys the flags name are taken from the composed recipe.
    text = compose({"torch": base["torch"]["release"], **wishes})
    flags = parse_recipe(text, COMMAND_LINE, None).recipe
    update = flags.model_dump(by_alias=True, exclude_unset=True)
    if "torch" not in wishes:
        update.pop("torch")
    if wishes.get("cuda") == "none" and "gpus" not in wishes:
        # They were there for the CUDA that is gone.
        base.pop("gpus", None)
    for name, value in update.items():
        base[name] = _laid_over(name, base.get(name), value)
        # An exclusion still means what it says; an axis or an inclusion gives way to the flag.
        matrix = base.get("matrix", {})
        for place in (matrix, *matrix.get("include", ())):
            place.pop(name, None)
    try:
        recipe = Recipe.model_validate(base)
    except ValidationError as error:
        raise RecipeError(loaded.path, problems_of(error, base, {})) from None
    if problems := list(meaning_problems(recipe, {})):
        raise RecipeError(loaded.path, problems)
    return LoadedRecipe(recipe, loaded.path, loaded.files)


def outdated_name(before: Recipe, after: Recipe) -> str:
    """The name of an image that tells the release a flag has replaced; empty if none does."""
    old = before.torch.release
    name = after.image.name if after.image is not None else ""
    return name if old not in after.torch.release and old in name.partition(":")[2] else ""


_HEAD = """\
# A torchsmith recipe: what is wanted. `torchsmith plan` says whether it can exist and what
# would be done; `torchsmith schema` describes every key. An editor with Even Better TOML
# (Taplo) completes and checks this file once `torchsmith schema > recipe.schema.json` was run
# and this line stands first:  #:schema ./recipe.schema.json

"""

_MORE = {
    "features": """\
#
# [features]                  # what to build with or without: torchsmith facts features
# nccl = "system"             # on, off, system or static
# mkldnn = "off"
""",
    "companions": """\
#
# [companions]                # libraries that only work with their matching torch
# vision = "match"            # or a release such as "0.21.0"
""",
    "image": """\
#
# [image]                     # a container image of it
# name = "pytorch"
# shm_size = "8G"
""",
    "matrix": """\
#
# [matrix]                    # several at once: every combination becomes a variant
# python = ["3.11", "3.12"]
""",
}


def commented_recipe(flags: Mapping[str, object]) -> str:
    """A recipe for these wishes that explains itself."""
    body = compose({"torch": "2.6.0", "python": ["host"], **flags}, commented=True)
    # A table may stand in a file once.
    more = "".join(text for name, text in _MORE.items() if not flags.get(name))
    return f"{_HEAD}{body}\n# More that can be said; every line below is optional.\n{more}"
