"""Deciding which CUDA, with which cuDNN, for which machine."""

from __future__ import annotations

from collections.abc import Sequence

from torchsmith.facts.cuda import (
    compiles,
    debian_toolkit,
    driver_standing,
    find_arch,
    find_toolkit,
    repositories,
    repository_packages,
    toolkits,
)
from torchsmith.facts.files import Facts, addresses
from torchsmith.facts.models import DebianToolkit, Mode
from torchsmith.facts.models import Toolkit as KnownToolkit
from torchsmith.facts.ranges import dotted, release, version_range
from torchsmith.facts.torch import (
    entry_for,
    is_published,
    patched_cuda,
    published_archs,
    wheel_cudnn,
)
from torchsmith.resolve.archs import MANY_ARCHS, ArchDecisions, named_archs, wanted_archs
from torchsmith.resolve.build_rules import find_system
from torchsmith.resolve.combination import Combination
from torchsmith.resolve.features import FeatureDecisions
from torchsmith.resolve.models import Case, Change, CudaChoice, Decided, Evidence, RepositoryChoice
from torchsmith.resolve.rules import builds_with, cudnn_arch
from torchsmith.resolve.target import Target, asked_cuda
from torchsmith.resolve.toolchain import compiled, decide_toolkit, image_tag

# What the project's own builds compile with; see pytorch/builder, manywheel/build_cuda.sh.
COMPRESSED = ("-Xfatbin", "-compress-all")


def suggested_cuda(
    facts: Facts,
    torch: str,
    archs: Sequence[str] = (),
    platform: str = "linux-x86_64",
    driver: str | None = None,
) -> str:
    """The newest toolkit for this torch, these GPUs and this driver; published ones first."""
    span = entry_for(facts.torch.cuda, torch)
    fitting = [
        item.version
        for item in toolkits(facts)
        if (span is None or item.version in version_range(span.value))
        and all(compiles(facts, item.version, arch) for arch in archs)
        and (driver is None or driver_standing(item, driver) != "older")
    ]
    published = [item for item in fitting if is_published(facts, torch, item, platform)]
    return (published or fitting or [""])[-1]


def _for_gpus(case: Case, target: Target) -> str:
    """A GPU is named and no CUDA: the one that goes with torch, the GPU and the driver."""
    facts, torch, host = case.facts, case.torch, case.host
    native = any(text.lower().startswith("native") for text in case.recipe.gpus)
    archs = wanted_archs(facts, host, case.recipe.gpus)
    if not archs and target.board is not None:
        archs = [target.board.arch]
    driver = host.driver if native else None
    span = entry_for(facts.torch.cuda, torch)
    known = find_system(facts, target.system) if target.system else None
    for toolkit in () if known is not None else host.cuda:
        version = dotted(release(toolkit.version)[:2])
        mine = find_toolkit(facts, version)
        if (
            mine is not None
            and (span is None or version in version_range(span.value))
            and all(compiles(facts, version, arch) for arch in archs)
            and (driver is None or driver_standing(mine, driver) != "older")
        ):
            why = f"a GPU is named and no CUDA; it is installed at {toolkit.path}"
            case.choose("CUDA", version, f"{why}, and fits torch and GPU")
            return version
    version = suggested_cuda(facts, torch, archs, target.platform, driver)
    and_driver = f", and driver {driver} runs it" if driver else ""
    if not version:
        version = suggested_cuda(facts, torch, archs) or suggested_cuda(facts, torch)
        and_driver = ""
    if version:
        wheels = published_archs(facts, torch, version, target.platform)
        which = "publishes torch" if wheels else "builds torch"
        case.choose(
            "CUDA",
            version,
            f"a GPU is named and no CUDA: the newest PyTorch {which} {torch} for that "
            f"compiles for {', '.join(dict.fromkeys(archs)) or 'it'}{and_driver}",
            addresses(facts.torch.sources, wheels or span),
        )
    return version


def decide_cuda(case: Case, target: Target) -> str:
    """The toolkit as major.minor; empty for none."""
    recipe = case.recipe
    asked = asked_cuda(recipe)
    if asked == "none":
        # Left out is not the same as 'none'.
        if recipe.gpus != ["published"] and "cuda" not in recipe.model_fields_set:
            return _for_gpus(case, target)
        return ""
    if asked == "host":
        return _hosts_cuda(case, target)
    if "." not in asked:
        return _newest_of_major(case, asked)
    toolkit = find_toolkit(case.facts, asked)
    return toolkit.version if toolkit else dotted(release(asked)[:2])


