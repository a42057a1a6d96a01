"""Deciding how the build is called: its environment, flags, Python packages and base image."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from torchsmith.facts.cuda import find_toolkit, image_end, repositories
from torchsmith.facts.files import Facts, addresses
from torchsmith.facts.models import Board, DebianBuild, VendoredFile
from torchsmith.facts.ranges import python_release, requirement, version_range
from torchsmith.facts.torch import entry_for
from torchsmith.names import did_you_mean
from torchsmith.recipe.models import Recipe
from torchsmith.resolve.build_rules import find_system
from torchsmith.resolve.cuda import toolkit_packages
from torchsmith.resolve.models import (
    Case,
    CudaChoice,
    Evidence,
    FoundationChoice,
    RepositoryChoice,
    SourceChoice,
    VendoredChoice,
)
from torchsmith.resolve.sources import lacks_libraries
from torchsmith.resolve.target import Target


def board_notes(case: Case, board: Board) -> None:
    """What the board cannot have, as cautions."""
    needed = max(
        (
            entry.disk_mb // 1000
            for entry in case.facts.costs.compile
            if (entry.project, entry.profile) == ("torch", case.recipe.profile)
            and case.torch in version_range(entry.torch)
        ),
        default=0,
    )
    if case.recipe.torch.use == "source" and board.storage_gb and needed > board.storage_gb:
        case.caution(
            f"compiling takes about {needed} GB, and the {board.title} has "
            f"{board.storage_gb} GB of its own",
            "compile on a disk that is plugged in: WORK of the script",
        )
    for lack in board.lacks:
        case.caution(
            f"the {board.title} has no {lack.feature}: {lack.reason.rstrip('.')}",
            lack.instead.rstrip("."),
        )


def debian_build(case: Case, source: SourceChoice) -> DebianBuild | None:
    """What Debian's source needs that upstream's does not, if that is where it comes from."""
    if source.kind != "debian":
        return None
    found = entry_for(case.facts.systems.debian_build, case.torch)
    if found is None:
        case.caution(
            f"how to build Debian's source of torch {case.torch} is not known: it comes without "
            "the libraries upstream bundles",
            "source.kind = 'git'; or say in [build.env] and build.apt what it needs",
        )
        return None
    if lacks_libraries(case.facts, found, case.recipe, case.host.system):
        system = case.recipe.system or case.recipe.board or case.host.system
        case.caution(
            f"Debian's source of torch {case.torch} takes libraries of the distribution, and was "
            f"built with those of {found.oldest} and newer: {system} lacks some, or has older ones",
            f"system = '{found.oldest}'; or source.kind = 'git'",
        )
    case.choose(
        "libraries",
        "the system's",
        "Debian's source comes without the ones upstream bundles",
        addresses(case.facts.systems.sources, found),
    )
    return found


def vendored_files(
    debian: DebianBuild | None, cuda: str, features: Mapping[str, str]
) -> tuple[VendoredChoice, ...]:
    """What other packages lend, each lender asked once for all of it."""
    wanted = [
        item
        for item in (debian.vendored if debian is not None else ())
        if (item.cuda is None or (cuda and cuda in version_range(item.cuda)))
        and (not item.feature or features.get(item.feature, "off") != "off")
    ]
    lent: dict[tuple[str, str, str], list[VendoredFile]] = {}
    for item in wanted:
        lent.setdefault((item.suite, item.package, item.version), []).append(item)
    lenders = {
        key: SourceChoice(
            "debian" if key[0] else "pool" if items[0].pool else "wheel",
            suite=key[0],
            package=key[1],
            ref=key[2],
            url=items[0].pool,
            sha256="" if key[0] else items[0].sha256,
            files=tuple(sorted(item.file for item in items)),
        )
        for key, items in lent.items()
    }
    return tuple(
        VendoredChoice(
            item.path, lenders[item.suite, item.package, item.version], item.file, item.sha256
        )
        for item in wanted
    )


def build_env(
    case: Case,
    target: Target,
    cuda: CudaChoice | None,
    version: str,
    debian: DebianBuild | None,
    features: Mapping[str, str],
) -> dict[str, str]:
    """The environment of the build beside that of its features; the recipe's own wins."""
    env: dict[str, str] = {}
    for switch in case.facts.torch.switch:
        if case.torch in version_range(switch.torch) and switch.platform in (None, target.platform):
            env.update(switch.env)
    env.update(debian.env if debian else {})
    # The BLAS that a feature names is not the one that Debian's source takes by default.
    env = {name: value for name, value in env.items() if name not in features}
    if target.board is not None:
        env.update(target.board.env)
    if cuda is not None:
        env["TORCH_CUDA_ARCH_LIST"] = cuda.arch_list
        if cuda.nvcc_flags:
            env["TORCH_NVCC_FLAGS"] = " ".join(cuda.nvcc_flags)
    if case.recipe.profile == "debug":
        env["DEBUG"] = "1"
    env["PYTORCH_BUILD_VERSION"] = version
    env["PYTORCH_BUILD_NUMBER"] = "1"
    env.update(case.recipe.build.env)
    return env


