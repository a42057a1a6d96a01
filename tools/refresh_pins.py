"""Refresh the snapshot of what pip takes for Pythons that new releases have left behind.

A release says which Pythons it needs, but not always the truth, and one without a wheel for an
old Python is compiled, with headers nobody installed. For every requirement that a build
environment of such a Python can have, the snapshot holds the release that pip takes, and whether
it is a wheel. A unit test looks there, so it needs no network.

    python -m tools.refresh_pins            rewrite tests/data/old_pythons.json
    python -m tools.refresh_pins --check    only say whether it is out of date (exit 1)
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version
from tools.refresh_pypi import INDEX, File, RefreshError, Web, files_of, write_atomically

from torchsmith.facts.files import Facts, shipped
from torchsmith.facts.torch import entry_for
from torchsmith.host.models import Host
from torchsmith.plan.torch import last_pip
from torchsmith.recipe.load import load_recipe
from torchsmith.recipe.matrix import expand
from torchsmith.recipe.presets import presets
from torchsmith.resolve.build import build_requires
from torchsmith.resolve.models import Resolution
from torchsmith.resolve.resolve import resolve

SNAPSHOT = Path(__file__).parent.parent / "tests" / "data" / "old_pythons.json"
PYTHONS = ("3.5", "3.6", "3.7", "3.8")
PLATFORMS = ("linux-x86_64", "linux-aarch64")
# The oldest distribution of each Python decides which wheels load: Ubuntu 16.04 has glibc 2.23.
GLIBC = 23
NOTHING = "nothing"

# Of a Python, of a requirement, of a platform: "cffi 1.14.6, a wheel".
Answers = dict[str, dict[str, dict[str, str]]]


# ------------------------------------------------------------------------- what is asked for


def requirements(facts: Facts) -> dict[str, list[str]]:
    """Everything that an environment of each old Python asks pip for."""
    found: dict[str, set[str]] = {python: {last_pip(python)} for python in PYTHONS}
    for release in facts.releases.release:
        frontend = entry_for(facts.torch.frontend, release.version)
        for python in set(release.pythons) & found.keys():
            asked = list(frontend.requires) if frontend else []
            found[python] |= {
                *build_requires(facts, release.version, python, asked, (), cmake=True)
            }
    host = Host(platform="linux-x86_64", system="debian-12")
    for preset in presets():
        recipe = load_recipe(preset.path)
        for variant in expand(recipe.recipe):
            made = resolve(variant, facts, host, recipe.files)
            if isinstance(made, Resolution) and made.python in found:
                found[made.python] |= {*made.requires}
    return {python: sorted(asked) for python, asked in found.items()}


# -------------------------------------------------------------------------------- what pip takes


def tags_of(python: str, platform: str) -> frozenset[Tag]:
    """The wheels that a Python of a platform takes, on its oldest distribution."""
    major, minor = (int(number) for number in python.split("."))
    arch = platform.partition("-")[2]
    names = [f"manylinux_2_{minor_libc}_{arch}" for minor_libc in range(5, GLIBC + 1)]
    names += [f"{old}_{arch}" for old in ("manylinux1", "manylinux2010", "manylinux2014")]
    abi = f"cp{major}{minor}" + ("m" if minor < 8 else "")
    return frozenset(
        itertools.chain(
            cpython_tags((major, minor), [abi], names),
            compatible_tags((major, minor), f"cp{major}{minor}", names),
        )
    )


def _version(file: File) -> Version | None:
    try:
        return Version(file.version or "")
    except InvalidVersion:
        return None


def _fits(file: File, python: str) -> bool:
    try:
        return SpecifierSet(file.requires_python).contains(f"{python}.99")
    except InvalidSpecifier:
        # So does pip: what it cannot read does not keep it from a file.
        return True


def _wheel_fits(file: File, tags: frozenset[Tag]) -> bool:
    try:
        return not parse_wheel_filename(file.name)[3].isdisjoint(tags)
    except InvalidWheelFilename:
        return False


def taken(files: Iterable[File], asked: Requirement, python: str, platform: str) -> str:
    """The release pip takes for a requirement, and in which form."""
    tags = tags_of(python, platform)
    forms: dict[Version, set[str]] = {}
    for file in files:
        version = _version(file)
        if version is None or version.is_prerelease or file.yanked or not _fits(file, python):
            continue
        if version not in asked.specifier:
            continue
        if file.is_wheel and _wheel_fits(file, tags):
            forms.setdefault(version, set()).add("a wheel")
        elif not file.is_wheel:
            forms.setdefault(version, set()).add("to be compiled")
    if not forms:
        return NOTHING
    newest = max(forms)
    form = "a wheel" if "a wheel" in forms[newest] else "to be compiled"
    return f"{asked.name} {newest}, {form}"


def take(listed: Callable[[str], Sequence[File]], wanted: dict[str, list[str]]) -> Answers:
    """What pip takes for everything that is asked for."""
    answers: Answers = {}
    for python, texts in wanted.items():
        answers[python] = {}
        for text in texts:
            asked = Requirement(text)
            if asked.marker is not None and not asked.marker.evaluate({"python_version": python}):
                continue
            answers[python][text] = {
                platform: taken(listed(asked.name), asked, python, platform)
                for platform in PLATFORMS
            }
    return answers


# --------------------------------------------------------------------------------- the snapshot


def differences(before: Answers, after: Answers) -> Iterator[str]:
    """Say, requirement by requirement, how two snapshots differ."""
    for python in sorted(before.keys() | after.keys()):
        then, now = before.get(python, {}), after.get(python, {})
        for text in sorted(then.keys() | now.keys()):
            if then.get(text) != now.get(text):
                yield f"Python {python}: {text}: {now.get(text, 'no longer asked for')}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; 0: done or current, 1: out of date (--check), 2: it failed."""
    parser = argparse.ArgumentParser(description="Refresh the snapshot of old Pythons' packages.")
    parser.add_argument("--index", default=INDEX, help="simple index (default: %(default)s)")
    parser.add_argument("--snapshot", type=Path, default=SNAPSHOT, help="the file to write")
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args(arguments)
    web, pages = Web(), dict[str, Sequence[File]]()

    def listed(project: str) -> Sequence[File]:
        name = project.lower().replace("_", "-")
        if name not in pages:
            pages[name] = files_of(web, options.index, name)
        return pages[name]

    try:
        answers = take(listed, requirements(shipped()))
    except RefreshError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    before = json.loads(options.snapshot.read_text()) if options.snapshot.exists() else {}
    changes = [*differences(before, answers)]
    print("\n".join(changes) or "nothing has changed")
    if options.check:
        return 1 if changes else 0
    text = json.dumps(answers, indent=1, sort_keys=True) + "\n"
    write_atomically(options.snapshot, text.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
