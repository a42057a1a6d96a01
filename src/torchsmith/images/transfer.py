"""Pushing and pulling images; the journal keeps their digests.

The registry is asked before and after a push, so that success means that the image is there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torchsmith.engine.journals import journal_of
from torchsmith.engine.process import heeding_signals
from torchsmith.engine.store import Store
from torchsmith.errors import (
    ContainerToolError,
    InterruptedRunError,
    OutputError,
    RegistryError,
    TorchsmithError,
    UsageError,
)
from torchsmith.images.reference import Reference, at_registry, is_loopback, reference
from torchsmith.images.registry import Manifest, Registry, find_login, refused
from torchsmith.images.select import at_recipes_registry, made_images
from torchsmith.images.tools import ContainerTool, ImageInfo
from torchsmith.programs import OnLine
from torchsmith.recipe.models import Recipe


class Record:
    """A run of the journal; each image in it is a step whose key is the registry's digest."""

    def __init__(self, store: Path | None, what: str, recipe: str = "") -> None:
        self._journal = journal_of(Store(store))
        self._run = self._journal.begin(what, recipe)

    def add(self, name: str, digest: str, title: str) -> None:
        """Note an image by the name that means just it."""
        pinned = str(reference(name).at(digest))
        self._journal.step(self._run, pinned, "done", key=digest, title=title)

    def end(self, error: BaseException | None) -> None:
        """Note how it ended."""
        if error is None:
            self._journal.end(self._run, "done")
        elif isinstance(error, TorchsmithError) and not isinstance(error, InterruptedRunError):
            self._journal.end(self._run, "failed", error.message)
        else:
            self._journal.end(self._run, "interrupted")
        self._journal.close()


@contextlib.contextmanager
def recorded(store: Path | None, what: str, recipe: str = "") -> Iterator[Record]:
    """A run of the journal around pushing or pulling."""
    record = Record(store, what, recipe)
    try:
        with heeding_signals():
            yield record
    except BaseException as error:
        record.end(error)
        raise
    record.end(None)


Action = Literal["pushed", "same", "would push"]
# What tools say, in lower case.
_DENIED = ("unauthorized", "denied", "authentication required", "insufficient_scope", "forbidden")
_NO_TLS = ("server gave http response to https client",)
_UNTRUSTED = ("x509:", "certificate")


@dataclass(frozen=True, slots=True)
class Pushed:
    """What became of one push; `digest` is the registry's, of bytes that never change."""

    image: str
    name: str
    action: Action
    digest: str = ""

    @property
    def pinned(self) -> str:
        """The name by which nothing else can be pulled."""
        return str(reference(self.name).at(self.digest)) if self.digest else self.name


def targets(what: str, to: str, recipe: Recipe | None) -> dict[str, Reference]:
    """Where each image goes: those of a recipe keep their names at a registry."""
    if recipe is None:
        return {what: target(what, to)}
    return {
        made.name: target(at_recipes_registry(recipe, made.name, to), "")
        for made in made_images(recipe)
    }


def target(image: str, to: str) -> Reference:
    """Where an image goes: the name given, or its own where that names a registry."""
    if to:
        return at_registry(to)
    own = reference(image)
    if not own.registry or own.registry == "localhost":
        raise UsageError(
            f"{image} does not say which registry it goes to",
            "Name it: --to registry.example.org/lab/torch:2.6 (publish.registry in a recipe).",
        )
    return at_registry(image)


def push(
    tool: ContainerTool,
    image: str,
    to: Reference,
    *,
    replace: bool = False,
    insecure: bool = False,
    dry_run: bool = False,
    on_line: OnLine | None = None,
) -> Pushed:
    """Push an image; a tag that means something else already is left alone unless told."""
    if to.digest:
        raise UsageError(f"{to} names a digest, which cannot be chosen", "Name a tag instead.")
    info = tool.inspect(image)
    login = find_login(tool.name, to.registry, to.repository)
    registry = Registry(to.registry, login, insecure=insecure)
    there = registry.manifest(to)
    if there is not None:
        if is_same(info, there):
            return Pushed(image, str(to), "same", there.digest)
        if not replace:
            raise OutputError(
                f"{to} already exists, and is another image ({there.digest[:19]}…)",
                "Take another tag; or push with `torchsmith image push … --replace`, and whoever "
                "pulls that tag gets this one.",
            )
    if dry_run:
        return Pushed(image, str(to), "would push")
    tool.tag(image, str(to))
    try:
        digest = tool.push(str(to), on_line, insecure=insecure or is_loopback(to.registry))
    except ContainerToolError as error:
        raise _explained(error, to, logged_in=login is not None) from None
    found = registry.manifest(to)
    if found is None or found.digest != digest:
        has = "nothing" if found is None else found.digest
        raise RegistryError(
            f"{tool.name} says it pushed {digest}, and {to.registry} has {has} as {to}",
            "Somebody else may have pushed the same tag just now: push again under another tag.",
        )
    return Pushed(image, str(to), "pushed", digest)


