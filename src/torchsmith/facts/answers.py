"""Answers to questions people ask of the facts, as titled lines with their sources."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from torchsmith.errors import UsageError
from torchsmith.facts.cuda import (
    archs_of,
    compiles,
    find_arch,
    find_toolkit,
    host_compiler,
    image_end,
    toolkits,
)
from torchsmith.facts.files import Facts, addresses
from torchsmith.facts.gpus import find_gpu, nearest_gpus, other_cards
from torchsmith.facts.models import Toolkit, TorchRelease
from torchsmith.facts.platforms import runs_on_glibc
from torchsmith.facts.ranges import cuda_release, release, version_range
from torchsmith.facts.torch import (
    companion_for,
    companion_releases,
    entry_for,
    find_release,
    releases,
    stack_package,
    wheel_cudas,
)


@dataclass(frozen=True, slots=True)
class AnswerLine:
    """One statement and where it can be checked."""

    subject: str
    value: str
    source: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What is known of one thing."""

    title: str
    lines: tuple[AnswerLine, ...]
    # The answer in one line.
    short: str = ""
    # The same for programs: numbers and lists, no prose.
    data: dict[str, Any] = field(default_factory=dict)


def _lines(*rows: tuple[str, str | None, str]) -> list[AnswerLine]:
    """A line for each row that has a value: its subject, the value, its source."""
    return [AnswerLine(subject, value, source) for subject, value, source in rows if value]


def _picked(fact: object, *names: str) -> dict[str, Any]:
    """These attributes of a fact."""
    return {name: getattr(fact, name) for name in names}


def _unknown(what: str, name: str, names: Iterable[str]) -> UsageError:
    known, words = list(names), name.lower().replace("-", " ").split()
    # Part of a name is closer than a misspelt one: orin, jetson orin.
    close = [item for item in known if words and all(word in item.lower() for word in words)][:4]
    close = close or difflib.get_close_matches(name.lower(), known, n=3, cutoff=0.6)
    if what in ("torch", "cuda") and not release(known[0]) <= release(name) <= release(known[-1]):
        # A number outside of all we know is not one of them misspelt.
        return UsageError(
            f"no {what} named {name!r} is known", f"Known are {known[0]} to {known[-1]}."
        )
    hint = (
        f"Did you mean {' or '.join(close)}?" if close else f"`torchsmith facts {what}` lists them."
    )
    noun = "package of a stack" if what == "stack" else what
    return UsageError(f"no {noun} named {name!r} is known", hint)


def _checked(what: str, text: str) -> str:
    """A release, written as a recipe may write it: v2.6.0 and cu126, too."""
    text = cuda_release(text) if what == "cuda" else text.removeprefix("v")
    try:
        release(text)
    except ValueError:
        raise UsageError(
            f"{what}: {text!r} is not a release", f"`torchsmith facts {what}` lists them."
        ) from None
    return text


def about_gpu(facts: Facts, name: str | None) -> Answer:
    """One GPU, or all of them."""
    table = facts.gpus.sources
    if name is None:
        ordered = sorted(
            facts.gpus.gpu, key=lambda gpu: release(gpu.arch.rstrip("af")), reverse=True
        )
        lines = [AnswerLine(gpu.name, f"{gpu.arch}  {gpu.kind}") for gpu in ordered]
        data: dict[str, Any] = {"gpus": [_picked(gpu, "name", "arch") for gpu in ordered]}
        return Answer(f"{len(lines)} GPUs", tuple(lines), data=data)
    gpu = find_gpu(facts, name)
    if gpu is None and (other := other_cards(facts, name)) is not None:
        raise UsageError(f"{name!r} is {other.vendor}: {other.exists}", addresses(table, other))
    if gpu is None:
        close = " or ".join(nearest_gpus(facts, name))
        hint = f"Did you mean {close}?" if close else "`torchsmith facts gpu` lists them."
        raise UsageError(f"no GPU named {name!r} is known", hint)
    arch = find_arch(facts, gpu.arch)
    knowing = [
        item.version
        for item in releases(facts)
        if (entry := entry_for(facts.torch.archs, item.version)) and gpu.arch in entry.known
    ]
    cuda = str(version_range(arch.cuda)) if arch is not None else ""
    driver = arch.last_driver if arch is not None else ""
    known = f"{knowing[0]} to {knowing[-1]}" if knowing else ""
    lines = _lines(
        ("compute capability", gpu.arch, addresses(table, gpu)),
        ("kind", gpu.kind, ""),
        ("in an arch list", f"{gpu.arch} (sm_{gpu.arch.replace('.', '')})", ""),
        ("family", arch.family if arch is not None else "", ""),
        ("CUDA", cuda, addresses(facts.cuda.sources, arch)),
        ("driver", driver and f"up to {driver}.x, the last for it", ""),
        ("torch", known and f"{known} know it", ""),
        ("note", gpu.note, ""),
    )
    cudas = [item.version for item in toolkits(facts) if compiles(facts, item.version, gpu.arch)]
    short = f"compute capability {gpu.arch}"
    short += (cuda and f"; CUDA {cuda}") + (known and f"; torch {known}")
    data = {**_picked(gpu, "name", "arch", "kind", "platform"), "cuda": cudas, "torch": knowing}
    return Answer(gpu.name, tuple(lines), short, data)