def _patched(case: Case, versions: Sequence[str]) -> list[str]:
    """Those of these toolkits that patches let this torch be built with."""
    if case.recipe.torch.use != "source":
        return []
    return [version for version in versions if patched_cuda(case.facts, case.torch, version)]


def _newest_of_major(case: Case, major: str) -> str:
    facts, torch = case.facts, case.torch
    span = entry_for(facts.torch.cuda, torch)
    mine = [item.version for item in toolkits(facts) if item.version in version_range(major)]
    fitting = [item for item in mine if span is None or builds_with(span, item)]
    published = [item for item in fitting if is_published(facts, torch, item)]
    if not mine:
        return f"{major}.0"
    version = (published or fitting or _patched(case, mine) or mine)[-1]
    reason = f"the newest CUDA {major}"
    if published:
        reason += f" that PyTorch publishes torch {torch} for"
    elif fitting:
        reason += f" that torch {torch} builds with"
    case.choose("CUDA", version, reason)
    return version


def _hosts_cuda(case: Case, target: Target) -> str:
    facts, torch = case.facts, case.torch
    if target.jetpack is not None:
        version = dotted(release(target.jetpack.cuda)[:2])
        case.choose("CUDA", version, f"JetPack {target.jetpack.version}'s")
        return version
    if target.board is not None and case.recipe.cuda.version != "host":
        return _for_gpus(case, target)
    span = entry_for(facts.torch.cuda, torch)
    here = {dotted(release(item.version)[:2]): item for item in reversed(case.host.cuda)}
    fitting = [
        version
        for version in here
        if find_toolkit(facts, version) and (span is None or builds_with(span, version))
    ]
    if fitting := fitting or _patched(case, list(here)):
        version = max(fitting, key=release)
        case.choose("CUDA", version, f"installed at {here[version].path}")
        return version
    offer = suggested_cuda(facts, torch)
    strange = [version for version in here if not find_toolkit(facts, version)]
    have = ", ".join(item.version for item in case.host.cuda) or "none"
    if strange:
        have += f" (CUDA {', '.join(strange)} is none we know)"
    case.refuse(
        "cuda-host",
        f"this machine has no CUDA toolkit that torch {torch} builds with",
        Evidence(f"toolkits here: {have}"),
        Evidence(
            f"torch {torch} builds with CUDA {version_range(span.value) if span else '?'}",
            addresses(facts.torch.sources, span),
        ),
        f"cuda = '{offer}'",
        (Change("cuda", offer),),
    )
    # The rest is judged as if that were mended, so that no conflict follows from this one.
    return offer


def decide_cudnn(case: Case, cuda: str, target: Target) -> str:
    """The cuDNN asked for, or JetPack's."""
    recipe = case.recipe
    off = recipe.features.get("cudnn") == "off"
    if not cuda or off:
        return ""
    if recipe.cuda.cudnn:
        return recipe.cuda.cudnn
    if target.jetpack is not None:
        case.choose("cuDNN", target.jetpack.cudnn, f"JetPack {target.jetpack.version}'s")
        return target.jetpack.cudnn
    return ""


def check_cuda_wishes(case: Case, cuda: str) -> None:
    """What a recipe may say twice, and differently: CUDA, its parts, GPUs."""
    facts, recipe, torch = case.facts, case.recipe, case.torch
    for name, version in (("cudnn", recipe.cuda.cudnn), ("nccl", recipe.cuda.nccl)):
        if not version:
            continue
        first = Evidence(f"cuda.{name} = {version!r}")
        if not cuda:
            case.refuse(
                "cuda-parts",
                f"a release of {name} is asked for, but no CUDA",
                first,
                Evidence("cuda.version = 'none'"),
                f"cuda.version = '{suggested_cuda(facts, torch)}'; or leave cuda.{name} out",
                (Change(f"cuda.{name}", ""),),
            )
        elif recipe.features.get(name) == "off":
            case.refuse(
                f"{name}-twice",
                f"the recipe asks for a release of {name} and turns {name} off",
                first,
                Evidence(f"features.{name} = 'off'"),
                f"leave features.{name} out; or leave cuda.{name} out",
                (Change(f"features.{name}", ""),),
            )
    if recipe.gpus != ["published"] and not cuda:
        wanted = named_archs(facts, recipe.gpus)
        offer = suggested_cuda(facts, torch, wanted) or suggested_cuda(facts, torch)
        case.refuse(
            "gpu-without-cuda",
            "GPUs are asked for, but no CUDA",
            Evidence(f"asked for: gpus = {', '.join(recipe.gpus)}"),
            Evidence("cuda = 'none'"),
            f"cuda = '{offer}'; or leave gpus out",
            (Change("cuda", offer),),
        )


