"""Why a solver found nothing, and what to do: its words are read, not its mind.

Read are those of rattler (pixi, rattler-build), libmamba (conda, mamba), and of conda's older
solver, which conda-build repeats.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchsmith.errors import UsageError

# Package name -> "version build" of each there is.
Available = Mapping[str, Sequence[str]]

_SPEC = r"([\w.-]+(?:[ =<>!~].*?)?)"
_LACKING = (
    # rattler
    re.compile(rf"[└├]─\s+{_SPEC}, for which no candidates were found"),
    re.compile(rf"No candidates were found for {_SPEC}\.$"),
    # libmamba
    re.compile(rf"nothing provides (?:requested )?{_SPEC}(?: needed by (\S+))?$"),
    re.compile(rf"[└├]─\s+{_SPEC}, which (?:does not exist|is missing)"),
    re.compile(rf"[└├]─\s+{_SPEC} does not exist"),
)
# conda-build: Unsatisfiable dependencies for platform linux-64: {MatchSpec("magma-cuda110")}
_OLD = re.compile(r"Unsatisfiable dependencies for platform \S+: \{(.+)\}")
_QUOTED = re.compile(r"""['"]([^'"]+)['"]""")
_LISTED = ("PackagesNotFoundError", "ResolvePackageNotFound")
_WANTED = re.compile(r"[└├]─\s+(\S+ \S+)(?: would require| requires)")
_TAKEN = re.compile(rf"[└├]─\s+{_SPEC}, which conflicts with the versions reported above")
_FEW = 6


@dataclass(frozen=True, slots=True)
class Explained:
    """One thing that was missing: which package, who asked for it, what that means, the cure."""

    name: str
    spec: str
    wanted_by: str
    meaning: str
    cure: str


def explain(text: str, available: Available | None = None) -> tuple[Explained, ...]:
    """Every package a solver says it found none of, each with its cure."""
    known = available or {}
    found: dict[str, Explained] = {}
    for spec, wanted_by in _lacking(text):
        name = re.split(r"[ =<>!~\[]", spec, maxsplit=1)[0]
        if name not in found:
            meaning, cure = _judged(name, spec, known)
            found[name] = Explained(name, spec.removesuffix(" *"), wanted_by, meaning, cure)
    return tuple(found.values())


def _lacking(text: str) -> Iterator[tuple[str, str]]:
    wanted, listing = "", False
    for line in text.splitlines():
        if match := _WANTED.search(line):
            wanted = match[1]
        if match := _OLD.search(line):
            yield from ((spec, "") for spec in _QUOTED.findall(match[1]))
            continue
        if any(word in line for word in _LISTED):
            listing = True
            continue
        if listing and (match := re.match(r"\s+- (.+?)\s*$", line)):
            yield match[1], ""
            continue
        if match := _TAKEN.search(line):
            yield match[1], wanted
            continue
        for pattern in _LACKING:
            if match := pattern.search(line.rstrip()):
                owner = match[2] if pattern.groups > 1 and match[2] else wanted
                yield match[1].strip(), owner
                break


def _judged(name: str, spec: str, known: Available) -> tuple[str, str]:
    versions = spec.removeprefix(name).strip(" =") or "any"
    if name == "__cuda":
        return (
            f"there is no NVIDIA driver here that runs CUDA {versions}",
            "Install a newer driver; or, to install for another machine, set "
            f"CONDA_OVERRIDE_CUDA={_number(versions) or '12.0'}; or ask for a CPU build"
            + _builds(known, "pytorch", "cpu"),
        )
    if name == "__cuda_arch":
        return (
            f"no GPU is seen here that is of compute capability {versions}",
            "Use a client that knows __cuda_arch; or, to install for another machine, set "
            f"CONDA_OVERRIDE_CUDA_ARCH={_number(versions) or '8.0'}; or ask for a CPU build"
            + _builds(known, "pytorch", "cpu"),
        )
    if name == "__glibc":
        return (
            f"this system's glibc is older than {_number(versions)}",
            "Use a newer system, or build on an older one: `system` in the recipe.",
        )
    if name.startswith("__"):
        return f"this machine has no {name.removeprefix('__')} {versions}", "Use one that has."
    there = known.get(name, ())
    if name in ("python", "python_abi"):
        pythons = ", ".join(_pythons(known))
        return (
            f"the channels have no Python {versions}"
            if not there
            else f"Python {versions} does not fit",
            (f"There is Python {pythons}: ask for one of them" if pythons else "Add a channel")
            + ", or add a channel with others: -c conda-forge.",
        )
    if there:
        return (
            f"the channels have no {name} {versions}",
            f"There is {', '.join(there[:_FEW])}: ask for one of them, or build the other.",
        )
    missing = f"none of the channels has {name}"
    if name.startswith("magma-cuda"):
        return (
            missing,
            "Name a channel that has it: -c CHANNEL; or build it: packages.magma = true in the "
            "recipe, then publish it to the channel torch is in.",
        )
    return missing, "Name a channel that has it: -c conda-forge, or your own."


def _number(versions: str) -> str:
    match = re.search(r"\d+(?:\.\d+)*", versions)
    return match[0] if match else ""


def _builds(known: Available, name: str, word: str) -> str:
    builds = [text for text in known.get(name, ()) if word in text]
    return f": {name}={builds[0].replace(' ', '=')}" if builds else "."


def _pythons(known: Available) -> list[str]:
    numbers = {".".join(text.split(" ")[0].split(".")[:2]) for text in known.get("python", ())}
    return sorted(numbers, key=lambda text: [int(part) for part in text.split(".")])


def read_channels(folders: Sequence[Path]) -> dict[str, list[str]]:
    """What channels on this disk have, by their repodata."""
    found: dict[str, set[str]] = {}
    for listing in _listings(folders):
        try:
            table = json.loads(listing.read_bytes())
            for kind in ("packages", "packages.conda"):
                for record in table.get(kind, {}).values():
                    found.setdefault(record["name"], set()).add(
                        f"{record['version']} {record['build']}"
                    )
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UsageError(f"{listing} cannot be read: {error}", "Index it again.") from error
    return {name: sorted(texts, reverse=True) for name, texts in found.items()}


def _listings(folders: Sequence[Path]) -> Iterator[Path]:
    for folder in folders:
        listings = sorted(folder.glob("*/repodata.json"))
        if not listings:
            raise UsageError(f"{folder} is not a conda channel", "It has no SUBDIR/repodata.json.")
        yield from listings
