"""Whether a git server answers, before hours are planned on it."""

from __future__ import annotations

import os
from collections.abc import Callable

from torchsmith.facts.files import Facts
from torchsmith.facts.torch import entry_for, find_release
from torchsmith.host.probe import run
from torchsmith.recipe.models import Recipe
from torchsmith.resolve.sources import TORCH_REPOSITORY, debian_source

_SECONDS = 10


def answers(url: str) -> bool:
    """Whether the repository at this address can be asked for its branches."""
    environment = {**os.environ, "GIT_TERMINAL_PROMPT": "0"}
    command = ["git", "ls-remote", "--quiet", "--heads", "--", url, "HEAD"]
    return run(command, environment, _SECONDS) is not None


def with_reachable_source(
    recipe: Recipe, facts: Facts, answers: Callable[[str], bool] = answers
) -> tuple[Recipe, str]:
    """The recipe with Debian's source where it leaves the choice open and git does not answer.

    The second value is a sentence that says so; empty where git answers. Only for a release whose
    Debian source we know how to build: otherwise git stays, and its own error says what is wrong.
    """
    source = recipe.source
    torch = recipe.torch
    if source.kind != "auto" or torch.use != "source" or torch.ref or torch.commit:
        return recipe, ""
    release = find_release(facts, recipe.torch.release)
    if release is None or entry_for(facts.systems.debian_build, release.version) is None:
        return recipe, ""
    entry = debian_source(facts, release.version, source.suite)
    url = source.url or TORCH_REPOSITORY
    if entry is None or answers(url):
        return recipe, ""
    chosen = source.model_copy(update={"kind": "debian", "suite": entry.suite})
    message = f"{url} does not answer: Debian {entry.suite}'s source of {release.version} is taken"
    return recipe.model_copy(update={"source": chosen}), message