def consider_driver(case: Case, gpus: Sequence[str]) -> None:
    """A driver may be too new as well: each leaves some generation out."""
    facts, host = case.facts, case.host
    for name in named_archs(facts, gpus) if host.driver else ():
        arch = find_arch(facts, name)
        last = arch.last_driver if arch else ""
        if arch and last and release(host.driver or "") >= (int(last) + 1,):
            case.caution(
                f"this machine's driver {host.driver} no longer runs {arch.family} GPUs "
                f"(compute capability {name})",
                f"a driver of branch {last}, the last that does",
                source=addresses(facts.cuda.sources, arch),
            )


def consider_cuda(case: Case, cuda: str, target: Target) -> None:
    """What is true of a torch with a CUDA, and worth a word before it is built."""
    facts, torch, host = case.facts, case.torch, case.host
    toolkit = find_toolkit(facts, cuda) if cuda else None
    if toolkit is None:
        return
    entry = entry_for(facts.torch.cuda, torch)
    source = addresses(facts.torch.sources, entry)
    if entry is not None and cuda not in version_range(entry.value):
        if entry.works and cuda in version_range(entry.works):
            case.caution(
                f"PyTorch does not publish torch {torch} with CUDA {cuda}; others build it",
                f"cuda = '{suggested_cuda(facts, torch)}' is the newest upstream publishes",
                "unpublished",
                source,
            )
        elif entry.unknown and cuda in version_range(entry.unknown):
            case.caution(
                f"nobody is known to have built torch {torch} with CUDA {cuda}, or failed",
                f"cuda = '{suggested_cuda(facts, torch)}' is the newest upstream publishes",
                "unknown",
                source,
            )
    if host.driver and not target.board and driver_standing(toolkit, host.driver) == "older":
        oldest = toolkit.driver_compat or toolkit.driver
        offer = suggested_cuda(facts, torch, driver=host.driver)
        case.caution(
            f"this machine's driver {host.driver} is too old to run CUDA {cuda}, which needs "
            f"{oldest} or newer: it can be built here, and not run",
            f"update the driver{f', or cuda = {offer!r}' if offer else ''}",
            source=addresses(facts.cuda.sources, toolkit),
        )


def consider_wheel(case: Case, asked: Combination) -> None:
    """What a published wheel holds and brings, against the GPUs that it is to run on."""
    facts, torch, cuda = case.facts, asked.torch, asked.cuda
    entry = published_archs(facts, torch, cuda, asked.platform)
    if entry is not None and asked.gpus and not entry.archs:
        case.caution(
            f"nobody has looked for which GPUs the wheel of torch {torch} with CUDA {cuda} is "
            "compiled",
            "torch.use = 'source'; or look at torch.cuda.get_arch_list() once it is installed",
            "unknown",
            addresses(facts.torch.sources, entry),
        )
    brought = wheel_cudnn(facts, torch, cuda)
    for arch in (text.removesuffix("+PTX") for text in asked.gpus if brought):
        if brought is not None and cudnn_arch(facts, brought.cudnn, arch):
            case.caution(
                f"the wheel of torch {torch} with CUDA {cuda} brings cuDNN {brought.cudnn}, which "
                f"does not run on compute capability {arch}: convolutions fail there",
                "torch.backends.cudnn.enabled = False; or an older torch; or torch.use = 'source'",
                "fails",
                addresses(facts.torch.sources, brought),
            )


