"""Deciding which CUDA, with which cuDNN, for which machine."""

from __future__ import annotations

from collections.abc import Sequence

from torchsmith.facts.cuda import compiles, driver_standing, find_toolkit, toolkits
from torchsmith.facts.files import Facts, addresses
from torchsmith.facts.models import Mode
from torchsmith.facts.models import Toolkit as KnownToolkit
from torchsmith.facts.ranges import dotted, release, version_range
from torchsmith.facts.torch import entry_for, is_published, published_archs
from torchsmith.host.models import Host
from torchsmith.recipe.models import Recipe
from torchsmith.resolve.archs import MANY_ARCHS, ArchDecisions, arch_of_installed, named_archs
from torchsmith.resolve.build_rules import find_system
from torchsmith.resolve.models import Caution, Change, Choice, Conflict, CudaChoice, Evidence
from torchsmith.resolve.rules import builds_with
from torchsmith.resolve.target import Target
from torchsmith.resolve.toolchain import Decided, decide_toolkit, image_tag

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


def _for_gpus(
    facts: Facts, recipe: Recipe, torch: str, target: Target, host: Host, decided: Decided
) -> str:
    """A GPU is named and no CUDA: the one that goes with torch, the GPU and the driver."""
    native = any(text.lower().startswith("native") for text in recipe.gpus)
    here = [arch_of_installed(facts, gpu) for gpu in host.gpus] if native else []
    archs = [*named_archs(facts, recipe.gpus), *filter(None, here)]
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
            decided.choices.append(Choice("CUDA", version, f"{why}, and fits torch and GPU"))
            return version
    version = suggested_cuda(facts, torch, archs, target.platform, driver)
    told = f", and driver {driver} runs it" if driver else ""
    if not version:
        version = suggested_cuda(facts, torch, archs) or suggested_cuda(facts, torch)
        told = ""
    if version:
        wheels = published_archs(facts, torch, version, target.platform)
        which = "publishes torch" if wheels else "builds torch"
        decided.choices.append(
            Choice(
                "CUDA",
                version,
                f"a GPU is named and no CUDA: the newest PyTorch {which} {torch} for that "
                f"compiles for {', '.join(dict.fromkeys(archs)) or 'it'}{told}",
                addresses(facts.torch.sources, wheels or span),
            )
        )
    return version


def decide_cuda(
    facts: Facts, recipe: Recipe, torch: str, target: Target, host: Host, decided: Decided
) -> str:
    """The toolkit as major.minor; empty for none."""
    asked = recipe.cuda.version
    if asked == "none":
        # Left out is not the same as 'none'.
        if recipe.gpus != ["published"] and "cuda" not in recipe.model_fields_set:
            return _for_gpus(facts, recipe, torch, target, host, decided)
        return ""
    if asked == "host":
        return _hosts_cuda(facts, torch, target, host, decided)
    if "." not in asked:
        return _newest_of_major(facts, torch, asked, decided)
    toolkit = find_toolkit(facts, asked)
    return toolkit.version if toolkit else dotted(release(asked)[:2])


def _newest_of_major(facts: Facts, torch: str, major: str, decided: Decided) -> str:
    span = entry_for(facts.torch.cuda, torch)
    mine = [item.version for item in toolkits(facts) if item.version in version_range(major)]
    fitting = [item for item in mine if span is None or builds_with(span, item)]
    published = [item for item in fitting if is_published(facts, torch, item)]
    if not mine:
        return f"{major}.0"
    version = (published or fitting or mine)[-1]
    reason = f"the newest CUDA {major}"
    if published:
        reason += f" that PyTorch publishes torch {torch} for"
    elif fitting:
        reason += f" that torch {torch} builds with"
    decided.choices.append(Choice("CUDA", version, reason))
    return version


