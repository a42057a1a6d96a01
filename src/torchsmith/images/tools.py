"""What a container tool can do: one class for each program, most of it the same for all."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from msgspec import Struct

from torchsmith.errors import ContainerToolError, NoContainerToolError, NoImageError, UsageError
from torchsmith.foreign import MalformedError, decode
from torchsmith.host.containers import READERS
from torchsmith.host.models import Engine as Found
from torchsmith.host.probe import Programs
from torchsmith.names import did_you_mean
from torchsmith.programs import (
    Answer,
    Ending,
    OnLine,
    call,
    end_what_runs_inside,
    follow,
    interrupt,
)
from torchsmith.temporary import temporary_folder

CACHE_OF_ALL = Path("/var/tmp/buildah-cache")
# What podman and buildah say of a container they could not remove after a build.
_LEFT = re.compile(r'deleting build container "([0-9a-f]+)"')


@dataclass(frozen=True, slots=True)
class Secret:
    """What a build may read at /run/secrets/NAME and never keeps: a variable's or a file's."""

    id: str
    env: str = ""
    file: str = ""


@dataclass(frozen=True, slots=True)
class Build:
    """One image to be built: a stage of a Dockerfile, with the folder it may copy from."""

    context: Path
    tag: str
    file: Path
    target: str = ""
    args: Mapping[str, str] = field(default_factory=dict)
    secrets: tuple[Secret, ...] = ()
    platform: str = ""
    network: str = ""
    cache: bool = True


@dataclass(frozen=True, slots=True)
class ImageInfo:
    """An image as the tool has it; `layers` are the digests of their contents, lowest first."""

    id: str
    tags: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = ""
    command: tuple[str, ...] = ()
    architecture: str = ""
    bytes: int = 0


# What the tools say of an image, in their own words; each may be null.
_Texts = tuple[str, ...] | None


class _Config(Struct, frozen=True):
    Labels: dict[str, str] | None = None
    User: str | None = None
    Env: _Texts = None
    WorkingDir: str | None = None
    Cmd: _Texts = None


class _Layers(Struct, frozen=True):
    Layers: _Texts = None
    diff_ids: _Texts = None


class _Inspected(Struct, frozen=True):
    Id: str
    RepoTags: _Texts = None
    RepoDigests: _Texts = None
    RootFS: _Layers | None = None
    Config: _Config | None = None
    Architecture: str | None = None
    Size: int | None = None


class _Oci(Struct, frozen=True):
    architecture: str | None = None
    rootfs: _Layers | None = None
    config: _Config | None = None


class _Built(Struct, frozen=True):
    FromImageID: str
    OCIv1: _Oci
    FromImage: str | None = None
    FromImageDigest: str | None = None


def _image_info(
    identity: str,
    tags: _Texts,
    digests: _Texts,
    layers: _Layers | None,
    config: _Config | None,
    architecture: str | None,
    size: int | None,
) -> ImageInfo:
    config = config or _Config()
    return ImageInfo(
        id=bare_id(identity),
        tags=tags or (),
        digests=digests or (),
        layers=(layers and (layers.Layers or layers.diff_ids)) or (),
        labels=config.Labels or {},
        user=config.User or "",
        env=variables(config.Env or ()),
        workdir=config.WorkingDir or "",
        command=config.Cmd or (),
        architecture=architecture or "",
        bytes=size or 0,
    )


class ContainerTool:
    """A container tool: its program, its version, and the environment it is run in."""

    name: ClassVar[str]
    # What the program answers for an image it does not have.
    _absent: ClassVar[tuple[str, ...]] = ("no such image", "image not known", "no such object")
    # How a container that a failed build left behind is removed.
    _discard: ClassVar[tuple[str, ...]] = ("rm", "--force")
    # Whether it starts containers for people; buildah only builds.
    runs: ClassVar[bool] = True
    # How a build or a transfer is stopped that was interrupted.
    ending: Ending = staticmethod(end_what_runs_inside)

    def __init__(
        self, program: str, version: str = "", environ: Mapping[str, str] | None = None
    ) -> None:
        self.program = program
        self.version = version
        self.environ = environ

    # Asking the program

    def command(self, *words: str | Path) -> list[str]:
        """The program with these words."""
        return [self.program, *map(str, words)]

    def try_(
        self, *words: str | Path, on_line: OnLine | None = None, ending: Ending | None = None
    ) -> Answer:
        """Run the program; how it ended is for the caller to judge."""
        argv = self.command(*words)
        if on_line is None:
            return call(argv, env=self.environ)
        return follow(argv, on_line, ending or self.ending, self.environ)

    def ask(
        self, *words: str | Path, on_line: OnLine | None = None, ending: Ending | None = None
    ) -> str:
        """Run the program and return its output, or raise its complaint."""
        answer = self.try_(*words, on_line=on_line, ending=ending)
        if answer.code != 0:
            raise self.refused(words[0], answer)
        return answer.out.strip()

    def refused(self, what: str | Path, answer: Answer) -> ContainerToolError:
        """The error for a command that failed."""
        complaint = answer.complaint
        last = complaint[-1] if complaint else f"exit code {answer.code}"
        return ContainerToolError(f"{self.name} {what}: {last}", output=complaint)

    # Building

    def build(self, wanted: Build, on_line: OnLine | None = None) -> str:
        """Build an image and return its id; the name is given to it when it is whole."""
        with temporary_folder("image") as folder:
            note = folder / "id"
            words = ["build", *self.build_options(wanted), "--iidfile", str(note)]
            # Always followed: whoever stops it must find nothing left of it.
            answer = self._build([*words, str(wanted.context)], on_line or (lambda _: None))
            if answer.code != 0:
                refusal = self.refused("build", answer)
                # Without room it could not write down that they are gone; now there is some again.
                for container in _LEFT.findall("\n".join(refusal.output)):
                    self.try_(*self._discard, container)
                raise refusal
            return bare_id(note.read_text().strip())

    def _build(self, words: Sequence[str], on_line: OnLine) -> Answer:
        environ = os.environ if self.environ is None else self.environ
        return follow(self.command(*words), on_line, self.ending, self.build_environment(environ))

    def build_environment(self, environ: Mapping[str, str]) -> Mapping[str, str]:
        """The environment a build is run in."""
        return with_own_cache(environ, os.geteuid(), CACHE_OF_ALL)

    def build_options(self, wanted: Build) -> list[str]:
        """The options of `build` that every tool has."""
        words = ["--file", str(wanted.file), "--tag", wanted.tag]
        if wanted.target:
            words += ["--target", wanted.target]
        for name, value in wanted.args.items():
            words += ["--build-arg", f"{name}={value}"]
        for secret in wanted.secrets:
            where = f"src={secret.file}" if secret.file else f"env={secret.env}"
            words += ["--secret", f"id={secret.id},{where}"]
        if wanted.platform:
            words += ["--platform", wanted.platform]
        if wanted.network:
            words += ["--network", wanted.network]
        if not wanted.cache:
            words.append("--no-cache")
        return words

    # What it has

    def find(self, image: str) -> ImageInfo | None:
        """An image, by name, tag, digest or id; `None` if the tool has no such one."""
        answer = self.try_(*self._inspect_words(image))
        if answer.code == 0:
            try:
                return self._read_inspect(answer.out)
            except MalformedError as error:
                raise ContainerToolError(
                    f"{self.name} inspect: what it says of {image} is not understood: {error}"
                ) from None
        if any(words in answer.err.lower() for words in self._absent):
            return None
        raise self.refused("inspect", answer)

    def inspect(self, image: str) -> ImageInfo:
        """The same, where it has to be there."""
        info = self.find(image)
        if info is None:
            raise NoImageError(image, self.name)
        return info

    def _inspect_words(self, image: str) -> tuple[str, ...]:
        return ("image", "inspect", image)

    def _read_inspect(self, text: str) -> ImageInfo:
        (image,) = decode(text, tuple[_Inspected])
        return _image_info(
            *(image.Id, image.RepoTags, image.RepoDigests, image.RootFS),
            *(image.Config, image.Architecture, image.Size),
        )

    def tag(self, image: str, name: str) -> None:
        """Give an image one more name."""
        self.ask("tag", image, name)

    # Registries

    def push(self, name: str, on_line: OnLine | None = None, *, insecure: bool = False) -> str:
        """Push an image under its name and return the digest the registry has it by.

        `insecure` also takes plain HTTP, and any certificate.
        """
        with temporary_folder("push") as folder:
            note = folder / "digest"
            words = [*self.trust_words(insecure), "--digestfile", str(note), name]
            self.ask("push", *words, on_line=on_line, ending=interrupt)
            return note.read_text().strip()

    def pull(
        self, name: str, on_line: OnLine | None = None, *, insecure: bool = False
    ) -> ImageInfo:
        """Pull an image from its registry."""
        # It runs nothing in containers: a signal is enough to stop it.
        self.ask("pull", *self.trust_words(insecure), name, on_line=on_line, ending=interrupt)
        return self.inspect(name)

    def trust_words(self, insecure: bool) -> list[str]:
        """The option for a registry whose certificate is not looked at."""
        return ["--tls-verify=false"] if insecure else []

    # Containers

    def run(self, *words: str | Path, on_line: OnLine | None = None) -> Answer:
        """`run` with these words: options, an image, a command."""
        return self.try_("run", *words, on_line=on_line)

    @contextmanager
    def container(self, image: str) -> Iterator[str]:
        """A container that is not started, for its files; it is gone afterwards."""
        # A command: an image without one cannot be created from, though nothing is run.
        name = self.ask("create", image, "true").splitlines()[-1]
        try:
            yield name
        finally:
            self.try_("rm", "--force", name)

    def copy_out(self, image: str, path: str, into: Path) -> None:
        """Copy what lies at a path of an image into a folder of this machine."""
        self.inspect(image)
        with self.container(image) as name:
            self.ask("cp", f"{name}:{path}", into)


def with_own_cache(environment: Mapping[str, str], user: int, of_all: Path) -> Mapping[str, str]:
    """An environment whose builds cache where this user may write.

    podman 4 and buildah 1 use one folder for all users, which belongs to whoever built first.
    """
    try:
        # Root may write anywhere.
        taken = user not in (0, of_all.stat().st_uid)
    except OSError:
        taken = False
    if not taken or environment.get("TMPDIR") or not environment.get("HOME"):
        return environment
    folder = (
        Path(environment.get("XDG_CACHE_HOME") or Path(environment["HOME"], ".cache"))
        / "torchsmith"
    )
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return {**environment, "TMPDIR": str(folder)}


def bare_id(identity: str) -> str:
    """An id without the name of its hash."""
    return identity.removeprefix("sha256:")


def variables(lines: Sequence[str]) -> dict[str, str]:
    """NAME=VALUE lines as a table."""
    return dict(line.partition("=")[::2] for line in lines)


class Podman(ContainerTool):
    """podman, as root or not: no daemon; shares its store with buildah."""

    name = "podman"

    def build_options(self, wanted: Build) -> list[str]:
        """The options of `build`."""
        return [*super().build_options(wanted), *image_format(wanted)]


def image_format(wanted: Build) -> list[str]:
    """OCI's images hold no health check: only Docker's do."""
    checked = "\nHEALTHCHECK " in wanted.file.read_text()
    return ["--format", "docker"] if checked else []


# What a client says that has no builder but the old one, which knows no cache mounts.
_NO_BUILDKIT = re.compile(
    r"BuildKit is enabled but the buildx component is missing|the --mount option requires BuildKit"
)
_DIGEST = re.compile(r"digest: (sha256:[0-9a-f]{64})")


class Docker(ContainerTool):
    """docker, whose daemon has to be running; our Dockerfiles need its BuildKit."""

    name = "docker"
    # Its builds are the daemon's, and the client stops them.
    ending = staticmethod(interrupt)

    def build_options(self, wanted: Build) -> list[str]:
        """The options of `build`; plain progress, because lines are read, not redrawn."""
        return [*super().build_options(wanted), "--progress", "plain"]

    def build_environment(self, environ: Mapping[str, str]) -> Mapping[str, str]:
        """The environment a build is run in; clients before 23.0 need a word for BuildKit."""
        return {**environ, "DOCKER_BUILDKIT": "1"}

    def _build(self, words: Sequence[str], on_line: OnLine) -> Answer:
        answer = super()._build(words, on_line)
        if answer.code != 0 and _NO_BUILDKIT.search(answer.out):
            raise NoContainerToolError(
                "this docker has no BuildKit, which cache and secret mounts need",
                "Install its buildx plugin (docker-buildx, docker-buildx-plugin), or use podman.",
            )
        return answer

    def trust_words(self, insecure: bool) -> list[str]:
        """Nothing: its daemon trusts this machine's registries, and those its settings name."""
        return []

    def push(self, name: str, on_line: OnLine | None = None, *, insecure: bool = False) -> str:
        """Push an image under its name and return the digest the registry has it by."""
        output = self.ask("push", name, on_line=on_line)
        found = _DIGEST.findall(output)
        if not found:
            raise ContainerToolError(f"docker push reported no digest for {name}")
        return str(found[-1])


