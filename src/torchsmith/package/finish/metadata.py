"""Rewriting a wheel's metadata: version, requirements, tags."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import parse_tag
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from torchsmith.errors import UsageError

_ASSIGNED = r"(?m)^(__version__\s*(?::\s*\w+\s*)?=\s*)(['\"]){}\2"


def labelled(version: str, label: str) -> str:
    """2.6.0+cpu and cu126.sm86 -> 2.6.0+cu126.sm86; `none` leaves the label out."""
    public = Version(version).public
    if label == "none":
        return public
    try:
        return str(Version(f"{public}+{label}"))
    except InvalidVersion:
        raise UsageError(
            f"{label!r} is not a label of a version",
            "Letters and digits, parted by dots: cu126.sm86, or none.",
        ) from None


class Fields:
    """The head of a METADATA or WHEEL file, field by field; its body stays as it is."""

    def __init__(self, content: bytes) -> None:
        head, blank, body = re.split(rb"(\r?\n\r?\n|\Z)", content, maxsplit=1)[:3]
        self._body = (blank + body) or b"\n"
        lines = head.decode("utf-8", "surrogateescape").splitlines()
        # A line that starts with a blank goes on with the field before it.
        self.lines: list[str] = []
        for line in lines:
            if line[:1] in (" ", "\t") and self.lines:
                self.lines[-1] += f"\n{line}"
            else:
                self.lines.append(line)

    def all(self, name: str) -> list[str]:
        """The values of a field."""
        return [value.strip() for key, value in self._pairs() if key.lower() == name.lower()]

    def set(self, name: str, values: Iterable[str]) -> None:
        """Replace a field, where it first was; at the end if it was not there."""
        pairs = self._pairs()
        at = next((i for i, (key, _) in enumerate(pairs) if key.lower() == name.lower()), None)
        kept = [
            line
            for line, (key, _) in zip(self.lines, pairs, strict=True)
            if key.lower() != name.lower()
        ]
        at = len(kept) if at is None else at
        self.lines = [*kept[:at], *(f"{name}: {value}" for value in values), *kept[at:]]

    def content(self) -> bytes:
        """The whole file again."""
        return "\n".join(self.lines).encode("utf-8", "surrogateescape") + self._body

    def _pairs(self) -> list[tuple[str, str]]:
        parted = (line.partition(":") for line in self.lines)
        return [(key, value) for key, _, value in parted]


def new_requirements(
    requires: Iterable[str], *, torch: str, uses_torch: bool, more: Iterable[str]
) -> list[str]:
    """Requirements with torch held to one version, and what else is needed."""
    _is_version(torch)
    found: list[str] = []
    pinned = False
    added = list(more)
    replaced = {canonicalize_name(Requirement(line).name) for line in added}
    for line in requires:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            found.append(line)
            continue
        name = canonicalize_name(requirement.name)
        if name in replaced:
            continue
        if name == "torch" and torch:
            _fits(requirement, torch)
            extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
            marker = f"; {requirement.marker}" if requirement.marker else ""
            found.append(f"torch{extras}=={torch}{marker}")
            pinned = pinned or requirement.marker is None
        else:
            found.append(line)
    if torch and uses_torch and not pinned:
        found.append(f"torch=={torch}")
    return [*found, *added]


def _is_version(torch: str) -> None:
    try:
        Version(torch or "0")
    except InvalidVersion:
        raise UsageError(f"{torch!r} is not a version of torch", "Such as 2.6.0+cpu.") from None


def _fits(requirement: Requirement, torch: str) -> None:
    """A wheel that asks for another release was built against that one; labels may differ."""
    public = Version(torch).public
    plain = ",".join(re.sub(r"\+[\w.]+", "", str(item)) for item in requirement.specifier)
    if not SpecifierSet(plain).contains(public, prereleases=True):
        raise UsageError(
            f"it asks for {requirement} and is to be held to torch {torch}",
            "It was built against another torch: build it again, or leave --torch out.",
        )


def retagged(tags: Iterable[str], platform: str) -> list[str]:
    """Tag lines of WHEEL for another platform, which may be several with dots between."""
    starts = dict.fromkeys(tag.rpartition("-")[0] for tag in tags)
    return sorted({str(tag) for start in starts for tag in parse_tag(f"{start}-{platform}")})


def file_name(old: str, version: str, platform: str) -> str:
    """NAME-VERSION[-BUILD]-PYTHON-ABI-PLATFORM.whl, with these two changed."""
    name, _, *middle, _ = old.removesuffix(".whl").split("-")
    return "-".join([name, version.replace("-", "_"), *middle, platform]) + ".whl"


def moved(name: str, old: str, new: str) -> str:
    """A file of the wheel where NAME-VERSION.dist-info, and .data, have another version."""
    first, slash, rest = name.partition("/")
    for end in (".dist-info", ".data"):
        if first == f"{old}{end}":
            return f"{new}{end}{slash}{rest}"
    return name


def version_modules(files: Iterable[str]) -> list[str]:
    """Modules that may tell the version: torch/version.py, demo/__init__.py, demo.py."""
    return [
        name
        for name in files
        if re.fullmatch(r"[^/]+/(version|_version|__init__)\.py|[^/]+\.py", name)
    ]


def with_version(contents: Mapping[str, bytes], old: str, new: str) -> dict[str, bytes]:
    """Those of some Python files that say `__version__ = OLD`, saying NEW."""
    pattern = re.compile(_ASSIGNED.format(re.escape(old)))
    rewritten: dict[str, bytes] = {}
    for name, content in contents.items():
        text = content.decode("utf-8", "surrogateescape")
        changed = pattern.sub(lambda found: f"{found[1]}{found[2]}{new}{found[2]}", text)
        if changed != text:
            rewritten[name] = changed.encode("utf-8", "surrogateescape")
    return rewritten