def about_torch(facts: Facts, version: str | None) -> Answer:
    """One release, or all of them."""
    if version is None:
        lines = [
            AnswerLine(item.version, f"Python {', '.join(item.pythons)}")
            for item in reversed(releases(facts))
        ]
        data: dict[str, Any] = {"torch": [item.version for item in releases(facts)]}
        return Answer(f"{len(lines)} releases of PyTorch", tuple(lines), data=data)
    found = _release(facts, version)
    torch = found.version
    table = facts.torch.sources
    own = addresses(facts.releases.sources, found)
    lines = _lines(
        ("tag", found.tag, own),
        ("commit", found.commit, own),
        ("commit of the wheels", found.wheel_commit, own),
        ("released", found.date, own),
        ("Python", ", ".join(found.pythons), own),
    )
    for subject, entries in (
        ("CUDA", facts.torch.cuda),
        ("CUDA with our patches", facts.torch.patched_cuda),
        ("cuDNN", facts.torch.cudnn),
        ("CMake", facts.torch.cmake),
        ("setuptools", facts.torch.setuptools),
        ("numpy", facts.torch.numpy),
        ("torch.compile, Python", facts.torch.compile),
    ):
        if (span := entry_for(entries, torch)) is not None:
            text = str(version_range(span.value)) + (f" ({span.note})" if span.note else "")
            lines.append(AnswerLine(subject, text, addresses(table, span)))
    if (cxx := entry_for(facts.torch.cxx, torch)) is not None:
        text = f"C++{cxx.standard}, gcc {version_range(cxx.gcc)}"
        lines.append(AnswerLine("compiler", text, addresses(table, cxx)))
    if (archs := entry_for(facts.torch.archs, torch)) is not None:
        lines.append(AnswerLine("GPUs it knows", ", ".join(archs.known), addresses(table, archs)))
    for published in facts.torch.published:
        if torch in version_range(published.torch):
            subject = f"published, CUDA {version_range(published.cuda)}"
            where = "" if published.platform == "linux-x86_64" else f" ({published.platform})"
            archs_text = published.archs or "its arch list is not known"
            lines.append(AnswerLine(subject + where, archs_text, addresses(table, published)))
    if found.pypi_brings:
        names = {"cudnn": "cuDNN", "nccl": "NCCL", "triton": "triton"}
        brought = ", ".join(f"{names[name]} {it}" for name, it in found.pypi_brings.items())
        lines.append(AnswerLine("PyPI's wheel brings", f"CUDA {found.pypi_cuda}, {brought}", own))
    for project in facts.companions.project:
        matching = [
            item
            for item in companion_releases(facts, project.name)
            if torch in version_range(item.torch)
        ]
        if matching:
            value = ", ".join(item.version for item in matching)
            source = addresses(facts.companions.sources, matching[-1])
        else:
            ended = f"; it ended at {project.ended}" if project.ended else ""
            value, source = f"none{ended}", addresses(facts.companions.sources, project)
        lines.append(AnswerLine(project.package, value, source))
    suites = [
        item.suite
        for item in facts.systems.debian
        if (item.project, item.version) == ("torch", torch)
    ]
    lines += _lines(("Debian source", ", ".join(suites), ""), ("note", found.note, ""))
    return Answer(f"torch {torch}", tuple(lines), *_torch_in_short(facts, found))


def _release(facts: Facts, version: str) -> TorchRelease:
    """The release of this name."""
    found = find_release(facts, _checked("torch", version))
    if found is None:
        raise _unknown("torch", version, [item.version for item in releases(facts)])
    return found


