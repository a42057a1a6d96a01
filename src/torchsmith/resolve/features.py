"""Deciding every feature: what was asked, what the profile says, what can be had here."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from torchsmith.facts.files import Facts, addresses
from torchsmith.facts.models import Board, Feature, Lack, Mode, Switch
from torchsmith.facts.ranges import version_range
from torchsmith.facts.torch import entry_for
from torchsmith.resolve.models import Choice, Conflict, Evidence

PLATFORMS = ("linux-x86_64", "linux-aarch64")


class FeatureDecisions(Struct):
    """The features of a variant, and what follows from them for the build."""

    modes: dict[str, Mode] = {}
    env: dict[str, str] = {}
    cache: dict[str, bool] = {}
    apt: list[str] = []
    choices: list[Choice] = []
    conflicts: list[Conflict] = []


def decide_features(
    facts: Facts,
    *,
    torch: str,
    platform: str,
    board: Board | None,
    cuda: str,
    profile: str,
    asked: Mapping[str, Mode],
) -> FeatureDecisions:
    """Decide every feature this release knows; asking for the impossible is a conflict."""
    made = FeatureDecisions()
    known = {item.name: item for item in facts.features.feature}
    for name, mode in asked.items():
        feature = known[name]
        if torch not in version_range(feature.torch) and mode != "off":
            made.conflicts.append(_too_old_or_new(facts, feature, torch))
        elif mode not in feature.modes:
            made.conflicts.append(_no_such_mode(facts, feature, mode))

    lacks = {lack.feature: lack for lack in board.lacks} if board else {}
    for name, feature in known.items():
        if torch not in version_range(feature.torch):
            continue
        wanted = asked.get(name)
        default: Mode = feature.default[profile]  # type: ignore[index]
        mode = wanted or default
        if mode != "off":
            obstacle = _obstacle(
                facts, feature, lacks.get(name), board, platform, cuda, asked, made
            )
            if obstacle is not None:
                conflict, reason = obstacle
                if wanted is not None:
                    made.conflicts.append(conflict)
                    continue
                mode = "off"
                if cuda or "cuda" not in feature.needs:
                    made.choices.append(Choice(f"feature {name}", "off", reason))
        made.modes[name] = mode
        if wanted is not None:
            made.choices.append(Choice(f"feature {name}", mode, "the recipe says so"))
        elif (
            mode != feature.default["release"]
            and mode == default
            and (cuda or "cuda" not in feature.needs)
        ):
            made.choices.append(Choice(f"feature {name}", mode, f"profile {profile}"))
        # Without CUDA its satellites are off by themselves.
        moot = mode == "off" and not cuda and "cuda" in feature.needs
        if not moot:
            _switch(feature, mode, torch, made, explicit=wanted is not None)
    return made


def _obstacle(
    facts: Facts,
    feature: Feature,
    lack: Lack | None,
    board: Board | None,
    platform: str,
    cuda: str,
    asked: Mapping[str, Mode],
    made: FeatureDecisions,
) -> tuple[Conflict, str] | None:
    name = feature.name
    wish = Evidence(f"asked for: {name}")
    if lack is not None and board is not None:
        conflict = Conflict(
            "feature-board",
            f"{name} cannot be had on the {board.title}",
            wish,
            Evidence(f"{board.title}: {lack.reason}", addresses(facts.boards.sources, board)),
            f"features.{name} = 'off'" + (f". {lack.instead}" if lack.instead else ""),
        )
        return conflict, f"{board.title}: {lack.reason}"
    where = [need for need in feature.needs if need in PLATFORMS]
    if where and platform not in where:
        conflict = Conflict(
            "feature-platform",
            f"{name} does not exist on {platform}",
            wish,
            Evidence(
                f"{name} needs {' or '.join(where)}", addresses(facts.features.sources, feature)
            ),
            f"features.{name} = 'off'",
        )
        return conflict, f"needs {' or '.join(where)}"
    for need in feature.needs:
        if need in PLATFORMS:
            continue
        missing = (not cuda) if need == "cuda" else asked.get(need, made.modes.get(need)) == "off"
        if missing:
            cure = "give a cuda version" if need == "cuda" else f"features.{need} = 'on'"
            conflict = Conflict(
                "feature-needs",
                f"{name} needs {need}, which this build does not have",
                wish,
                Evidence(f"{name} needs {need}", addresses(facts.features.sources, feature)),
                f"{cure}; or features.{name} = 'off'",
            )
            return conflict, f"needs {need}"
    return None


def _switch(
    feature: Feature, mode: Mode, torch: str, made: FeatureDecisions, *, explicit: bool
) -> None:
    switch: Switch | None = entry_for(feature.switch, torch)
    # What upstream does by itself needs no switch, and a short environment is a readable one.
    if switch is not None and (explicit or mode != feature.default["release"]):
        made.env.update(getattr(switch, mode))
    if feature.cache and (explicit or mode != feature.default["release"]):
        made.cache[feature.cache] = mode != "off"
    if mode == "system":
        made.apt.extend(feature.apt)


def _too_old_or_new(facts: Facts, feature: Feature, torch: str) -> Conflict:
    span = version_range(feature.torch)
    return Conflict(
        "feature-torch",
        f"torch {torch} has no {feature.name}",
        Evidence(f"asked for: {feature.name}"),
        Evidence(
            f"{feature.name} ({feature.title}) is in torch {span}",
            addresses(facts.features.sources, feature),
        ),
        f"torch {span}; or leave features.{feature.name} out",
    )


def _no_such_mode(facts: Facts, feature: Feature, mode: str) -> Conflict:
    return Conflict(
        "feature-mode",
        f"{feature.name} cannot be {mode!r}",
        Evidence(f"asked for: {feature.name} = {mode!r}"),
        Evidence(
            f"{feature.name} can be {', '.join(feature.modes)}",
            addresses(facts.features.sources, feature),
        ),
        f"features.{feature.name} = '{feature.modes[0]}'",
    )