class Buildah(ContainerTool):
    """buildah, as root or not."""

    name = "buildah"
    runs = False
    _discard = ("rm",)

    def build_options(self, wanted: Build) -> list[str]:
        """The options of `build`; unlike podman it keeps layers only on request."""
        return [*super().build_options(wanted), "--layers", *image_format(wanted)]

    def _inspect_words(self, image: str) -> tuple[str, ...]:
        return ("inspect", "--type", "image", image)

    def _read_inspect(self, text: str) -> ImageInfo:
        built = decode(text, _Built)
        name, digest, image = built.FromImage or "", built.FromImageDigest or "", built.OCIv1
        return _image_info(
            built.FromImageID,
            (name,) if name else (),
            (f"{name.rpartition(':')[0] or name}@{digest}",) if digest else (),
            *(image.rootfs, image.config, image.architecture, 0),
        )

    def run(self, *words: str | Path, on_line: OnLine | None = None) -> Answer:
        """Refuse: its `run` is one step of a build."""
        raise ContainerToolError(
            "buildah builds images and starts none", "Install podman: it has the same images."
        )

    @contextmanager
    def container(self, image: str) -> Iterator[str]:
        """A container that is not started, for its files; it is gone afterwards."""
        name = self.ask("from", "--pull-never", image).splitlines()[-1]
        try:
            yield name
        finally:
            self.try_("rm", name)

    def copy_out(self, image: str, path: str, into: Path) -> None:
        """Copy what lies at a path of an image into a folder of this machine."""
        self.inspect(image)
        with self.container(image) as name:
            root = Path(self.ask("mount", name))
            try:
                source = root / path.strip("/").removesuffix("/.")
                if not source.exists():
                    raise ContainerToolError(f"{image} has no {path}")
                if source.is_dir():
                    inner = "" if path.endswith("/.") else source.name
                    shutil.copytree(source, into / inner, symlinks=True, dirs_exist_ok=True)
                else:
                    shutil.copy2(source, into)
            finally:
                self.try_("umount", name)