def _torch_in_short(facts: Facts, found: TorchRelease) -> tuple[str, dict[str, Any]]:
    """A release in one line, and for programs."""
    torch = found.version
    wheels = {
        platform: list(wheel_cudas(facts, torch, platform))
        for platform in ("linux-x86_64", "linux-aarch64")
    }
    span = entry_for(facts.torch.cuda, torch)
    archs = entry_for(facts.torch.archs, torch)
    data: dict[str, Any] = {
        "torch": torch,
        **_picked(found, "tag", "commit"),
        "python": found.pythons,
        "python_experimental": found.experimental,
        "cuda": _cudas_in(facts, span.value if span is not None else None),
        # Others build it with these; upstream does not publish it.
        "cuda_built_by_others": _cudas_in(facts, span.works if span is not None else None),
        "wheels": wheels,
        "pypi_cuda": dict.fromkeys(found.pypi_cuda_on, found.pypi_cuda),
        "pypi_brings": found.pypi_brings,
        "archs": list(archs.known) if archs is not None else [],
        "companions": {
            project.package: match.version
            for project in facts.companions.project
            if (match := companion_for(facts, project.name, torch)) is not None
        },
    }
    published = ", ".join(wheels["linux-x86_64"]) or "no CUDA"
    short = f"Python {found.pythons[0]} to {found.pythons[-1]}; wheels for CUDA {published}"
    return short, data


def _cudas_in(facts: Facts, span: str | None) -> list[str]:
    """The toolkits of a range; none of no range."""
    known = [item.version for item in toolkits(facts)]
    return [version for version in known if span and version in version_range(span)]


def about_cuda(facts: Facts, version: str | None) -> Answer:
    """One toolkit, or all of them."""
    table = facts.cuda.sources
    if version is None:
        lines = [
            AnswerLine(item.version, f"driver {item.driver} or newer")
            for item in reversed(toolkits(facts))
        ]
        data: dict[str, Any] = {"cuda": [item.version for item in toolkits(facts)]}
        return Answer(f"{len(lines)} CUDA toolkits", tuple(lines), data=data)
    toolkit = find_toolkit(facts, _checked("cuda", version))
    if toolkit is None:
        raise _unknown("cuda", version, [item.version for item in toolkits(facts)])
    cuda = toolkit.version
    own = addresses(table, toolkit)
    accepting = [
        item.version
        for item in releases(facts)
        if (span := entry_for(facts.torch.cuda, item.version)) is not None
        and cuda in version_range(span.value)
    ]
    known = archs_of(facts, cuda)
    gcc, clang = (host_compiler(facts, cuda, kind) for kind in ("gcc", "clang"))
    oldest = toolkit.driver_compat
    cudnn = [
        str(version_range(item.cudnn))
        for item in facts.cuda.cudnn
        if cuda in version_range(item.cuda)
    ]
    lines = [
        *_lines(
            ("builds", ", ".join(toolkit.builds), own),
            ("driver", f"{toolkit.driver} or newer", own),
            ("oldest driver", oldest and f"{oldest} or newer, by minor-version compatibility", own),
            ("compiles for", ", ".join(it.arch for it in known), addresses(table, known[0])),
            ("gcc", f"up to {gcc.newest}" if gcc else "", addresses(table, gcc)),
            ("clang", f"up to {clang.newest}" if clang else "", addresses(table, clang)),
            ("cuDNN", ", ".join(cudnn), ""),
            ("torch", f"{accepting[0]} to {accepting[-1]}" if accepting else "none", ""),
        ),
        *_where_from(facts, toolkit),
        *_lines(
            ("nvcc on PyPI", "yes" if toolkit.wheels else "no", ""), ("note", toolkit.note, "")
        ),
    ]
    data = {
        "cuda": cuda,
        **_picked(toolkit, "builds", "driver", "driver_compat"),
        "archs": [item.arch for item in known],
        "gcc_newest": gcc.newest if gcc is not None else None,
        "torch": accepting,
        "nvcc_on_pypi": toolkit.wheels,
    }
    short = f"driver {toolkit.driver_compat or toolkit.driver} or newer"
    short += f"; gcc up to {gcc.newest}" if gcc is not None else ""
    short += f"; torch {accepting[0]} to {accepting[-1]}" if accepting else "; no torch"
    return Answer(f"CUDA {cuda}", tuple(lines), short, data)