def check_cuda_feature(case: Case, wishes: dict[str, Mode], cuda: str) -> None:
    """`features.cuda` may repeat what `cuda` says, and nothing else."""
    mode = wishes.pop("cuda", None)
    if mode is None or (mode == "on" and cuda) or (mode == "off" and not cuda):
        return
    feature = next(item for item in case.facts.features.feature if item.name == "cuda")
    known = mode in feature.modes
    case.refuse(
        "cuda-twice" if known else "feature-mode",
        "the recipe says two different things about CUDA" if known else f"cuda cannot be {mode!r}",
        Evidence(f"features.cuda = {mode!r}"),
        Evidence(f"cuda = {cuda or 'none'!r}")
        if known
        else Evidence(
            f"cuda can be {' or '.join(feature.modes)}; features.static_cuda links its "
            "libraries statically",
            addresses(case.facts.features.sources, feature),
        ),
        "leave features.cuda out: `cuda` decides",
        (Change("features.cuda", ""),),
    )


def cuda_choice(
    case: Case, cuda: str, archs: ArchDecisions, cudnn: str, target: Target, *, with_cudnn: bool
) -> CudaChoice | None:
    """The toolkit in full: its build, where it comes from, its flags."""
    facts, recipe = case.facts, case.recipe
    if not cuda:
        return None
    known = find_toolkit(facts, cuda)
    assert known is not None, cuda
    if not compiled(recipe):
        case.choose("CUDA toolkit", "none", "nothing is compiled")
        return CudaChoice(cuda, cuda, "none", tuple(archs.archs), cudnn)
    if _patched(case, [cuda]):
        case.caution(
            f"torch {case.torch} with CUDA {cuda} is not upstream's: PyTorch never published it, "
            "and it compiles here only with torchsmith's own patches",
            f"cuda = '{suggested_cuda(facts, case.torch)}'; or a newer torch",
        )
    system = find_system(facts, target.system) if target.system and target.container else None
    toolkit = decide_toolkit(case, target, cuda, system)
    image = ""
    if toolkit == "image" and system is not None:
        image = image_tag(known, system.name.replace("-", ""), cudnn)
    place = system.name if system else case.host.system
    apt, apt_runtime = toolkit_packages(facts, known, toolkit, place, cudnn, with_cudnn=with_cudnn)
    if toolkit == "debian" and system is None:
        _install_here(case, place, apt)
    return CudaChoice(
        version=cuda,
        build=_build(known, recipe.cuda.version, case),
        toolkit=toolkit,
        archs=tuple(archs.archs),
        cudnn=cudnn,
        nccl=recipe.cuda.nccl or "",
        image=image,
        nvcc_flags=_nvcc_flags(case, cuda, archs, target),
        apt=apt,
        apt_runtime=apt_runtime,
        repositories=tuple(
            RepositoryChoice(item.url, item.key, item.fingerprint)
            for item in repositories(facts, cuda, place, target.platform)
        )
        if toolkit == "apt"
        else (),
    )