# In the order they are tried. podman first: it needs nothing to be running.
TOOLS: Mapping[str, type[ContainerTool]] = {"podman": Podman, "docker": Docker, "buildah": Buildah}
VARIABLE = "TORCHSMITH_ENGINE"

_INSTALL = "Install one: apt-get install podman (or docker.io, or buildah)."


def find_tool(
    wanted: str = "", environ: Mapping[str, str] | None = None, *, runs: bool = False
) -> ContainerTool:
    """The tool of this name, or $TORCHSMITH_ENGINE, or the first that answers (and `runs` any)."""
    variables = os.environ if environ is None else environ
    programs = Programs(variables, timeout=20.0)
    name = wanted or variables.get(VARIABLE, "")
    if name:
        return _named(name, "--engine" if wanted else VARIABLE, programs, environ, runs=runs)
    silent: list[Found] = []
    for known, tool in TOOLS.items():
        if runs and not tool.runs:
            continue
        found = READERS[known](programs)
        if found is not None and found.running:
            return tool(found.path, found.version, environ)
        silent += [found] if found is not None else []
    if silent:
        raise _not_running(silent[0])
    raise NoContainerToolError("no container engine is installed here", _INSTALL)


def check_name(name: str, origin: str = "--engine") -> None:
    """Refuse a container tool that torchsmith does not know."""
    if name not in TOOLS:
        raise UsageError(
            f"{origin}: {name!r} is not a container tool that torchsmith knows",
            did_you_mean(name, TOOLS),
        )


def _named(
    name: str, origin: str, programs: Programs, environ: Mapping[str, str] | None, *, runs: bool
) -> ContainerTool:
    check_name(name, origin)
    if runs and not TOOLS[name].runs:
        raise NoContainerToolError(
            f"{origin}: {name} builds images and starts none", "Use podman or docker."
        )
    found = READERS[name](programs)
    if found is None:
        there = [other for other in TOOLS if other != name and programs.find(other)]
        instead = f" Or use {there[0]}, which is here." if there else ""
        raise NoContainerToolError(
            f"{name} is not installed, or does not answer",
            f"apt-get install {'docker.io' if name == 'docker' else name}.{instead}",
        )
    if not found.running:
        raise _not_running(found)
    return TOOLS[name](found.path, found.version, environ)


def _not_running(found: Found) -> NoContainerToolError:
    detail = f": {found.detail}" if found.detail else ""
    denied = "permission denied" in found.detail.lower()
    return NoContainerToolError(
        f"{found.name} is installed but not running{detail}"
        if not denied
        else f"this user may not talk to {found.name}{detail}",
        "Add the user to the group docker and log in again, or use podman."
        if denied
        else f"Start it: systemctl start {found.name}; or use podman, which needs no daemon.",
    )