def _hosts_cuda(facts: Facts, torch: str, target: Target, host: Host, decided: Decided) -> str:
    if target.jetpack is not None:
        version = dotted(release(target.jetpack.cuda)[:2])
        decided.choices.append(Choice("CUDA", version, f"JetPack {target.jetpack.version}'s"))
        return version
    span = entry_for(facts.torch.cuda, torch)
    here = {dotted(release(item.version)[:2]): item for item in reversed(host.cuda)}
    fitting = [
        version
        for version in here
        if find_toolkit(facts, version) and (span is None or builds_with(span, version))
    ]
    if fitting:
        version = max(fitting, key=release)
        decided.choices.append(Choice("CUDA", version, f"installed at {here[version].path}"))
        return version
    offer = suggested_cuda(facts, torch)
    strange = [version for version in here if not find_toolkit(facts, version)]
    have = ", ".join(item.version for item in host.cuda) or "none"
    if strange:
        have += f" (CUDA {', '.join(strange)} is none we know)"
    decided.conflicts.append(
        Conflict(
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
    )
    # The rest is judged as if that were mended, so that no conflict follows from this one.
    return offer


def decide_cudnn(recipe: Recipe, cuda: str, target: Target, decided: Decided) -> str:
    """The cuDNN asked for, or JetPack's."""
    off = recipe.features.get("cudnn") == "off"
    if not cuda or off:
        return ""
    if recipe.cuda.cudnn:
        return recipe.cuda.cudnn
    if target.jetpack is not None:
        decided.choices.append(
            Choice("cuDNN", target.jetpack.cudnn, f"JetPack {target.jetpack.version}'s")
        )
        return target.jetpack.cudnn
    return ""


def check_cuda_wishes(
    facts: Facts, recipe: Recipe, torch: str, cuda: str, decided: Decided
) -> None:
    """What a recipe may say twice, and differently: CUDA, its parts, GPUs."""
    for name, version in (("cudnn", recipe.cuda.cudnn), ("nccl", recipe.cuda.nccl)):
        if not version:
            continue
        first = Evidence(f"cuda.{name} = {version!r}")
        if not cuda:
            decided.conflicts.append(
                Conflict(
                    "cuda-parts",
                    f"a release of {name} is asked for, but no CUDA",
                    first,
                    Evidence("cuda.version = 'none'"),
                    f"cuda.version = '{suggested_cuda(facts, torch)}'; or leave cuda.{name} out",
                    (Change(f"cuda.{name}", ""),),
                )
            )
        elif recipe.features.get(name) == "off":
            decided.conflicts.append(
                Conflict(
                    f"{name}-twice",
                    f"the recipe asks for a release of {name} and turns {name} off",
                    first,
                    Evidence(f"features.{name} = 'off'"),
                    f"leave features.{name} out; or leave cuda.{name} out",
                    (Change(f"features.{name}", ""),),
                )
            )
    if recipe.gpus != ["published"] and not cuda:
        wanted = named_archs(facts, recipe.gpus)
        offer = suggested_cuda(facts, torch, wanted) or suggested_cuda(facts, torch)
        decided.conflicts.append(
            Conflict(
                "gpu-without-cuda",
                "GPUs are asked for, but no CUDA",
                Evidence(f"asked for: gpus = {', '.join(recipe.gpus)}"),
                Evidence("cuda = 'none'"),
                f"cuda = '{offer}'; or leave gpus out",
                (Change("cuda", offer),),
            )
        )


def consider_cuda(
    facts: Facts, torch: str, cuda: str, target: Target, host: Host, decided: Decided
) -> None:
    """What is true of a torch with a CUDA, and worth a word before it is built."""
    toolkit = find_toolkit(facts, cuda) if cuda else None
    if toolkit is None:
        return
    entry = entry_for(facts.torch.cuda, torch)
    source = addresses(facts.torch.sources, entry)
    if entry is not None and cuda not in version_range(entry.value):
        if entry.works and cuda in version_range(entry.works):
            decided.cautions.append(
                Caution(
                    f"PyTorch does not publish torch {torch} with CUDA {cuda}; others build it",
                    f"cuda = '{suggested_cuda(facts, torch)}' is the newest upstream publishes",
                    "unpublished",
                    source,
                )
            )
        elif entry.unknown and cuda in version_range(entry.unknown):
            decided.cautions.append(
                Caution(
                    f"nobody is known to have built torch {torch} with CUDA {cuda}, or failed",
                    f"cuda = '{suggested_cuda(facts, torch)}' is the newest upstream publishes",
                    "unknown",
                    source,
                )
            )
    if host.driver and not target.board and driver_standing(toolkit, host.driver) == "older":
        oldest = toolkit.driver_compat or toolkit.driver
        offer = suggested_cuda(facts, torch, driver=host.driver)
        decided.cautions.append(
            Caution(
                f"this machine's driver {host.driver} is too old to run CUDA {cuda}, which needs "
                f"{oldest} or newer: it can be built here, and not run",
                f"update the driver{f', or cuda = {offer!r}' if offer else ''}",
                source=addresses(facts.cuda.sources, toolkit),
            )
        )


def check_cuda_feature(facts: Facts, wishes: dict[str, Mode], cuda: str, decided: Decided) -> None:
    """`features.cuda` may repeat what `cuda` says, and nothing else."""
    mode = wishes.pop("cuda", None)
    if mode is None or (mode == "on" and cuda) or (mode == "off" and not cuda):
        return
    feature = next(item for item in facts.features.feature if item.name == "cuda")
    known = mode in feature.modes
    decided.conflicts.append(
        Conflict(
            "cuda-twice" if known else "feature-mode",
            "the recipe says two different things about CUDA"
            if known
            else f"cuda cannot be {mode!r}",
            Evidence(f"features.cuda = {mode!r}"),
            Evidence(f"cuda = {cuda or 'none'!r}")
            if known
            else Evidence(
                f"cuda can be {' or '.join(feature.modes)}; features.static_cuda links its "
                "libraries statically",
                addresses(facts.features.sources, feature),
            ),
            "leave features.cuda out: `cuda` decides",
            (Change("features.cuda", ""),),
        )
    )


def cuda_choice(
    facts: Facts,
    recipe: Recipe,
    torch: str,
    cuda: str,
    archs: ArchDecisions,
    cudnn: str,
    target: Target,
    host: Host,
    decided: Decided,
) -> CudaChoice | None:
    """The toolkit in full: its build, where it comes from, its flags."""
    if not cuda:
        return None
    known = find_toolkit(facts, cuda)
    assert known is not None, cuda
    if not compiled(recipe):
        decided.choices.append(Choice("CUDA toolkit", "none", "nothing is compiled"))
        return CudaChoice(cuda, cuda, "none", tuple(archs.archs), cudnn)
    system = find_system(facts, target.system) if target.system and target.container else None
    toolkit = decide_toolkit(
        facts,
        asked=recipe.cuda,
        cuda=cuda,
        torch=torch,
        system=system,
        board=target.board.name if target.board else "",
        host=host,
        decided=decided,
    )
    image = ""
    if toolkit == "image" and system is not None:
        image = image_tag(known, system.name.replace("-", ""), cudnn)
    return CudaChoice(
        version=cuda,
        build=_build(known, recipe.cuda.version, decided),
        toolkit=toolkit,
        archs=tuple(archs.archs),
        cudnn=cudnn,
        nccl=recipe.cuda.nccl or "",
        image=image,
        nvcc_flags=_nvcc_flags(facts, recipe, torch, cuda, archs, target, decided),
    )


def _build(known: KnownToolkit, asked: str, decided: Decided) -> str:
    newest = known.builds[-1] if known.builds else known.version
    if asked in known.builds:
        return asked
    if asked.count(".") > 1:
        decided.choices.append(
            Choice("CUDA", newest, f"the newest compiler of CUDA {known.version} we know")
        )
    return newest


def _nvcc_flags(
    facts: Facts,
    recipe: Recipe,
    torch: str,
    cuda: str,
    archs: ArchDecisions,
    target: Target,
    decided: Decided,
) -> tuple[str, ...]:
    if recipe.cuda.nvcc_flags or archs.explicit or len(archs.archs) < MANY_ARCHS:
        return tuple(recipe.cuda.nvcc_flags)
    decided.choices.append(
        Choice(
            "nvcc flags",
            " ".join(COMPRESSED),
            f"{len(archs.archs)} architectures pass 2 GiB uncompressed; PyTorch's own builds do so",
            addresses(facts.torch.sources, published_archs(facts, torch, cuda, target.platform)),
        )
    )
    return COMPRESSED


def compiled(recipe: Recipe) -> bool:
    """Whether anything is compiled, torch itself or what is built against it."""
    beside = recipe.companions
    wishes = (beside.vision, beside.audio, beside.text, beside.codec)
    return bool(
        recipe.torch.use == "source"
        or any(wish != "none" for wish in wishes)
        or recipe.companions.extension
    )