def cpu_flags(case: Case, target: Target) -> str:
    """The compiler flag for the CPU; none for a portable build."""
    wish = case.recipe.cpu
    if wish == "portable":
        if target.board is not None:
            flags = f"-mcpu={target.board.cpu}"
            case.choose("CPU", flags, f"the {target.board.title}'s cores")
            return flags
        return ""
    if wish.startswith("-m"):
        flags = wish
    elif target.platform == "linux-aarch64":
        flags = f"-mcpu={wish}"
    else:
        flags = f"-march={wish}"
    case.choose("CPU", flags, "the recipe says so; the result may not start on an older CPU")
    name = flags.partition("=")[2].partition("+")[0]
    known = case.facts.systems.cpus.get(target.platform, [])
    if not flags.startswith("-mtune=") and name not in known:
        case.caution(
            f"gcc is not known to have a CPU {name!r} on {target.platform}",
            did_you_mean(name, known),
        )
    return flags


def base_image(recipe: Recipe, cuda: CudaChoice | None, plain: str) -> str:
    """What an image is built on: the recipe's own, NVIDIA's, or the bare distribution."""
    if recipe.image is not None and recipe.image.foundation is not None:
        return recipe.image.foundation.name
    if recipe.image is not None and recipe.image.base is not None:
        return recipe.image.base
    if cuda is not None and cuda.image:
        return cuda.image
    return plain


def span_of(facts: Facts, what: str, torch: str) -> str:
    """The range of something this torch needs; any if nothing is known."""
    entry = entry_for(getattr(facts.torch, what), torch)
    return entry.value if entry is not None else ":"


def has_cmake_wheels(python: str) -> bool:
    """Whether PyPI has CMake for this Python."""
    return python_release(python) >= (3, 7)


def needs_cmake(recipe: Recipe) -> bool:
    """Whether CMake may be called: torchvision alone is built by setuptools and Ninja."""
    beside = recipe.companions
    wishes = (beside.audio, beside.text, beside.codec)
    others = any(wish != "none" for wish in wishes) or beside.extension
    return recipe.torch.use == "source" or recipe.packages.magma or bool(others)


def build_requires(
    facts: Facts, torch: str, python: str, packages: list[str], own: Sequence[str], *, cmake: bool
) -> tuple[str, ...]:
    """The Python packages the build needs, as pip requirements; `own` are the recipe's."""
    spans = {
        "setuptools": span_of(facts, "setuptools", torch),
        "numpy": span_of(facts, "numpy", torch),
        "cmake": span_of(facts, "cmake", torch),
    }
    wanted: dict[str, str] = {}
    for text in packages:
        name = _name(text)
        wanted[name] = requirement(name, version_range(spans[name])) if name in spans else text
    wanted.setdefault("setuptools", requirement("setuptools", version_range(spans["setuptools"])))
    wanted.setdefault("wheel", "wheel")
    if has_cmake_wheels(python):
        wanted["ninja"] = "ninja"
        if cmake:
            wanted["cmake"] = requirement("cmake", version_range(spans["cmake"]))
    else:
        wanted.pop("cmake", None)
        wanted.pop("ninja", None)
    known = (item.pins for item in facts.systems.pinned if item.python == python)
    pins = {_name(pin): pin for pin in next(known, [])}
    needed = {name: pins.get(name, text) for name, text in wanted.items()}
    both: list[str] = []
    for text in own:
        name = _name(text)
        if name in spans and text != name:
            # pip takes what fits both, or says that nothing does.
            both.append(text)
        elif text != name or name not in needed:
            needed[name] = text
    return tuple(sorted({*needed.values(), *both}))


def check_pip(case: Case) -> None:
    """Refuse what pip could not install beside what this torch takes."""
    facts, torch = case.facts, case.torch
    tables = {
        "setuptools": facts.torch.setuptools,
        "numpy": facts.torch.numpy,
        "cmake": facts.torch.cmake,
    }
    for text in case.recipe.build.pip:
        name = _name(text)
        entry = entry_for(tables[name], torch) if name in tables else None
        if entry is None or _together(text, requirement(name, version_range(entry.value))):
            continue
        case.refuse(
            "build-pip",
            f"torch {torch} does not build with {text}",
            Evidence(f"asked for: {text} in build.pip"),
            Evidence(
                f"torch {torch} takes {name} {version_range(entry.value)}",
                addresses(facts.torch.sources, entry),
            ),
            f"leave {name} out of build.pip",
        )


