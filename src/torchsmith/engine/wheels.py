"""The Python packages a plan asks pip for: gathered for a bundle, and taken out of one."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from torchsmith.engine.store import Store
from torchsmith.errors import HostError
from torchsmith.facts.ranges import release
from torchsmith.host.models import Host
from torchsmith.host.system import read_platform
from torchsmith.plan.lock import is_lock
from torchsmith.plan.models import Plan
from torchsmith.plan.torch import fresh_venv
from torchsmith.programs import call
from torchsmith.resolve.models import Resolution
from torchsmith.resolve.naming import abi_tag
from torchsmith.sources.bundle import open_bundle, read_manifest
from torchsmith.temporary import temporary_folder

TREE = "wheels"


def requirements(plan: Plan, resolution: Resolution) -> list[tuple[str, ...]]:
    """What the steps of a variant ask pip for, a tuple for each step."""
    steps = plan.of(resolution.variant)
    asked = [step.pip for step in steps if step.pip and not any(map(is_lock, step.inputs))]
    return list(dict.fromkeys(asked))


def locked(plan: Plan, resolution: Resolution) -> list[str]:
    """The files of a plan that name, with hashes, what the steps of a variant have pip install."""
    names = [name for step in plan.of(resolution.variant) for name in step.inputs]
    return [name for name in dict.fromkeys(names) if is_lock(name)]


def gather(
    plan: Plan, folder: Path, more: Iterable[str] = (), elsewhere: Host | None = None
) -> int:
    """Put a wheel of every package a plan asks pip for into a folder; return how many there are.

    Each variant's own Python chooses them; packages without a wheel are built. `more` are
    requirements of libraries that are yet to be built. For a machine `elsewhere`, or of another
    platform, all must exist as wheels; packages beside its installed torch are left out.
    """
    folder.mkdir(parents=True, exist_ok=True)
    own = tuple(dict.fromkeys(more))
    here = read_platform()
    locks = {name: text for name, text in plan.files.items() if is_lock(name)}
    for resolution in plan.variants:
        asked = requirements(plan, resolution)
        if elsewhere is None and (resolution.container or not (asked or locked(plan, resolution))):
            continue
        foreign = resolution.platform != here
        other = elsewhere or (Host(platform=resolution.platform) if foreign else None)
        if other is not None:
            _download(resolution, [*asked, own], folder, other)
            continue
        with temporary_folder("wheels") as place:
            python = _environment(resolution, place / "env")
            for packages in dict.fromkeys((*asked, *([own] if own else []))):
                _run([python, "-m", "pip", "wheel", "--quiet", "--wheel-dir", folder, *packages])
            for name in locked(plan, resolution):
                (place / "lock.txt").write_bytes(locks[name])
                words = ["-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
                _run([python, *words, "--dest", folder, "--requirement", place / "lock.txt"])
    return len(list(folder.iterdir()))


def _download(
    resolution: Resolution, asked: Iterable[tuple[str, ...]], folder: Path, other: Host
) -> None:
    """Download wheels for another machine: pip gets options that describe its Python."""
    missing = [
        tuple(text for text in packages if not _is_there(text, resolution)) for packages in asked
    ]
    words = ["-m", "pip", "download", "--quiet", "--only-binary", ":all:"]
    words += ["--python-version", resolution.python.removesuffix("t")]
    if resolution.python.endswith("t"):
        words += ["--abi", abi_tag(resolution.python), "--abi", "none"]
    words += [word for name in platform_tags(other) for word in ("--platform", name)]
    with temporary_folder("wheels") as place:
        python = place / "bin/python"
        for packages in dict.fromkeys(filter(None, missing)):
            if not python.exists():
                _run([sys.executable, "-P", "-m", "venv", place])
            _run([python, *words, "--dest", folder, *packages])


def platform_tags(host: Host) -> list[str]:
    """The platforms of wheels a machine can install, by its glibc: manylinux_2_28_x86_64, …"""
    machine = host.platform.partition("-")[2]
    # If it is unknown: Debian 10's. No build of today's torch works with an older one.
    minor = release(host.libc.version)[1] if host.libc else 28
    names = [f"manylinux_2_{number}_{machine}" for number in range(minor, 4, -1)]
    return [*names, *(f"manylinux{year}_{machine}" for year in (2014, 2010, 1))]


def _is_there(text: str, resolution: Resolution) -> bool:
    """Whether a package beside an installed torch meets a requirement."""
    if resolution.installed is None:
        return False
    wanted = Requirement(text)
    found = dict(resolution.installed.beside).get(canonicalize_name(wanted.name))
    return found is not None and wanted.specifier.contains(found, prereleases=True)


def _environment(resolution: Resolution, folder: Path) -> Path:
    if resolution.installed is not None:
        creator = resolution.installed.python
    else:
        creator = f"python{resolution.python}"
    if resolution.python_from == "uv":
        _run(["uv", "venv", "--quiet", "--seed", "--python", resolution.python, folder])
    else:
        for command in fresh_venv(creator, str(folder), resolution.python):
            _run(["sh", "-c", command])
    return folder / "bin/python"


def _run(words: list[str | Path]) -> None:
    done = call(words)
    if done.code:
        lines = done.err.strip().splitlines()
        why = next((line for line in reversed(lines) if "ERROR" in line), done.last)
        raise HostError(
            f"the Python packages for the bundle cannot be fetched: {why or 'pip gives no reason'}",
            "Check the network and pip's configuration on this machine.",
        )


def unpack(bundle: Path, store: Store) -> Path | None:
    """The folder of a bundle's Python packages, unpacked once; None if it holds none."""
    found = read_manifest(bundle).trees.get(TREE)
    if found is None:
        return None
    place = store.root / "downloads" / f"wheels-{found[:16]}"
    if place.is_dir():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    part = Path(tempfile.mkdtemp(dir=place.parent, prefix=".wheels-"))
    try:
        open_bundle(bundle, part, only=TREE)
        part.chmod(0o755)
        part.rename(place)
    except OSError:
        # Another torchsmith was first: its folder is the same.
        if not place.is_dir():
            raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
    return place


def offline(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """An environment in which pip uses only this folder: no index and no configuration."""
    kept = {
        name: value
        for name, value in environment.items()
        if name not in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")
    }
    return {
        **kept,
        "PIP_NO_INDEX": "1",
        # As an address: pip takes a space for the end of a path.
        "PIP_FIND_LINKS": folder.absolute().as_uri(),
        "PIP_CONFIG_FILE": os.devnull,
    }
