"""Pushing and pulling images; the journal keeps their digests.

The registry is asked before and after a push, so that success means that the image is there. As a
program it pushes the images of a plan.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torchsmith.engine.journal import journal_of
from torchsmith.engine.made_images import PushedImage, note
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
from torchsmith.images.tools import ContainerTool, ImageInfo, find_tool
from torchsmith.plan.publish import Delivery
from torchsmith.programs import OnLine
from torchsmith.recipe.models import Recipe
from torchsmith.tasks import run_task


@contextlib.contextmanager
def recorded(
    store: Path | None, what: str, recipe: str = ""
) -> Iterator[Callable[[str, str, str], None]]:
    """A run of the journal around pushing or pulling.

    It gives a function that notes an image: its name, the registry's digest of it, and a title.
    """
    journal = journal_of(Store(store))
    run = journal.begin(what, recipe)

    def note_image(name: str, digest: str, title: str) -> None:
        journal.step(run, str(reference(name).at(digest)), "done", key=digest, title=title)

    try:
        with heeding_signals():
            yield note_image
        journal.end(run, "done")
    except InterruptedRunError:
        journal.end(run, "interrupted")
        raise
    except TorchsmithError as error:
        journal.end(run, "failed", error.message)
        raise
    except BaseException:
        journal.end(run, "interrupted")
        raise
    finally:
        journal.close()


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
    with recorded(store, f"push {', '.join(map(str, wanted.values()))}", recipe) as note_image:
        for image, to in wanted.items():
            made = push(tool, image, to, replace=replace, insecure=insecure, on_line=on_line)
            note_image(made.name, made.digest, f"Push {image} to {to}")
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
    output = "\n".join((error.message, *error.output)).lower()
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
    """An image that was pulled: `digest` is what its registry has it by."""

    name: str
    digest: str
    info: ImageInfo


def pull(
    tool: ContainerTool,
    name: Reference,
    *,
    store: Path | None,
    insecure: bool = False,
    on_line: OnLine | None = None,
) -> Pulled:
    """Pull an image, and note its digest in the journal.

    The registry is asked once what a tag means, and just that is pulled.
    """
    with recorded(store, f"pull {name}") as note_image:
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
        note_image(str(name), found.digest, f"Pull {name}")
    return Pulled(str(name), found.digest, info)


def _not_brought(error: ContainerToolError, name: Reference) -> TorchsmithError:
    output = "\n".join((error.message, *error.output)).lower()
    if "no space left" in output:
        return RegistryError(
            f"there is no room for {name} in the engine's store", "Free some disk space."
        )
    return RegistryError(f"{error.message}; {name} was not pulled", "Try again later.")


def _push(delivery: Delivery) -> None:
    pushed: list[PushedImage] = []
    tool = find_tool()
    with heeding_signals():
        for image in delivery.images:
            to = at_registry(f"{delivery.registry}/{image}")
            made = push(tool, image, to, on_line=lambda line: print(line, flush=True))
            print(f"{made.name} is {made.digest}", flush=True)
            pushed.append(PushedImage(made.name, made.digest))
            note(Path(delivery.record), tuple(pushed))


if __name__ == "__main__":
    run_task(Delivery, _push)
