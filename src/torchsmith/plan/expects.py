"""What a wheel has to prove: the parts of a resolution that can be seen in a build."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace
from packaging.utils import canonicalize_name

from torchsmith.facts.models import Mode
from torchsmith.resolve.models import CompanionChoice, ExtensionChoice, Resolution

Linking = Literal["static", "system", "dynamic"]

# Features whose library can be linked either way.
_LINKED = ("nccl", "cudnn", "cupti", "mkl", "mpi", "ucc", "numa", "gloo")
# How the names of their shared libraries begin.
LIBRARIES = {
    "nccl": "libnccl",
    "cudnn": "libcudnn",
    "cupti": "libcupti",
    "mkl": "libmkl",
    "mpi": "libmpi",
    "ucc": "libucc",
    "numa": "libnuma",
    "gloo": "libgloo",
    "cuda runtime": "libcudart",
}
# Those of NVIDIA's: other libraries replace them underneath a torch, if it links them dynamically.
_REPLACED = {"nccl": "nccl", "cudnn": "cudnn", "cupti": "cupti", "cuda runtime": "static_cuda"}
# Raise it when a proof covers more: older proofs are then made again.
PROOF = 3


class Expects(Struct, frozen=True, omit_defaults=True):
    """What is expected of one wheel, or of an environment that holds it.

    `decided` names the features that a person or a profile decided about; the release or the
    platform decides the others. `built` names the distributions made here: they have code for the
    wanted GPUs and no others. A `published` torch is not ours: its publisher chose its label. With
    `system_libraries` it uses the system's. `decodes` are the image formats torchvision must read,
    `imports` the modules an extension must have, `check` is a line of Python that must run,
    `symbols` are functions a static library must have.

    The rest is for a step of a plan, as paths of its work folder: the `wheel` (a pattern if the
    build chooses its whole name), the wheels installed `beside` it, the `environment` whose Python
    is used, whether the fresh one is `layered` on top of it, and its `folder`; `numpy` is the
    requirement of NumPy for pip.
    """

    package: str = "torch"
    version: str = ""
    python: str = ""
    tag: str = ""
    variant: str = ""
    published: bool = False
    cuda: str = ""
    archs: tuple[str, ...] = ()
    arch_list: str = ""
    features: tuple[tuple[str, Mode], ...] = ()
    decided: tuple[str, ...] = ()
    linking: tuple[tuple[str, Linking], ...] = ()
    system_libraries: bool = False
    companions: tuple[tuple[str, str], ...] = ()
    built: tuple[str, ...] = ()
    decodes: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    check: str = ""
    symbols: tuple[str, ...] = ()
    wheel: str = ""
    beside: tuple[str, ...] = ()
    environment: str = ""
    layered: bool = False
    folder: str = ""
    numpy: tuple[str, ...] = ()
    proof: int = PROOF

    def must_be_shared(self, name: str) -> bool:
        """Whether a library that is not linked statically was decided to be a shared one."""
        return _REPLACED.get(name, "") in self.decided

    def unnamed(self) -> Expects:
        """The same without the variant's name, which changes nothing that is proven."""
        return replace(self, variant="")


def _expected(resolution: Resolution) -> Expects:
    """What is expected of everything that is built for a variant."""
    cuda = resolution.cuda
    return Expects(
        python=resolution.python,
        variant=resolution.variant,
        published=resolution.use == "wheel",
        cuda=cuda.version if cuda else "",
        archs=_archs(resolution),
        arch_list=cuda.arch_list if cuda else "",
        system_libraries=True,
        numpy=resolution.numpy,
    )


def expected(resolution: Resolution) -> Expects:
    """What a resolution expects of its torch."""
    return replace(
        _expected(resolution),
        version=resolution.version,
        # NAME-VERSION-PYTHON-ABI-PLATFORM.whl; a published wheel's is its publisher's.
        tag=resolution.wheel.removesuffix(".whl").split("-", 2)[2]
        if resolution.use == "source"
        else "",
        features=resolution.features,
        decided=_decided(resolution),
        linking=_linking(resolution),
        # Debian's source comes without the libraries PyTorch bundles.
        system_libraries=resolution.source.kind == "debian"
        or any(mode == "system" for _, mode in resolution.features),
        companions=tuple((item.package, item.version) for item in resolution.companions),
        built=_built(resolution),
    )


def expected_companion(resolution: Resolution, companion: CompanionChoice) -> Expects:
    """What is expected of a companion built against this torch."""
    return replace(
        _expected(resolution),
        package=companion.package,
        version=companion.version,
        built=(canonicalize_name(companion.package),),
        decodes=tuple(item.name for item in companion.formats),
    )


def expected_extension(
    resolution: Resolution, extension: ExtensionChoice, imports: tuple[str, ...]
) -> Expects:
    """What is expected of a library of the recipe's own choosing."""
    return replace(
        _expected(resolution),
        package=extension.name,
        # If its setup chooses the GPUs, more or others than these are no mistake of ours.
        built=() if extension.own_archs else (_distribution(extension),),
        imports=imports,
    )


def _archs(resolution: Resolution) -> tuple[str, ...]:
    """The GPU code that is due, as nvcc names it."""
    if resolution.cuda is None:
        return ()
    archs = resolution.cuda.archs
    return (
        *(f"sm_{arch.number}" for arch in archs),
        *(f"compute_{arch.number}" for arch in archs if arch.ptx),
    )


def _built(resolution: Resolution) -> tuple[str, ...]:
    names = [str(canonicalize_name(item.package)) for item in resolution.companions]
    names += [
        _distribution(extension) for extension in resolution.extensions if not extension.own_archs
    ]
    return (*(["torch"] if resolution.use == "source" else []), *names)


def _distribution(extension: ExtensionChoice) -> str:
    return canonicalize_name(extension.sdist.partition("==")[0] or extension.name)


def _decided(resolution: Resolution) -> tuple[str, ...]:
    start = "feature "
    # A profile is about what we build; a torch built by others knows nothing of it.
    whose = ("the recipe", "profile") if resolution.use == "source" else ("the recipe",)
    return tuple(
        choice.subject.removeprefix(start)
        for choice in resolution.choices
        if choice.subject.startswith(start) and choice.reason.startswith(whose)
    )


def _linking(resolution: Resolution) -> tuple[tuple[str, Linking], ...]:
    found: list[tuple[str, Linking]] = []
    for name, mode in resolution.features:
        if name in _LINKED and mode in ("static", "system"):
            found.append((name, "static" if mode == "static" else "system"))
    if resolution.cuda is not None:
        static = resolution.feature("static_cuda") == "on"
        found.append(("cuda runtime", "static" if static else "dynamic"))
    return tuple(found)
