"""Writing the instructions of a Dockerfile, each value quoted the way its instruction reads it."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from msgspec import Struct

from torchsmith.plan.shell import one_command


def sentences(*parts: str) -> str:
    """Join texts as sentences: a capital first, one full stop last."""
    written = [part.strip() for part in parts if part.strip()]
    # An address or a path stays as it is.
    return " ".join(
        (part if "/" in part.split()[0] else part[0].upper() + part[1:]).rstrip(".") + "."
        for part in written
    )


# Names of packages and options stay whole.
_wrapped = partial(textwrap.wrap, width=96, break_long_words=False, break_on_hyphens=False)


def comment(text: str) -> list[str]:
    """A text as lines that start with a hash."""
    return [f"# {line}" for line in _wrapped(text)]


# pip's cache; and, if the person who builds provides them, its settings and trusted certificates.
PIP_MOUNTS = (
    "--mount=type=cache,target=/root/.cache/pip",
    "--mount=type=secret,id=pip.conf,target=/root/.config/pip/pip.conf",
    "--mount=type=secret,id=certificates",
)
CCACHE_MOUNT = "--mount=type=cache,target=/root/.cache/ccache"


def run(commands: Sequence[str], mounts: Iterable[str] = ()) -> list[str]:
    """One RUN, one command a line; the first failure ends it."""
    head = " \\\n    ".join(["RUN", *mounts]) if mounts else "RUN"
    separator = " \\\n    " if mounts else " "
    return [f"{head}{separator}" + "; \\\n    ".join(["set -eu", *map(one_command, commands)])]


class Pin(Struct, frozen=True):
    """A release of NCCL or cuDNN as apt's pattern; if `asked`, it replaces the image's own."""

    version: str
    asked: bool = False


_LIBRARY = re.compile(r"lib(nccl|cudnn)\d*(-.+)?")


def apt_words(
    packages: Iterable[str], pins: Mapping[str, Pin] | None = None
) -> tuple[list[str], list[str]]:
    """Commands to run first, and the words of `apt-get install`: options and packages.

    NVIDIA's images hold NCCL and cuDNN at one release, and apt fails if it would have to change it.
    So their packages are installed at the image's release, unless the pin asks for another.
    """
    before: dict[str, None] = {}
    options: list[str] = []
    words: list[str] = []
    for package in sorted(dict.fromkeys(packages)):
        name, _, version = package.partition("=")
        match = _LIBRARY.fullmatch(name)
        if match is None:
            words.append(shlex.quote(package))
            continue
        library = match[1]
        pin = (pins or {}).get(library, Pin("*"))
        if version or pin.asked:
            options = ["--allow-change-held-packages", "--allow-downgrades"]
            words.append(shlex.quote(f"{name}={version or pin.version}"))
            continue
        main = "libnccl2" if library == "nccl" else re.sub("-(dev|headers|static)", "", name)
        before[
            f"{library}=\"$(dpkg-query --show --showformat='${{Version}}' {main} 2>/dev/null "
            '|| true)"'
        ] = None
        words.append(f'"{name}=${{{library}:-{pin.version}}}"')
    return list(before), [*options, *words]


def apt_libraries(linked: Iterable[str], install: str) -> list[str]:
    """Commands that install the libraries of the -dev packages among `linked`.

    Their names differ between distributions; apt knows them.
    """
    named = {item for item in linked if item.endswith("-dev") and not _LIBRARY.fullmatch(item)}
    if not named:
        return []
    names = "sed -n 's/^ *Depends: \\(lib[^<>]*\\)$/\\1/p' | grep -v -e '-dev$'"
    asked = shlex.join(sorted(named))
    return [f"apt-cache depends --important {asked} | {names} | sort -u | xargs -r {install}"]


def apt_install(
    packages: Iterable[str],
    pins: Mapping[str, Pin] | None = None,
    linked: Iterable[str] = (),
) -> list[str]:
    """Install Debian packages and remove the lists; downloads stay in a cache.

    apt needs that folder to itself. `sharing=locked` does not help: podman 4.3 (Debian 12) keeps
    such a lock until the build is over, and waits for itself. It is not apt's own folder, which the
    distributions' images empty after every installation.
    """
    before, words = apt_words(packages, pins)
    names = " \\\n        ".join(words)
    install = (
        # After a loss of power the image is built again: dpkg need not wait for the disk.
        f"flock {_APT_FOLDER}/turn apt-get -o Dir::Cache::archives={_APT_FOLDER} "
        "-o Dpkg::Options::=--force-unsafe-io install --yes --no-install-recommends"
    )
    return run(
        [
            "export DEBIAN_FRONTEND=noninteractive",
            f"mkdir -p {_APT_FOLDER}/partial",
            "apt-get update",
            *before,
            f"{install} \\\n        {names}",
            *apt_libraries(linked, install),
            "rm -rf /var/lib/apt/lists/*",
        ],
        [f"--mount=type=cache,target={_APT_FOLDER}"],
    )


_APT_FOLDER = "/var/cache/torchsmith-apt"
SECRETS_FOLDER = "/run/secrets"


def secret_mounts(names: Iterable[str]) -> list[str]:
    """Mounts of secrets: files that no layer keeps."""
    return [f"--mount=type=secret,id={name}" for name in names]


def secret_exports(names: Iterable[str]) -> list[str]:
    """Commands that export the secrets as variables of the same names."""
    return [f'{name}="$(cat {SECRETS_FOLDER}/{name})"; export {name}' for name in names]


def quoted(value: str) -> str:
    """A value for ENV and LABEL, quoted if needed, so that nothing in it is expanded."""
    if re.fullmatch(r"[A-Za-z0-9._/:+@%,=-]+", value):
        return value
    for special in ("\\", '"', "$"):
        value = value.replace(special, f"\\{special}")
    return f'"{value}"'


def _pairs(instruction: str, values: Mapping[str, str]) -> str:
    pairs = [f"{name}={quoted(value)}" for name, value in values.items() if value]
    pad = " " * (len(instruction) + 1)
    return f"{instruction} " + f" \\\n{pad}".join(pairs)


def env(values: Mapping[str, str]) -> str:
    """ENV with every value quoted."""
    return _pairs("ENV", values)


def healthcheck(command: str) -> str:
    """HEALTHCHECK; importing torch takes seconds, so it runs seldom."""
    words = json.dumps(["sh", "-c", command])
    return f"HEALTHCHECK --interval=60s --timeout=30s --start-period=30s CMD {words}"


def label(values: Mapping[str, str]) -> str:
    """LABEL with every value quoted."""
    return _pairs("LABEL", values)


def arg(name: str, default: str | int | None = None) -> str:
    """ARG, with a default or without."""
    return f"ARG {name}" if default is None else f"ARG {name}={default}"


def copy(source: str, target: str) -> str:
    """COPY from the context; as JSON where a path has a space."""
    if " " in source or " " in target:
        return f"COPY {json.dumps([source, target])}"
    return f"COPY {source} {target}"
