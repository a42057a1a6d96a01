"""A plan with a lock: it takes the very files that were taken when the lock was made.

A lock names what each step takes from elsewhere: Python packages with their sha256, source trees
with their hash (and commit), base images with their digest. A plan with a lock asks for exactly
those, and so it has keys of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from msgspec import Struct, structs
from msgspec.structs import replace

from torchsmith.errors import UsageError
from torchsmith.plan.attest import Attest
from torchsmith.plan.build import with_keys
from torchsmith.plan.models import Fetch, Plan, Step, Task, digest
from torchsmith.plan.shell import plain_name, reported, sh
from torchsmith.recipe.toml import toml_lines

FORMAT = 1
FOLDER = "lock"
# The file of a plan with the lock that it follows.
RECORD = f"{FOLDER}/torchsmith.lock"
_FROM = re.compile(r"^FROM (\S+)(?: AS (\S+))?$", re.MULTILINE)
_EXACT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?(===?[A-Za-z0-9.+!_*-]+)")
_HINT = "Run `torchsmith lock` again; --no-lock goes without."


class LockError(UsageError):
    """A lock that cannot be read, or was made for something else."""


class Package(Struct, frozen=True):
    """A file that pip took, its address and its hash."""

    name: str
    version: str
    sha256: str
    url: str = ""


class Install(Struct, frozen=True):
    """One line of a step that calls pip: what it asked for, and what it took."""

    step: str
    asked: tuple[str, ...]
    packages: tuple[Package, ...] = ()


class Source(Struct, frozen=True, omit_defaults=True):
    """A source tree: a hash of the request, and what was fetched."""

    step: str
    asked: str
    tree: str
    kind: str = ""
    url: str = ""
    commit: str = ""
    version: str = ""
    sha256: str = ""


class Image(Struct, frozen=True):
    """A base image with its registry's digest."""

    name: str
    digest: str


class Lock(Struct, frozen=True):
    """Everything a plan takes from elsewhere."""

    format: int = FORMAT
    install: tuple[Install, ...] = ()
    source: tuple[Source, ...] = ()
    image: tuple[Image, ...] = ()

    def toml(self) -> str:
        """The lock as a file."""
        lines = ["# Written by `torchsmith lock`: what a build of this recipe may take."]
        lines += toml_lines({"format": self.format})
        for name, items in (("source", self.source), ("image", self.image)):
            for item in items:
                fields = {key: value for key, value in structs.asdict(item).items() if value}
                lines += ["", f"[[{name}]]", *toml_lines(fields)]
        for install in self.install:
            named = {"step": install.step, "asked": install.asked}
            lines += ["", "[[install]]", *toml_lines(named)]
            for package in install.packages:
                lines += ["[[install.packages]]", *toml_lines(structs.asdict(package))]
        return "\n".join(lines) + "\n"


def asked_of(step: Step) -> str:
    """A hash of what a step is to fetch."""
    assert step.task is not None
    return digest(step.task.text.encode())


def is_locked_source(step: Step) -> bool:
    """Whether a step fetches a source from elsewhere, not from the recipe's own folder."""
    return step.source is not None and step.source.kind not in ("folder", "bundle")


def base_images(files: Mapping[str, bytes]) -> Iterator[str]:
    """The images that Dockerfiles of a plan start from, each once."""
    seen: set[str] = set()
    for name, content in files.items():
        if not name.rpartition("/")[2].startswith("Dockerfile"):
            continue
        stages = set()
        for image, stage in _FROM.findall(content.decode()):
            if not (image in stages or image in seen or "@" in image or "$" in image):
                seen.add(image)
                yield image
            stages.add(stage)


def with_lock(plan: Plan, lock: Lock) -> Plan:
    """The plan that takes what a lock names and nothing else."""
    files = {**plan.files, RECORD: lock.toml().encode()}
    steps = [_locked(step, lock, files) for step in plan.steps]
    digests = {item.name: item.digest for item in lock.image}
    if loose := [name for name in base_images(plan.files) if name not in digests]:
        raise LockError(f"the lock does not name the base image {loose[0]}", _HINT)

    def pinned(found: re.Match[str]) -> str:
        name = found[1]
        return found[0].replace(name, f"{name}@{digests[name]}", 1) if name in digests else found[0]

    for name, content in plan.files.items():
        if name.rpartition("/")[2].startswith("Dockerfile"):
            files[name] = _FROM.sub(pinned, content.decode()).encode()
    return with_keys(replace(plan, steps=tuple(steps), files=files), {})


