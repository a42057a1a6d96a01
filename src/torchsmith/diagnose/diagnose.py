"""From what was seen in a log to what it means: the first real cause first."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from torchsmith.diagnose.knowledge import Knowledge, shipped
from torchsmith.diagnose.models import Cause, Condition, Failure, Fix, Standing
from torchsmith.diagnose.scan import Hit, Line, Seen, only_tried, scan_lines
from torchsmith.engine.failure import explain, fatal_line
from torchsmith.facts.cuda import driver_standing, find_arch, find_toolkit
from torchsmith.facts.files import shipped as shipped_facts
from torchsmith.facts.gpus import find_gpu
from torchsmith.facts.ranges import version_range
from torchsmith.host.models import Host
from torchsmith.redact import redacted

_STANDINGS = ("cause", "symptom", "warning", "note", "kind")
# A line that calls itself a warning ranks below those that end a program.
_MILD = re.compile(r"\b\w*Warning: |\bWARN(?:ING)?\b(?!S)|^W: |\bwarning: |\[W\d* |^W\d{4} ")
# Except this warning, which is the reason why a GPU cannot be used.
_CUDA_INIT = "Warning: CUDA initialization"
_LONGEST = 400
_GAP = re.compile(r"\{(\w+)(?:\|([^{}]*))?\}")


@dataclass(frozen=True, slots=True)
class NamedCause:
    """A reason; `certain` where the machine or the log shows that it is the one."""

    text: str
    cure: str
    certain: bool


@dataclass(frozen=True, slots=True)
class Named:
    """A failure that is known, with the names of this case filled in.

    `after` is the failure it only follows from; empty if it stands for itself. A symptom says what
    the log shows, and not why; a kind says of an end that nothing else explains what kind it is.
    """

    id: str
    area: str
    title: str
    meaning: str
    cure: str
    causes: tuple[NamedCause, ...]
    lines: tuple[Line, ...]
    source: str
    after: str
    fix: Fix | None
    standing: Standing


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What a log says; the best answer first. Without one, the first error there is.

    `ended` is how the log ends: `well` if it says so (`well` is the line), `quiet` if nothing in
    it sounds like a failure. `overcome` are failures it recovered from.
    """

    named: tuple[Named, ...]
    first_error: tuple[Line, ...]
    lines: int
    ended: Literal["well", "quiet", "badly"] = "badly"
    well: Line | None = None
    overcome: tuple[Named, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The same as plain data."""
        table = asdict(self)
        for kind in ("named", "overcome"):
            for named, shown in zip(getattr(self, kind), table[kind], strict=True):
                fix = named.fix
                shown["fix"] = fix and {"key": fix.key, "how": fix.how, "value": fix.value}
        return {"known": bool(self.named), **table}


def diagnose(
    lines: Iterable[str], host: Host | None = None, *, versions: Mapping[str, str] | None = None
) -> Diagnosis:
    """Name what happened in a log."""
    return explained(scan_lines(lines), host, versions=versions)


def explained(
    seen: Seen, host: Host | None = None, *, versions: Mapping[str, str] | None = None
) -> Diagnosis:
    """Name what was seen. `versions` are those of torch, cuda and python, where they are known."""
    known = shipped()
    matched = {
        failure.id: hits
        for failure in known.failures.values()
        if _possible(failure, versions or {}) and (hits := _hits(failure, seen))
    }
    past = {id_ for id_ in matched if _is_overcome(known.failures[id_], matched[id_], seen)}
    above = {
        hidden: id_
        for id_ in matched.keys() - past
        for hidden in known.failures[id_].hides
        if hidden in matched
    }

    place = {id_: number for number, id_ in enumerate(matched)}

    def warns(id_: str) -> bool:
        return all(_MILD.search(hit.line.text) for hit in matched[id_])

    elsewhere = any(known.area_of[id_] != "cuda" and not warns(id_) for id_ in matched)

    def mild(id_: str) -> bool:
        hits = matched[id_]
        return warns(id_) and (elsewhere or not any(_CUDA_INIT in hit.line.text for hit in hits))

    def order(id_: str) -> tuple[bool, int, bool, int, int]:
        failure = known.failures[id_]
        first = matched[id_][0].line.number
        return id_ in above, _STANDINGS.index(failure.standing), mild(id_), first, place[id_]

    above |= _other_names(sorted(matched.keys() - past - above.keys(), key=order), matched)

    def named(ids: Iterable[str]) -> tuple[Named, ...]:
        return tuple(
            _named(known.failures[id_], known.area_of[id_], matched[id_], seen, host, above)
            for id_ in sorted(ids, key=order)
        )

    left = named(matched.keys() - past)
    ended: Literal["well", "quiet", "badly"] = "badly"
    standings = {item.standing for item in left if not item.after}
    if standings <= {"warning", "note"}:
        patterns = [text for item in left for text in known.failures[item.id].any_of]
        loud = "warning" in standings or seen.troubled_besides(patterns)
        ended = "well" if seen.well else "badly" if loud else "quiet"
    if ended != "badly":
        # The other names of a warning tell nothing new.
        left = tuple(item for item in left if not item.after)
    # A warning does not end a program: what came after it may.
    unknown = ended == "badly" and standings <= {"warning", "note"}
    error = _first_error(seen) if unknown else ()
    if unknown and (kind := _kind(error, known)):
        failure, hit = kind
        if not any(line.number == hit.line.number for item in left for line in item.lines):
            seen.hits.update({text: [hit] for text in failure.any_of})
            left = (_named(failure, known.area_of[failure.id], [hit], seen, host, {}), *left)
    return Diagnosis(
        left,
        () if left else error,
        seen.lines,
        ended,
        _shown(seen.well, seen) if seen.well and ended == "well" else None,
        named(past),
    )


def _kind(error: Sequence[Line], known: Knowledge) -> tuple[Failure, Hit] | None:
    """The kind of failure that the fatal one of these lines shows, and that line."""
    fatal = fatal_line([line.text for line in error])
    if fatal is None:
        return None
    line = error[fatal]
    for failure in known.kinds:
        for text in failure.any_of:
            if found := re.search(text, line.text):
                groups = {name: value for name, value in found.groupdict().items() if value}
                return failure, Hit(line, groups)
    return None


def _other_names(ids: Iterable[str], matched: Mapping[str, list[Hit]]) -> dict[str, str]:
    """The failures that only repeat what an earlier one says of the same lines."""
    named_lines: dict[str, frozenset[int]] = {}
    again: dict[str, str] = {}
    for id_ in ids:
        lines = frozenset(hit.line.number for hit in matched[id_])
        earlier = next((other for other, before in named_lines.items() if lines <= before), "")
        if earlier:
            again[id_] = earlier
        else:
            named_lines[id_] = lines
    return again


def _is_overcome(failure: Failure, hits: list[Hit], seen: Seen) -> bool:
    """Whether the log goes on to say that this came right after all."""
    last = max(
        *(hit.line.number for hit in hits), *(seen.last.get(text, 0) for text in failure.any_of), 0
    )
    if any(seen.last.get(text, 0) > last for text in failure.overcome_by):
        return True
    return (
        failure.standing not in {"warning", "note"}
        and seen.well is not None
        and seen.well.number > last
    )


def wants_host(seen: Seen) -> bool:
    """Whether looking at the machine could tell causes apart."""
    return any(
        any(cause.when for cause in failure.cause) and _hits(failure, seen)
        for failure in shipped().failures.values()
    )


def _possible(failure: Failure, versions: Mapping[str, str]) -> bool:
    """Whether these versions can have this failure."""
    applies = failure.applies_to
    if applies is None:
        return True
    ranges = {"torch": applies.torch, "cuda": applies.cuda, "python": applies.python}
    return all(
        version_range(span).touches(versions[name])
        for name, span in ranges.items()
        if span and versions.get(name)
    )


def _hits(failure: Failure, seen: Seen) -> list[Hit]:
    """The lines that show a failure, in their order; none if it is not shown."""
    shown = [hit for text in failure.any_of for hit in seen.hits.get(text, ())]
    needed = [seen.hits.get(text, []) for text in failure.all_of]
    if not shown or not all(needed) or any(text in seen.hits for text in failure.none_of):
        return []
    shown += [hits[0] for hits in needed]
    by_line = {hit.line.number: hit for hit in sorted(shown, key=lambda hit: hit.line.number)}
    return list(by_line.values())


def _named(
    failure: Failure,
    area: str,
    hits: list[Hit],
    seen: Seen,
    host: Host | None,
    above: Mapping[str, str],
) -> Named:
    caught: dict[str, str] = {}
    for text in (*failure.any_of, *failure.all_of):
        for hit in seen.hits.get(text, ())[:1]:
            caught = {**hit.groups, **caught}
    caught = {name: redacted(value) for name, value in _derived(caught).items()}
    fix = failure.fix
    if fix is not None and isinstance(fix.value, str):
        value = filled(fix.value, caught)
        # A change whose value was not caught is no change.
        fix = None if "{" in value else Fix(key=fix.key, how=fix.how, value=value)
    return Named(
        failure.id,
        area,
        filled(failure.title, caught),
        filled(failure.meaning, caught),
        filled(failure.cure, caught),
        _causes(failure, caught, seen, host),
        tuple(_shown(hit.line, seen) for hit in hits[:3]),
        failure.source,
        above.get(failure.id, ""),
        fix,
        failure.standing,
    )


def _causes(
    failure: Failure, caught: Mapping[str, str], seen: Seen, host: Host | None
) -> tuple[NamedCause, ...]:
    """The one that holds; else those that may."""
    verdicts = [(cause, _verdict(cause, caught, seen, host)) for cause in failure.cause]
    certain = [cause for cause, verdict in verdicts if verdict]
    possible = [cause for cause, verdict in verdicts if verdict is not False]
    return tuple(
        NamedCause(filled(cause.text, caught), filled(cause.cure, caught), bool(certain))
        for cause in certain[:1] or possible
    )


def _verdict(cause: Cause, caught: Mapping[str, str], seen: Seen, host: Host | None) -> bool | None:
    if cause.line and cause.line in seen.hits:
        return True
    answers = [holds(condition, host, caught) for condition in cause.when]
    if False in answers:
        return False
    return True if answers and None not in answers else None


def _derived(caught: dict[str, str]) -> dict[str, str]:
    """What follows from what was caught: ``compute_89`` is 8.9, and which CUDA knows it."""
    digits = re.fullmatch(r"(\d{1,2})(\d)([af]?)", caught.get("sm", ""))
    if digits is None:
        return caught
    arch = f"{digits[1]}.{digits[2]}{digits[3]}"
    known = find_arch(shipped_facts(), arch)
    cuda = {"arch_cuda": str(version_range(known.cuda))} if known else {}
    return {**caught, "arch": arch, **cuda}


def filled(text: str, caught: Mapping[str, str]) -> str:
    """A text with what was caught in its gaps; a gap that has nothing stays."""
    return _GAP.sub(lambda gap: caught.get(gap[1], gap[2] if gap[2] is not None else gap[0]), text)


def _first_error(seen: Seen) -> tuple[Line, ...]:
    """The lines that say why, of a log that nothing known explains."""
    near = {line.number: line for line in (*seen.suspects, *seen.tail) if not only_tried(line.text)}
    cut = {number: _cut(redacted(line.text.strip())) for number, line in near.items()}
    first = {cut[number]: number for number in sorted(near, reverse=True)}
    found = explain(cut[number] for number in sorted(near))
    return tuple(_shown(near[first[text]], seen) for text in found if text in first)


def _shown(line: Line, seen: Seen) -> Line:
    """A line as it is quoted: as it was said, without secrets, of a length to read."""
    text = redacted(seen.original.get(line.number, line.text).strip())
    return Line(line.number, _cut(text))


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


# Docker's own is 64 MB; DataLoader workers hand every batch over through it.
LITTLE_SHM = 1 << 30
# What one compiler of torch's larger files takes.
LITTLE_MEMORY_A_CORE = 2 << 30


def holds(condition: Condition, host: Host | None, caught: Mapping[str, str]) -> bool | None:
    """Whether it is so; None where this machine does not tell."""
    if host is None:
        return None
    match condition:
        case "driver-older-than-cuda":
            return _driver_older(host, caught)
        case "driver-new-enough":
            older = _driver_older(host, caught)
            return None if older is None else not older
        case "driver-not-answering":
            # The kernel has a driver, and nvidia-smi cannot talk to it.
            return None if host.driver is None else not host.gpus
        case "gpu-without-forward-compatibility":
            kinds = {
                gpu.kind for item in host.gpus if (gpu := find_gpu(shipped_facts(), item.name))
            }
            return bool(kinds & {"geforce", "workstation"}) if kinds else None
        case "little-shared-memory":
            return None if host.shm_bytes is None else host.shm_bytes < LITTLE_SHM
        case "little-memory":
            memory = host.memory_bytes
            return None if memory is None else memory < host.cores * LITTLE_MEMORY_A_CORE


def _driver_older(host: Host, caught: Mapping[str, str]) -> bool | None:
    """Whether the driver is older than the CUDA that is used asks for."""
    installed = [item.cuda for item in host.torches if item.cuda]
    wanted = [caught.get("cuda", ""), *installed, *(item.version for item in host.cuda)]
    for version in filter(None, wanted):
        try:
            toolkit = find_toolkit(shipped_facts(), ".".join(version.split(".")[:2]))
        except ValueError:
            continue
        if toolkit is not None and host.driver is not None:
            return driver_standing(toolkit, host.driver) == "older"
    return None