def toolkit_packages(
    facts: Facts, known: KnownToolkit, toolkit: str, system: str, cudnn: str, *, with_cudnn: bool
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The packages of a toolkit that a distribution's packages bring, to build and to run with."""
    own = debian_toolkit(facts, system)
    if toolkit == "debian" and own is not None:
        return tuple(own.build), tuple(own.runtime)
    named = repository_packages(facts, known.version)
    if toolkit != "apt" or named is None:
        return (), ()
    number = known.version.replace(".", "-")
    build = [name.format(cuda=number) for name in named.build]
    runtime = [name.format(cuda=number) for name in named.runtime]
    if with_cudnn:
        library, headers = _cudnn_packages(known, cudnn)
        build += [library, headers]
        runtime.append(library)
    return tuple(build), tuple(runtime)


def _cudnn_packages(known: KnownToolkit, cudnn: str) -> tuple[str, str]:
    """cuDNN's library and headers; from 9 on their names say which CUDA they are for."""
    digits = cudnn or known.image_cudnn.removeprefix("cudnn") or "9"
    major = release(digits)[0]
    if major < 9:
        return f"libcudnn{major}", f"libcudnn{major}-dev"
    cuda = release(known.version)[0]
    return f"libcudnn{major}-cuda-{cuda}", f"libcudnn{major}-dev-cuda-{cuda}"


def _install_here(case: Case, system: str, packages: tuple[str, ...]) -> None:
    """Say what to install where Debian's toolkit is to be used on this machine and is not there."""
    own = debian_toolkit(case.facts, system)
    version = own.cuda if own else ""
    if any(
        item.path == "/usr" and release(item.version)[:2] == release(version)
        for item in case.host.cuda
    ):
        return
    case.caution(
        f"CUDA {version} of {system} is not installed on this machine",
        f"enable contrib and non-free, then apt-get install {' '.join(packages)}; or build in "
        f"an image: system = '{system}'",
    )


def settle_parts(case: Case, wishes: dict[str, Mode], cuda: str, asked: Combination) -> None:
    """How cuDNN and NCCL are had, where the toolkit or a release that is asked for decides it."""
    recipe = case.recipe
    if not cuda:
        return
    if recipe.cuda.nccl and "nccl" not in wishes and recipe.torch.use == "source":
        wishes["nccl"] = "system"
        case.choose(
            "nccl", "system", f"NCCL {recipe.cuda.nccl} is asked for: torch's own is another"
        )
    elif recipe.cuda.nccl and wishes.get("nccl") == "on":
        case.caution(
            f"features.nccl = 'on' compiles torch's own NCCL: cuda.nccl = {recipe.cuda.nccl!r} "
            "is not used",
            "features.nccl = 'system'",
        )
    own = debian_toolkit(case.facts, asked.system or asked.here)
    if own is None or own.cuda != cuda or recipe.cuda.toolkit not in (None, "debian"):
        return
    if recipe.cuda.toolkit is None and (asked.own_base or not asked.system):
        return
    here = not asked.system and "cudnn" in case.host.libraries
    if recipe.torch.use == "source" and not here:
        if "cudnn" not in wishes and not recipe.cuda.cudnn:
            wishes["cudnn"] = "off"
            case.choose(
                "cudnn", "off", f"{own.system} has no package of it", _source(case.facts, own)
            )
        elif wishes.get("cudnn") != "off":
            case.caution(
                f"{own.system} has no package of cuDNN: it must be in the base image already",
                "features.cudnn = 'off'; or image.base",
            )
    if wishes.get("nccl") in ("system", "static"):
        _check_debian_nccl(case, own, wishes["nccl"])


def _source(facts: Facts, own: DebianToolkit) -> str:
    return addresses(facts.cuda.sources, own)


def _check_debian_nccl(case: Case, own: DebianToolkit, mode: Mode) -> None:
    wanted = case.recipe.cuda.nccl or ""
    if own.nccl and (not wanted or own.nccl in version_range(wanted)):
        return
    case.refuse(
        "nccl-debian",
        f"{own.system} has no NCCL {wanted}".rstrip(),
        Evidence(f"cuda.nccl = {wanted!r}" if wanted else f"features.nccl = {mode!r}"),
        Evidence(
            f"{own.system} packages NCCL {own.nccl or 'not at all'}", _source(case.facts, own)
        ),
        f"cuda.nccl = '{own.nccl}'" if own.nccl else "features.nccl = 'on': torch's own",
        (Change("cuda.nccl", own.nccl),)
        if own.nccl
        else (Change("features.nccl", "on"), Change("cuda.nccl", "")),
    )


def feature_packages(features: FeatureDecisions, cuda: CudaChoice | None) -> tuple[str, ...]:
    """The packages features need: NCCL's come with the wheels, where those bring the toolkit."""
    packages = list(features.apt)
    if (
        cuda is not None
        and cuda.toolkit in ("apt", "debian")
        and features.modes.get("nccl") == "static"
    ):
        packages += ["libnccl2", "libnccl-dev"]
    if cuda is not None and cuda.toolkit == "wheels":
        packages = [name for name in packages if not name.startswith("libnccl")]
    return tuple(packages)


def _build(known: KnownToolkit, asked: str, decided: Decided) -> str:
    newest = known.builds[-1] if known.builds else known.version
    if asked in known.builds:
        return asked
    if asked.count(".") > 1:
        decided.choose("CUDA", newest, f"the newest compiler of CUDA {known.version} we know")
    return newest


def _nvcc_flags(case: Case, cuda: str, archs: ArchDecisions, target: Target) -> tuple[str, ...]:
    if case.recipe.cuda.nvcc_flags or archs.explicit or len(archs.archs) < MANY_ARCHS:
        return tuple(case.recipe.cuda.nvcc_flags)
    case.choose(
        "nvcc flags",
        " ".join(COMPRESSED),
        f"{len(archs.archs)} architectures pass 2 GiB uncompressed; PyTorch's own builds do so",
        addresses(
            case.facts.torch.sources, published_archs(case.facts, case.torch, cuda, target.platform)
        ),
    )
    return COMPRESSED