def _where_from(facts: Facts, toolkit: Toolkit) -> Iterable[AnswerLine]:
    """What brings a toolkit to a machine or an image."""
    cuda, table = toolkit.version, facts.cuda.sources
    images = ", ".join(toolkit.images) or "none"
    end = image_end(facts, cuda)
    if end is not None and toolkit.images:
        images += (
            f"; gone since {end.since}: NVIDIA deleted them"
            if end.gone
            else f"; not maintained since {end.since}: NVIDIA may delete them"
        )
    yield AnswerLine("images", images, addresses(table, end))
    packaged = [item for item in facts.cuda.repository if item.holds == "toolkit"]
    found = [item for item in packaged if cuda in version_range(item.cuda)]
    systems = dict.fromkeys(item.system for item in found)
    where = [
        f"{name} ({', '.join(item.platform for item in found if item.system == name)})"
        for name in systems
    ]
    source = addresses(table, found[0]) if found else ""
    yield AnswerLine("NVIDIA's apt repository", ", ".join(where) or "none", source)
    for own in facts.cuda.debian:
        if own.cuda == cuda:
            yield AnswerLine("Debian's own", f"{own.system}, in non-free", addresses(table, own))


def about_board(facts: Facts, name: str | None) -> Answer:
    """One board, or all of them."""
    table = facts.boards.sources
    if name is None:
        lines = [AnswerLine(item.name, f"{item.title}, {item.arch}") for item in facts.boards.board]
        data: dict[str, Any] = {"boards": [item.name for item in facts.boards.board]}
        return Answer(f"{len(lines)} boards", tuple(lines), data=data)
    board = next((item for item in facts.boards.board if item.name == name.lower()), None)
    if board is None:
        raise _unknown("board", name, [item.name for item in facts.boards.board])
    own = addresses(table, board)
    threads = board.max_threads_per_block
    lines = _lines(
        ("compute capability", board.arch, own),
        ("platform", board.platform, ""),
        ("CPU", f"-mcpu={board.cpu}", ""),
        ("memory", f"{board.memory_gb} GB", ""),
        ("threads per block", f"at most {threads}" if threads else "", own),
    )
    lines += [
        AnswerLine(
            f"no {lack.feature}",
            lack.reason + (f" Instead: {lack.instead}" if lack.instead else ""),
        )
        for lack in board.lacks
    ]
    lines += [
        AnswerLine(
            f"JetPack {item.version}",
            f"{item.system}, CUDA {item.cuda}, cuDNN {item.cudnn}, Python {item.python}",
            addresses(table, item),
        )
        for item in board.jetpack
    ]
    lines += [
        AnswerLine(f"patch for torch {version_range(patch.releases)}", f"{patch.file}: {patch.why}")
        for patch in facts.patches.patch
        if board.name in patch.boards
    ]
    data = {
        "board": board.name,
        **_picked(board, "arch", "platform", "cpu", "memory_gb", "max_threads_per_block"),
        "lacks": [lack.feature for lack in board.lacks],
        "jetpacks": [
            {"jetpack": item.version, **_picked(item, "system", "cuda", "cudnn", "python")}
            for item in board.jetpack
        ],
    }
    packs = [f"{item.version} with CUDA {item.cuda}" for item in board.jetpack]
    short = f"compute capability {board.arch}"
    short += f"; JetPack {' to '.join(dict.fromkeys((packs[0], packs[-1])))}" if packs else ""
    return Answer(board.title, tuple(lines), short, data)


def about_companion(facts: Facts, name: str, version: str | None) -> Answer:
    """A companion's releases and the torch each goes with."""
    project = next(
        (item for item in facts.companions.project if name.lower() in (item.name, item.package)),
        None,
    )
    if project is None and stack_package(facts, name.lower()) is not None:
        hint = f"It is a package of stacks: `torchsmith facts stack {name.lower()}` tells of it."
        raise UsageError(f"{name!r} is not a companion", hint)
    if project is None:
        raise _unknown("companion", name, [item.name for item in facts.companions.project])
    table = facts.companions.sources
    chosen = companion_releases(facts, project.name)
    if version is not None:
        # "0.9" is every 0.9.x, unless a release has just that name: its own tables write it so.
        wanted = version.removeprefix("v")
        named = tuple(item for item in chosen if item.version == wanted)
        series = tuple(item for item in chosen if item.version.startswith(f"{wanted}."))
        if not (named or series):
            known = [item.version for item in chosen]
            raise _unknown(f"companion {project.name}", version, known)
        chosen = named or series
    lines = [
        AnswerLine(
            f"{project.package} {item.version}",
            f"torch {version_range(item.torch)}",
            addresses(table, item),
        )
        for item in reversed(chosen)
    ]
    ended = project.ended and f"{project.ended}: {project.ended_reason}"
    lines += _lines(("ended", ended, addresses(table, project)))
    data: dict[str, Any] = {
        "companion": project.name,
        "package": project.package,
        "ended": project.ended or None,
        "releases": [
            {"version": item.version, "torch": str(version_range(item.torch))} for item in chosen
        ],
    }
    newest = chosen[-1]
    short = f"{newest.version} goes with torch {version_range(newest.torch)}"
    return Answer(project.package, tuple(lines), short, data)