def push_all(
    tool: ContainerTool,
    wanted: Mapping[str, Reference],
    *,
    store: Path | None,
    recipe: str = "",
    replace: bool = False,
    insecure: bool = False,
    dry_run: bool = False,
    on_line: OnLine | None = None,
) -> list[Pushed]:
    """Push several images; the journal has the digest of each as soon as it is there."""
    if dry_run:
        return [
            push(tool, image, to, replace=replace, insecure=insecure, dry_run=True)
            for image, to in wanted.items()
        ]
    done: list[Pushed] = []
    with recorded(store, f"push {', '.join(map(str, wanted.values()))}", recipe) as record:
        for image, to in wanted.items():
            made = push(tool, image, to, replace=replace, insecure=insecure, on_line=on_line)
            record.add(made.name, made.digest, f"Push {image} to {to}")
            done.append(made)
    return done


def is_same(info: ImageInfo, there: Manifest) -> bool:
    """Whether a registry's manifest is of this image.

    Compressed again, the same layers have other digests; the configuration's digest is the image's
    id. Where docker keeps images as containerd does, the manifest's digest is.
    """
    mine = {f"sha256:{info.id}", *(name.rpartition("@")[2] for name in info.digests)}
    return there.config in mine or there.digest in mine


def _explained(error: ContainerToolError, to: Reference, *, logged_in: bool) -> TorchsmithError:
    output = "\n".join((error.message, *error.said)).lower()
    if any(words in output for words in _DENIED):
        return refused(to.registry, to.repository, logged_in=logged_in)
    if any(words in output for words in _NO_TLS):
        return RegistryError(
            f"{to.registry} does not speak HTTPS, and the engine insists on it",
            "Add --insecure; docker has to be told by its own settings: insecure-registries in "
            "/etc/docker/daemon.json.",
        )
    if any(words in output for words in _UNTRUSTED):
        return RegistryError(
            f"the engine does not trust the certificate of {to.registry}",
            f"Put the certificate of its authority at /etc/containers/certs.d/{to.registry}/ca.crt "
            f"(docker: /etc/docker/certs.d/{to.registry}/ca.crt).",
        )
    return RegistryError(
        f"{error.message}; {to} was not pushed",
        "Push again: layers that are there already are not sent twice.",
    )


@dataclass(frozen=True, slots=True)
class Pulled:
    """An image that was brought: `digest` is what its registry has it by."""

    name: str
    digest: str
    info: ImageInfo


def pull(
    tool: ContainerTool, name: Reference, *, insecure: bool = False, on_line: OnLine | None = None
) -> Pulled:
    """Bring an image; what a tag means is asked once, and just that is brought."""
    login = find_login(tool.name, name.registry, name.repository)
    found = Registry(name.registry, login, insecure=insecure).manifest(name)
    if found is None:
        raise RegistryError(
            f"{name.registry} has no {name}",
            "Check the tag; an image that was deleted there has to be pushed again.",
        )
    try:
        info = tool.pull(
            str(name.at(found.digest)), on_line, insecure=insecure or is_loopback(name.registry)
        )
    except ContainerToolError as error:
        raise _not_brought(error, name) from None
    if name.tag:
        # By its digest an image comes without a name.
        tool.tag(info.id, str(name))
    return Pulled(str(name), found.digest, info)


def pull_recorded(
    tool: ContainerTool,
    name: Reference,
    *,
    store: Path | None,
    insecure: bool = False,
    on_line: OnLine | None = None,
) -> Pulled:
    """Bring an image and note its digest in the journal."""
    with recorded(store, f"pull {name}") as record:
        done = pull(tool, name, insecure=insecure, on_line=on_line)
        record.add(done.name, done.digest, f"Pull {name}")
    return done


def _not_brought(error: ContainerToolError, name: Reference) -> TorchsmithError:
    output = "\n".join((error.message, *error.said)).lower()
    if "no space left" in output:
        return RegistryError(
            f"there is no room for {name} in the engine's store", "Free some disk space."
        )
    return RegistryError(f"{error.message}; {name} was not pulled", "Try again later.")