def _locked(step: Step, lock: Lock, files: dict[str, bytes]) -> Step:
    if is_locked_source(step):
        return _locked_source(step, lock)
    if isinstance(step.arguments, Attest) and lock.image:
        images = tuple((item.name, item.digest) for item in lock.image)
        return replace(step, task=Task("attest", replace(step.arguments, images=images)))
    return _locked_packages(step, lock, files)


def _locked_source(step: Step, lock: Lock) -> Step:
    found = next((item for item in lock.source if item.step == step.id), None)
    if found is None:
        raise LockError(f"the lock does not name what {step.id} brings", _HINT)
    if found.asked != asked_of(step):
        raise LockError(f"{step.id} asks for another source than the lock was made for", _HINT)
    fetch = step.arguments
    assert isinstance(fetch, Fetch)
    source = fetch.source
    if source.commit and found.commit not in ("", source.commit):
        raise LockError(
            f"{step.id} is pinned to the commit {source.commit}, the lock names {found.commit}",
            _HINT,
        )
    if found.commit:
        source = replace(source, commit=found.commit)
    return replace(step, task=Task("fetch", replace(fetch, source=source, tree=found.tree)))


def _locked_packages(step: Step, lock: Lock, files: dict[str, bytes]) -> Step:
    mine = [item for item in lock.install if item.step == step.id]
    lines = [line for line in step.commands if reported(line)]
    # What is installed beside a torch is known only once that torch is compiled.
    if not lines or (not mine and not step.pip):
        return step
    if len(mine) != len(lines):
        raise LockError(f"the lock does not name what pip installs for {step.id}", _HINT)
    inputs = list(step.inputs)
    commands: list[str] = []
    for line in step.commands:
        parts = reported(line)
        if parts is None:
            commands.append(line)
            continue
        install = mine.pop(0)
        if install.asked != tuple(parts[1]):
            raise LockError(
                f"{step.id} asks pip for {' '.join(parts[1])}, the lock was made for "
                f"{' '.join(install.asked)}",
                _HINT,
            )
        if wrong := _contradicted(install):
            raise LockError(f"{step.id} asks pip for {wrong}, the lock names another", _HINT)
        name = f"{FOLDER}/{plain_name(step.id)}-{len(inputs) - len(step.inputs) + 1}.txt"
        if install.packages:
            inputs.append(name)
            files[name] = requirements(install.packages).encode()
        commands += _lines(line, parts[0], parts[1], name, install)
    return replace(step, commands=tuple(commands), inputs=tuple(inputs))


def _contradicted(install: Install) -> str:
    """The first exact requirement that the lock contradicts; empty if there is none."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet  # Few plans have a lock.
    from packaging.utils import canonicalize_name

    versions = {canonicalize_name(item.name): item.version for item in install.packages}
    for word in install.asked:
        if found := _EXACT.fullmatch(word):
            version = versions.get(canonicalize_name(found[1]), "")
            try:
                # 2.6.0+cpu and 2.6 are what `==2.6.0` asks for.
                met = bool(version) and SpecifierSet(found[2], prereleases=True).contains(version)
            except InvalidSpecifier:
                met = False
            if not met:
                return word
    return ""


def is_lock(name: str) -> bool:
    """Whether a file of a plan lists locked packages for pip."""
    return name.startswith(f"{FOLDER}/")


def requirements(packages: tuple[Package, ...]) -> str:
    """Requirements for pip: one version of each package, and one file of that."""
    lines = [f"{item.name}=={item.version} --hash=sha256:{item.sha256}\n" for item in packages]
    return "".join(lines)


def _lines(line: str, report: str, asked: list[str], name: str, install: Install) -> Iterator[str]:
    pip = [line.partition(" ")[0], "-m", "pip", "install", "--quiet"]
    if install.packages:
        words = [*pip, "--report", report, *(asked[:2] if asked[0] == "--index-url" else ())]
        words += ["--no-deps", "--require-hashes"]
        if all(item.url.endswith(".whl") for item in install.packages):
            # Nothing is built, so nothing takes part that has no hash in the lock.
            words += ["--only-binary", ":all:"]
        yield sh(*words, "--requirement", name)
    # A wheel built here has no hash yet; the shell expands its pattern.
    if local := [word for word in asked if word.endswith(".whl")]:
        yield " ".join([sh(*pip, "--no-deps", "--no-index"), *local])