def _together(*texts: str) -> bool:
    """Whether some version fits all of these requirements on one package."""
    from packaging.requirements import Requirement  # Few recipes have any.
    from packaging.version import Version

    both = [Requirement(text).specifier for text in texts]
    named = [one.version.removesuffix(".*") for item in both for one in item]
    ends = [Version(text).release for text in named]
    # At an end of a range, right after it, or right before it.
    tried = [[*end, 0, 1] for end in ends]
    tried += [[*end[:at], end[at] - 1, 9999] for end in ends for at in range(len(end)) if end[at]]
    versions = [*named, *(".".join(map(str, numbers)) for numbers in tried)] or ["1"]
    return any(all(item.contains(one, prereleases=True) for item in both) for one in versions)


def _name(text: str) -> str:
    found = re.match(r"[\w.-]+", text)
    return found[0] if found else text


_NVIDIAS = re.compile(
    r"(?:docker\.io/)?nvidia/cuda:(?P<cuda>\d+\.\d+)(?:\.\d+)*(?:-cudnn(?P<cudnn>\d+))?"
    r"(?:-(?P<flavour>[a-z]+))?-(?P<system>[a-z]+\d[\d.]*)"
)


def check_base(case: Case) -> None:
    """Refuse a base image of another distribution than the recipe's: its packages are not there."""
    recipe = case.recipe
    named = _named(recipe)
    base = _system_of(case.facts, named)
    if base is None or recipe.system is None or base == recipe.system:
        return
    key = "foundation.from" if recipe.image and recipe.image.foundation else "base"
    case.refuse(
        "base-system",
        f"the image {named} is {base}, not {recipe.system}",
        Evidence(f"asked for: system = {recipe.system!r}"),
        Evidence(f"the image stands on {named}, which is {base} by its name"),
        f"name an image of {recipe.system} in image.{key}",
    )


def _named(recipe: Recipe) -> str:
    """The image the recipe says to start from."""
    image = recipe.image
    if image is None:
        return ""
    return image.foundation.start if image.foundation else image.base or ""


def _system_of(facts: Facts, named: str) -> str | None:
    """The distribution that the name of an image tells."""
    if match := _NVIDIAS.match(named):
        return re.sub(r"([a-z]+)", r"\1-", match["system"])
    whole = named if "/" in named else f"docker.io/library/{named}"
    return next((item.name for item in facts.systems.system if item.image == whole), None)


def deleted_base(case: Case, platform: str) -> FoundationChoice | None:
    """What stands for an image of NVIDIA's that the recipe names and that is gone.

    Of a base image that is built here, it is the packages the image was made of; an image that is
    used as it is can only be said to be gone.
    """
    image = case.recipe.image
    named = _named(case.recipe)
    match = _NVIDIAS.match(named)
    end = image_end(case.facts, match["cuda"]) if match else None
    if image is None or match is None or end is None or not end.gone:
        return None
    gone = f"NVIDIA deleted its CUDA {match['cuda']} images in {end.since}"
    made = _assembled(case.facts, match, platform) if image.foundation else None
    if made is None:
        case.caution(
            f"{named} is gone from Docker Hub: {gone}",
            "name a copy of it; or leave it out: its packages are then put on the "
            "distribution's own image"
            if image.foundation is None
            else "name a copy of it in image.foundation.from",
        )
        return None
    why = f"{gone}; the packages of {named} are put on the distribution's own image"
    case.choose("base image", made.start, why)
    return made


def _assembled(facts: Facts, match: re.Match[str], platform: str) -> FoundationChoice | None:
    """The distribution and the packages of a deleted image; None where nobody has them."""
    known = find_toolkit(facts, match["cuda"])
    name = re.sub(r"([a-z]+)", r"\1-", match["system"])
    system = find_system(facts, name)
    if known is None or system is None:
        return None
    found = repositories(facts, known.version, system.name, platform)
    cudnn = match["cudnn"] or ""
    apt, runtime = toolkit_packages(facts, known, "apt", system.name, cudnn, with_cudnn=bool(cudnn))
    if not found or not apt:
        return None
    packages = apt if match["flavour"] == "devel" else runtime
    listed = tuple(RepositoryChoice(item.url, item.key, item.fingerprint) for item in found)
    cuda = CudaChoice(
        known.version, known.version, "apt", (), cudnn, apt=packages, repositories=listed
    )
    return FoundationChoice(system.image, system.name, cuda)