def about_stack(facts: Facts, name: str | None) -> Answer:
    """Packages whose build against torch is known; of one of them, how that is done."""
    table, every = facts.stack.sources, facts.stack.package
    if name is None:
        lines = [
            AnswerLine(
                item.name,
                ", ".join(release.version for release in companion_releases(facts, item.name))
                + (", needs CUDA" if item.needs_cuda else ""),
            )
            for item in every
        ]
        names = {"packages": [item.name for item in every]}
        return Answer(f"{len(every)} packages", tuple(lines), data=names)
    package = next((item for item in every if item.name == name.lower().replace("_", "-")), None)
    if package is None:
        raise _unknown("stack", name, [item.name for item in every])
    mine = [item for item in facts.stack.release if item.name == package.name]
    variables = {**package.env, **package.cuda_env}
    lines = [
        AnswerLine(
            f"{package.name} {item.version}",
            f"torch {version_range(item.torch)}; Python {version_range(item.python)}; "
            + ("" if package.needs_cuda else "no CUDA, or ")
            + f"CUDA {version_range(item.cuda)}"
            + (f"; compute capability {item.oldest_arch} or newer" if item.oldest_arch else "")
            + (f"; compute capability {', '.join(item.archs)}" if item.archs else ""),
            addresses(table, item),
        )
        for item in reversed(mine)
    ]
    lines += _lines(
        ("built with", " ".join(f"{key}={value}" for key, value in variables.items()), ""),
        ("installed first", ", ".join(package.build), ""),
        ("imports", ", ".join(package.uses), ""),
        ("needs", ", ".join(package.requires), ""),
        ("GPUs", "as its setup chooses" if package.own_archs else "", ""),
        ("edited in setup.py", package.cuda_edit, ""),
        ("network", package.network, ""),
        ("tried by", package.gpu_check or package.check, ""),
        ("note", package.note, ""),
    )
    data: dict[str, Any] = {
        "package": package.name,
        "repository": package.repository,
        "env": variables,
        "releases": [_picked(item, "version", "torch", "python", "cuda") for item in mine],
    }
    short = f"{mine[-1].version} takes {lines[0].value}" if mine else ""
    return Answer(package.name, tuple(lines), short, data)


def about_features(facts: Facts, torch: str | None) -> Answer:
    """What PyTorch can be built with."""
    version = _release(facts, torch).version if torch is not None else None
    lines = []
    known: list[dict[str, Any]] = []
    for feature in facts.features.feature:
        if version is not None and version not in version_range(feature.torch):
            continue
        switch = entry_for(feature.switch, version) if version is not None else None
        known.append(
            {
                "feature": feature.name,
                "modes": list(feature.modes),
                "off": dict(switch.off) if switch else {},
            }
        )
        off = " ".join(f"{name}={value}" for name, value in switch.off.items()) if switch else ""
        value = f"{feature.title} [{', '.join(feature.modes)}]" + (f"  off: {off}" if off else "")
        lines.append(AnswerLine(feature.name, value, addresses(facts.features.sources, feature)))
    title = f"Features of torch {version}" if version else "Features of PyTorch"
    return Answer(title, tuple(lines), data={"torch": version, "features": known})


def about_systems(facts: Facts) -> Answer:
    """Distributions, and Debian's source packages."""
    table = facts.systems.sources
    lines = [
        AnswerLine(
            item.name,
            f"glibc {item.glibc}, gcc {item.gcc} ({', '.join(item.gccs)}), Python {item.python}",
            addresses(table, item),
        )
        for item in facts.systems.system
    ]
    lines += [
        AnswerLine(
            item.name,
            f"glibc {item.glibc}; nothing is built in it: {runs_on_glibc(facts, item.glibc)}",
            addresses(table, item),
        )
        for item in facts.systems.other_system
    ]
    lines += [
        AnswerLine(f"Debian {item.suite}", f"{item.package} {item.version}", addresses(table, item))
        for item in facts.systems.debian
    ]
    data: dict[str, Any] = {
        "systems": [
            {"system": item.name, **_picked(item, "glibc", "gcc", "gccs", "python")}
            for item in facts.systems.system
        ],
        "others": [_picked(item, "name", "glibc") for item in facts.systems.other_system],
        "debian": [_picked(item, "suite", "package", "version") for item in facts.systems.debian],
    }
    return Answer("Systems", tuple(lines), data=data)
