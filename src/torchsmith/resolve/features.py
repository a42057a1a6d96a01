"""Deciding every feature: what was asked, what the profile says, what can be had here."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from torchsmith.facts.files import Facts, addresses
from torchsmith.facts.models import Board, DebianBuild, Feature, Mode, Switch, Where
from torchsmith.facts.ranges import version_range
from torchsmith.facts.torch import entry_for
from torchsmith.recipe.models import Profile
from torchsmith.resolve.models import Case, Change, Conflict, Decided, Evidence
from torchsmith.resolve.target import Target


def bundled_features(case: Case, platform: str) -> tuple[str, ...]:
    """The features whose copy under third_party will be compiled, before anything is decided."""
    recipe = case.recipe
    if recipe.torch.use != "source" or recipe.source.kind == "debian":
        return ()
    on: dict[str, bool] = {}
    for feature in case.facts.features.feature:
        mode = recipe.features.get(feature.name) or feature.default[recipe.profile]
        usual = not feature.usual_on or platform in feature.usual_on
        on[feature.name] = (
            mode == "on"
            and (usual or feature.name in recipe.features)
            and case.torch in version_range(feature.torch)
        )
    needs = {item.name: _needs(item, case.torch) for item in case.facts.features.feature}
    return tuple(
        name for name in on if on[name] and all(on.get(need, True) for need in needs[name])
    )


class FeatureDecisions(Decided):
    """The features of a variant, and what follows from them for the build."""

    modes: dict[str, Mode] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    cache: dict[str, bool] = field(default_factory=dict)
    apt: list[str] = field(default_factory=list)
    pip: list[str] = field(default_factory=list)


class _Place(Struct, frozen=True):
    """What features are judged against."""

    torch: str
    platform: str
    board: Board | None
    cuda: str
    asked: Mapping[str, Mode]
    lacks: Mapping[str, str]


def decide_features(
    case: Case, target: Target, cuda: str, wishes: Mapping[str, Mode]
) -> FeatureDecisions:
    """Decide every feature this release knows; asking for the impossible is a conflict."""
    facts, torch, profile = case.facts, case.torch, case.recipe.profile
    platform = target.platform
    asked: dict[str, Mode] = {**wishes, "cuda": "on" if cuda else "off"}
    # What Debian's source cannot bring, with the reasons.
    debian = (
        entry_for(facts.systems.debian_build, torch)
        if case.recipe.source.kind == "debian"
        else None
    )
    lacks = debian.lacks if debian is not None else {}
    made = FeatureDecisions()
    place = _Place(torch, platform, target.board, cuda, asked, lacks)
    known = {item.name: item for item in facts.features.feature}
    wrong = {conflict.first.statement for conflict in _wrong_wishes(facts, known, place, made)}
    for name, feature in known.items():
        wanted = asked.get(name)
        if torch not in version_range(feature.torch) or f"asked for: {name} = {wanted}" in wrong:
            continue
        default: Mode = feature.default[profile]
        if feature.usual_on and platform not in feature.usual_on:
            default = "off"
        if torch not in version_range(feature.default_in):
            default = "off"
        mode = wanted or _needed_default(feature, default, place, known, profile)
        if mode != "off":
            obstacle = _obstacle(facts, feature, place, made)
            if obstacle is not None and wanted is not None:
                made.conflicts.append(obstacle[0])
                continue
            if obstacle is not None:
                mode = "off"
                if cuda or "cuda" not in feature.needs:
                    made.choose(f"feature {name}", "off", obstacle[1])
        made.modes[name] = mode
        _account(feature, wanted, default, mode, place, profile, made)
        # Without CUDA its satellites are off by themselves.
        if not (mode == "off" and not cuda and "cuda" in feature.needs):
            _switch(feature, mode, place, made, explicit=wanted is not None)
    _missing_partners(facts, known, place, made)
    return made


def _wrong_wishes(
    facts: Facts, known: Mapping[str, Feature], place: _Place, made: FeatureDecisions
) -> list[Conflict]:
    """Wishes no release, or not this one, can fulfil."""
    for name, mode in place.asked.items():
        feature, span = known[name], version_range(known[name].torch)
        cure, instead = f"leave features.{name} out", ""
        if mode == "off":
            continue
        if feature.elsewhere:
            kind, message = "feature-elsewhere", f"torchsmith does not build {feature.title}"
            fact = feature.elsewhere
        elif place.torch not in span:
            kind, message = "feature-torch", f"torch {place.torch} has no {name}"
            fact = f"{name} ({feature.title}) is in torch {span}"
            cure = f"torch {span}; or {cure}"
        elif mode not in feature.modes:
            kind, message = "feature-mode", f"{name} cannot be {mode!r}"
            fact = f"{name} can be {', '.join(feature.modes)}"
            # What someone who wants this feature most likely means.
            instead = next((usual for usual in feature.modes if usual != "off"), "off")
            cure = f"features.{name} = '{instead}'"
        else:
            continue
        made.refuse(
            kind,
            message,
            Evidence(f"asked for: {name} = {mode}"),
            Evidence(fact, addresses(facts.features.sources, feature)),
            cure,
            (Change(f"features.{name}", instead),),
        )
    return list(made.conflicts)


def _needed_default(
    feature: Feature, default: Mode, place: _Place, known: Mapping[str, Feature], profile: Profile
) -> Mode:
    """What a profile leaves out is built after all where something asked for cannot do without."""
    for partner in feature.required_by:
        wanted = place.asked.get(partner.feature, known[partner.feature].default[profile])
        if place.torch in version_range(partner.torch) and wanted != "off" and default == "off":
            return feature.modes[0]
    return default


def _account(
    feature: Feature,
    wanted: Mode | None,
    default: Mode,
    mode: Mode,
    place: _Place,
    profile: Profile,
    made: FeatureDecisions,
) -> None:
    subject = f"feature {feature.name}"
    if feature.name == "cuda":
        version = f"CUDA {place.cuda} is wanted" if place.cuda else "no CUDA is wanted"
        made.choose(subject, mode, version)
    elif wanted is not None:
        made.choose(subject, mode, "the recipe says so")
    elif mode == default == "static":
        made.choose(subject, mode, feature.title)
    elif mode not in (default, "off"):
        partners = ", ".join(item.feature for item in feature.required_by)
        made.choose(subject, mode, f"{partners} does not work without it")
    elif (
        mode == default
        and mode != feature.default["release"]
        and (place.cuda or "cuda" not in feature.needs)
    ):
        made.choose(subject, mode, f"profile {profile}")


def _obstacle(
    facts: Facts, feature: Feature, place: _Place, made: FeatureDecisions
) -> tuple[Conflict, str] | None:
    """What stands against having this feature here: the conflict, and the reason in short."""
    name = feature.name
    off = (Change(f"features.{name}", "off"),)
    source = addresses(facts.features.sources, feature)
    wish = Evidence(f"asked for: {name}")
    board = place.board
    lack = next((item for item in board.lacks if item.feature == name), None) if board else None
    if board is not None and lack is not None:
        reason = lack.reason.rstrip(".")
        instead = f". {lack.instead.rstrip('.')}" if lack.instead else ""
        conflict = Conflict(
            "feature-board",
            f"{name} is not available on the {board.title}",
            wish,
            Evidence(f"{board.title}: {reason}", addresses(facts.boards.sources, board)),
            f"features.{name} = 'off'{instead}",
            off,
        )
        return conflict, f"{board.title}: {reason}"
    if name in place.lacks and place.asked.get(name) != "system":
        reason = place.lacks[name]
        conflict = Conflict(
            "feature-source",
            f"Debian's source of torch {place.torch} cannot bring {name}",
            wish,
            Evidence(f"{name}: {reason}", addresses(facts.systems.sources, _debian(facts, place))),
            f"source.kind = 'git'; or features.{name} = 'off'",
            (Change("source.kind", "git"),),
        )
        return conflict, reason
    here = [item for item in feature.only if item.platform in (None, place.platform)]
    if feature.only and not any(_holds(item, place) for item in here):
        by_cuda = place.cuda and any(item.cuda != ":" for item in here)
        what = f"with CUDA {place.cuda}" if by_cuda else f"on {place.platform}"
        needed = "needs " + " or ".join(map(_in_words, here or feature.only))
        conflict = Conflict(
            "feature-platform",
            f"{name} does not exist {what}" + (f" in torch {place.torch}" if here else ""),
            wish,
            Evidence(f"{name} {needed}", source),
            f"features.{name} = 'off'",
            off,
        )
        return conflict, needed
    for need in _needs(feature, place.torch):
        if _is_off(need, place, made):
            cure = "give a cuda version" if need == "cuda" else f"features.{need} = 'on'"
            conflict = Conflict(
                "feature-needs",
                f"{name} needs {need}, which this build does not have",
                wish,
                Evidence(f"{name} needs {need}", source),
                f"{cure}; or features.{name} = 'off'",
                off,
            )
            return conflict, f"needs {need}"
    for other in feature.excludes:
        if other in place.asked and not _is_off(other, place, made):
            conflict = Conflict(
                "feature-excludes",
                f"{name} and {other} cannot be in one build",
                wish,
                Evidence(f"{name} excludes {other}", source),
                f"features.{name} = 'off'; or "
                + ("cuda = 'none'" if other == "cuda" else f"features.{other} = 'off'"),
                off,
            )
            return conflict, f"excludes {other}"
    return None


def _debian(facts: Facts, place: _Place) -> DebianBuild:
    found = entry_for(facts.systems.debian_build, place.torch)
    assert found is not None
    return found


def _holds(where: Where, place: _Place) -> bool:
    return place.torch in version_range(where.torch) and (
        not place.cuda or place.cuda in version_range(where.cuda)
    )


def _in_words(where: Where) -> str:
    spans = (("torch", where.torch), ("CUDA", where.cuda))
    limits = [f"{name} {version_range(span)}" for name, span in spans if span != ":"]
    return " and ".join([*filter(None, [where.platform]), *limits])


def _needs(feature: Feature, torch: str) -> list[str]:
    also = [item.feature for item in feature.also_needs if torch in version_range(item.torch)]
    return [*feature.needs, *also]


def _is_off(name: str, place: _Place, made: FeatureDecisions) -> bool:
    if name == "cuda":
        return not place.cuda
    return place.asked.get(name, made.modes.get(name)) == "off"


def _missing_partners(
    facts: Facts, known: Mapping[str, Feature], place: _Place, made: FeatureDecisions
) -> None:
    """What was turned off although something that is on cannot do without it."""
    for name, feature in known.items():
        for partner in feature.required_by:
            other = partner.feature
            if (
                place.torch not in version_range(partner.torch)
                or place.asked.get(name) != "off"
                or made.modes.get(other, "off") == "off"
            ):
                continue
            made.refuse(
                "feature-required",
                f"{other} does not work without {name}",
                Evidence(f"asked for: {name} = off"),
                Evidence(
                    f"torch {place.torch} with {other} cannot be imported without {name}",
                    addresses(facts.features.sources, feature),
                ),
                f"leave features.{name} out; or features.{other} = 'off'",
                (Change(f"features.{name}", ""),),
            )
    _give_way(known, made)


def _give_way(known: Mapping[str, Feature], made: FeatureDecisions) -> None:
    """A default gives way to a wish it cannot stand beside."""
    for name, feature in known.items():
        if made.modes.get(name, "off") == "off":
            continue
        for other in feature.excludes:
            if made.modes.get(other, "off") != "off" and other in known:
                made.modes[other] = "off"
                made.choose(f"feature {other}", "off", f"{name} excludes it")
                made.env.update({f"USE_{other.upper()}": "0"})
                if cache := known[other].cache:
                    made.cache[cache] = False


def _upstream(feature: Feature, platform: str) -> Mode:
    """What PyTorch's own scripts do without any switch."""
    if feature.usual_on and platform not in feature.usual_on:
        return "off"
    return feature.upstream or feature.default["release"]


def _switch(
    feature: Feature, mode: Mode, place: _Place, made: FeatureDecisions, *, explicit: bool
) -> None:
    switch: Switch | None = entry_for(feature.switch, place.torch)
    # What upstream does by itself needs no switch, and a short environment is a readable one. With
    # the system's libraries it silently goes without what it does not find.
    unsure = bool(place.lacks) and "cuda" not in feature.needs
    needs_switch = explicit or mode != _upstream(feature, place.platform) or unsure
    if switch is not None and needs_switch:
        made.env.update(getattr(switch, mode))
    # What no variable decides is not looked for: CUPTI goes with kineto, whatever its option says.
    if feature.cache and needs_switch and (switch is None or getattr(switch, mode)):
        made.cache[feature.cache] = mode != "off"
    if mode == "system":
        made.apt.extend(feature.apt)
    if mode == "static":
        made.pip.extend(feature.pip)
