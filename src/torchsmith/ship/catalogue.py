"""What is published, as people look for it: by GPU, torch, Python and CUDA."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from packaging.utils import parse_wheel_filename

from torchsmith.errors import UsageError
from torchsmith.facts.cuda import runs_on
from torchsmith.facts.files import Facts
from torchsmith.facts.gpus import find_gpu, nearest_gpus
from torchsmith.ship.addresses import CHANNEL, is_loopback
from torchsmith.ship.channel import published_packages
from torchsmith.ship.index import SIMPLE, published_files
from torchsmith.ship.publish import Places
from torchsmith.verify.report import content_beside, from_json

_CUDA = re.compile(r"(?:cu|cuda)(\d+)\.?(\d)(?!\d)")
_CODE = re.compile(r"(sm|compute)_?(\d+)(\d)([af]?)")
_TORCH = ("torch", "pytorch")
_PYTHON = re.compile(r"(?:cp|py)3\.?(\d+)")
_ARCH = re.compile(r"\d+\.\d[af]?")
_VERSION = re.compile(
    r"(?:(?P<word>torch|pytorch|python|py|cuda)[ =]*v?)?(?P<version>\d+(?:\.\d+)*(?:\+\S+)?)", re.I
)
_SUBJECTS = {"pytorch": "torch", "py": "python"}
_CONDA_IMAGE = "docker.io/condaforge/miniforge3"


class Published(Struct, frozen=True):
    """A file that is published; `address` is where it lies on the server.

    `python` and `cuda` are empty where any will do, or none is used; `archs` are the compute
    capabilities it has code for, empty where that is not known without looking inside.
    """

    address: str
    path: Path
    kind: str
    name: str
    version: str
    build: str
    python: str
    cuda: str
    archs: tuple[str, ...]
    size: int
    sha256: str
    yanked: bool

    def install_lines(self, server: str, *, token: bool = False) -> dict[str, str]:
        """The command of each client that installs just this; with a `token`, from ~/.netrc."""
        host = urlsplit(server).hostname or ""
        if self.kind == "conda":
            wanted = shlex.quote(f"{self.name}={self.version}={self.build}")
            line = f"conda install --channel {server}/{CHANNEL} {wanted}"
            inside = line.replace("install", "install --yes", 1)
            return {"conda": line, "docker": self._image(_CONDA_IMAGE, inside, host, token=token)}
        # Nobody else has a version with our label; one without could be taken from elsewhere.
        flag = "--extra-index-url" if "+" in self.version else "--index-url"
        # pip ignores an index without TLS on another machine.
        trust = "" if is_loopback(host) else f" --trusted-host {urlsplit(server).netloc}"
        line = f"pip install {flag} {server}/{SIMPLE}/{trust} {self.name}=={self.version}"
        base = f"docker.io/library/python:{self.python or 3}-slim"
        image = self._image(base, line, host, token=token)
        return {"pip": line, "uv": f"uv {line}", "docker": image}

    def _image(self, base: str, command: str, host: str, *, token: bool) -> str:
        """The command that makes an image with this in it; podman takes the same words."""
        mount = "--mount=type=secret,id=netrc,target=/root/.netrc " if token else ""
        file = f"FROM {base}\\nRUN {mount}{command}\\n".replace("%", "%%")
        secret = " --secret id=netrc,src=$HOME/.netrc" if token else ""
        # A build's own loopback is not this machine's.
        network = " --network host" if is_loopback(host) else ""
        tag = re.sub(r"[^\w.-]", "-", f"{self.version}{'-' * bool(self.build)}{self.build}")[:128]
        build = f"docker build{network}{secret} --tag {self.name.lower()}:{tag} -"
        return f"printf {shlex.quote(file)} | {build}"


class Asked(Struct, frozen=True):
    """What somebody looks for; empty: anything."""

    gpu: str = ""
    torch: str = ""
    python: str = ""
    cuda: str = ""
    name: str = ""


def asked_in(text: str, facts: Facts) -> Asked:
    """What words between commas ask for: "RTX 3090, 3.11, torch 2.6, CUDA 12.6"."""
    found: dict[str, str] = {}
    for part in filter(None, map(str.strip, text.split(","))):
        match = _VERSION.fullmatch(part)
        if match is None:
            known = find_gpu(facts, part) or nearest_gpus(facts, part)
            found.setdefault("gpu" if known else "name", part)
            continue
        word, version = (match["word"] or "").lower(), match["version"]
        if not word:
            # Alone, a number is of what is numbered so: Python 3.11, torch 2.6, CUDA 12.6.
            word = {"3": "python", "1": "torch", "2": "torch"}.get(version.split(".")[0], "cuda")
        found.setdefault(_SUBJECTS.get(word, word), version)
    return Asked(**found)


def catalogue(places: Places) -> list[Published]:
    """Everything in an index and a channel."""
    found = list(_wheels(places.index)) if places.index is not None else []
    found += _packages(places.channel) if places.channel is not None else []
    return found


def search(places: Places, asked: Asked, facts: Facts) -> list[Published]:
    """What fits, the newest first; refuses a GPU that nobody knows."""
    arch = _arch(asked.gpu, facts)
    fitting = [item for item in catalogue(places) if _fits(item, asked, arch)]
    return sorted(fitting, key=lambda item: (item.name not in _TORCH, item.name, _order(item)))


def _arch(gpu: str, facts: Facts) -> str:
    if not gpu or _ARCH.fullmatch(gpu):
        return gpu
    known = find_gpu(facts, gpu)
    if known is None:
        near = ", ".join(nearest_gpus(facts, gpu))
        raise UsageError(
            f"{gpu!r} is no GPU that is known", f"Near to it: {near}." if near else "Such as V100."
        )
    return known.arch


def _fits(item: Published, asked: Asked, arch: str) -> bool:
    torch = asked.torch.strip().removeprefix("v")
    if torch:
        plain = item.version if "+" in torch else item.version.partition("+")[0]
        if item.name not in _TORCH or not f"{plain}.".startswith(f"{torch}."):
            return False
    if asked.name and asked.name.strip().lower() not in item.name:
        return False
    if asked.python and item.python not in ("", asked.python.strip()):
        return False
    cuda = asked.cuda.strip().lower()
    if cuda and item.cuda != ("" if cuda in ("none", "cpu") else cuda):
        return False
    if not arch:
        return True
    if not item.archs:
        # Without CUDA it runs beside any GPU, and uses none; with it, only its inside tells.
        return bool(item.cuda)
    return any(
        runs_on(arch, code.removesuffix("+PTX"), ptx=code.endswith("+PTX")) for code in item.archs
    )


def _order(item: Published) -> tuple[tuple[int, ...], str]:
    numbers = re.findall(r"\d+", item.version.partition("+")[0])
    return tuple(-int(number[:9]) for number in numbers[:6]), item.address


def _wheels(root: Path) -> Iterator[Published]:
    for project, files in published_files(root).items():
        for file in files:
            path = root / SIMPLE / project / file.filename
            _, version, _, tags = parse_wheel_filename(file.filename)
            pythons = sorted({match[1] for tag in tags if (match := _PYTHON.match(tag.abi))})
            label = version.local or ""
            yield Published(
                address=f"{SIMPLE}/{project}/{file.filename}",
                path=path,
                kind="wheel",
                name=project,
                version=str(version),
                build="",
                python=f"3.{pythons[0]}" if pythons else "",
                cuda=_cuda(label),
                archs=_archs(path, label),
                size=file.size,
                sha256=file.sha256,
                yanked=file.yanked is not False,
            )


def _packages(root: Path) -> Iterator[Published]:
    for name, subdir in published_packages(root).items():
        for file, record in subdir.packages.items():
            build = str(record.get("build", ""))
            python = _PYTHON.search(build)
            size = record.get("size")
            yield Published(
                address=f"{CHANNEL}/{name}/{file}",
                path=root / name / file,
                kind="conda",
                name=str(record["name"]),
                version=str(record["version"]),
                build=build,
                python=f"3.{python[1]}" if python else "",
                cuda=_cuda(build),
                archs=_archs(root / name / file, build),
                size=size if isinstance(size, int) else 0,
                sha256=str(record.get("sha256", "")),
                yanked=file in subdir.removed,
            )


def _cuda(label: str) -> str:
    found = _CUDA.search(label)
    return f"{found[1]}.{found[2]}" if found else ""


def _archs(path: Path, label: str) -> tuple[str, ...]:
    """The compute capabilities of a file: as its report says, else as its label does."""
    try:
        archs = from_json(content_beside(path)).archs
    except (OSError, msgspec.MsgspecError):
        archs = ()
    text = " ".join(archs) if archs else label
    numbers = tuple(
        f"{major}.{minor}{suffix}{'+PTX' if kind == 'compute' else ''}"
        for kind, major, minor, suffix in _CODE.findall(text)
    )
    return numbers or tuple(item for item in archs if _ARCH.match(item))
