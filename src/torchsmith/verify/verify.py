"""Verifying from one end to the other: look at the files, install, use, compare."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import Distribution
from pathlib import Path

import msgspec
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from torchsmith import __version__
from torchsmith.host.probe import run
from torchsmith.resolve.models import Resolution
from torchsmith.verify.binary import Library, below, looks_shared, read_files
from torchsmith.verify.checks import Check
from torchsmith.verify.compare import compare, matching
from torchsmith.verify.gpucode import judge_gpu_code
from torchsmith.verify.linkage import Surroundings, judge
from torchsmith.verify.probing import Probed, probe
from torchsmith.verify.report import Report
from torchsmith.verify.target import (
    Environment,
    Options,
    Say,
    fresh_environment,
    read_environment,
    sort_targets,
)
from torchsmith.verify.wheelfile import (
    COMPANIONS,
    Wheel,
    read_wheel,
    required,
    torch_pin,
    uses_torch,
)

_DEFAULTS = Options()
_TORCH = canonicalize_name("torch")


def verify(
    paths: Sequence[Path],
    *,
    options: Options = _DEFAULTS,
    asked: Sequence[Resolution] = (),
    say: Say = lambda text: None,
) -> Report:
    """Prove that wheels or an environment are a torch that works, and the one asked for."""
    wheel_paths, folder = sort_targets(paths)
    subjects = tuple(str(path) for path in paths)
    if folder is not None:
        environment = read_environment(folder)
        return _used(subjects, (), environment, options, asked, say)
    say(f"reading {', '.join(path.name for path in wheel_paths)}")
    wheels = [read_wheel(path) for path in wheel_paths]
    unusable = [wheel for wheel in wheels if not wheel.installable]
    if not options.run or unusable:
        checks = [*_wheel_checks(wheels, None)]
        torch = next((wheel.version for wheel in wheels if wheel.name == "torch"), "")
        checks += _gpu_code({wheel.name: wheel.libraries for wheel in wheels}, asked, torch, "")
        if unusable:
            checks.append(Check("python", "installation", "absent", "", detail="not tried"))
        return Report(subjects, __version__, tuple(checks), torch=torch)
    with fresh_environment(wheels, options, say) as (environment, complaint):
        if complaint:
            last = complaint.rpartition("\n")[2]
            failed = Check("python", "installation", "fail", last, detail=complaint[-2000:])
            checks = [*_wheel_checks(wheels, None), failed]
            return Report(subjects, __version__, tuple(checks), python=environment.version)
        return _used(subjects, wheels, environment, options, asked, say)


def _used(
    subjects: tuple[str, ...],
    wheels: Sequence[Wheel],
    environment: Environment,
    options: Options,
    asked: Sequence[Resolution],
    say: Say,
) -> Report:
    installed = environment.installed()
    parts: Mapping[str, Sequence[Library]]
    if wheels:
        checks = [*_wheel_checks(wheels, environment)]
        parts = {wheel.name: wheel.libraries for wheel in wheels}
        libraries = [item for wheel in wheels if wheel.name == "torch" for item in wheel.libraries]
        imports = [
            name
            for wheel in wheels
            if wheel.name not in ("torch", *COMPANIONS)
            for name in wheel.modules
        ]
    else:
        say("reading its libraries")
        checks, parts, imports = _environment_checks(environment, installed)
        libraries = list(parts.get(_TORCH, ()))
    probed = Probed()
    if options.run:
        say("using it")
        probed = probe(environment, imports, options.timeout)
        checks += probed.checks
    facts = probed.facts
    checks += _gpu_code(parts, asked, facts.version, environment.version)
    resolution = matching(asked, facts.version, environment.version)
    if resolution is not None and facts.version:
        versions = {name: item.version for name, item in installed.items()}
        checks += compare(resolution, facts, environment.version, libraries, versions)
    return Report(
        subjects=subjects,
        torchsmith=__version__,
        checks=tuple(checks),
        torch=facts.version,
        python=environment.version,
        variant=resolution.variant if resolution else "",
        features={name: facts.has(name) for name in facts.features},
        archs=facts.compiled_for,
        environment=str(environment.prefix) if options.keep or not wheels else "",
    )


def _wheel_checks(wheels: Sequence[Wheel], environment: Environment | None) -> Iterator[Check]:
    present = {name for wheel in wheels for item in wheel.libraries for name in _names(item)}
    installed = environment.installed() if environment is not None else {}
    if environment is not None:
        present |= _present(environment, installed)
    system = system_libraries()
    torch = next((wheel.version for wheel in wheels if wheel.name == "torch"), "")
    if not torch and _TORCH in installed:
        torch = installed[_TORCH].version
    together = frozenset({*installed, *(wheel.name for wheel in wheels)})
    for wheel in wheels:
        found = list(wheel.checks)
        if wheel.installable:
            around = Surroundings(
                requires=frozenset(required(wheel)),
                installed=together,
                present=frozenset(present),
                system=system,
                glibc=wheel.glibc,
            )
            found += judge(wheel.libraries, around)
            if pin := torch_pin(wheel, torch):
                found.append(pin)
        several = f" {wheel.path.name}" if len(wheels) > 1 else ""
        for check in found:
            yield msgspec.structs.replace(check, group=f"{check.group}{several}")


def _gpu_code(
    parts: Mapping[str, Sequence[Library]], asked: Sequence[Resolution], torch: str, python: str
) -> Iterator[Check]:
    """The GPU code in each package, held against the GPUs asked for where a recipe builds it."""
    resolution = matching(asked, torch, python)
    built = _built(resolution) if resolution is not None else frozenset()
    for name, libraries in parts.items():
        # What others built is for the GPUs they chose.
        wanted = resolution.cuda if resolution is not None and name in built else None
        yield from judge_gpu_code(name, libraries, wanted)


def _built(resolution: Resolution) -> frozenset[str]:
    """The distributions a variant builds."""
    names = [companion.package for companion in resolution.companions]
    names += [item.sdist.partition("==")[0] or item.name for item in resolution.extensions]
    names += [_TORCH] if resolution.use == "source" else []
    return frozenset(map(canonicalize_name, names))


def _names(library: Library) -> Iterator[str]:
    yield library.name
    if library.soname:
        yield library.soname


def _present(environment: Environment, installed: Mapping[str, Distribution]) -> set[str]:
    """Names of the libraries that lie in an environment, whoever brought them."""
    names = {
        file.name
        for item in installed.values()
        for file in item.files or ()
        if looks_shared(file.name)
    }
    # A conda environment keeps the libraries of all its packages in one folder.
    folder = environment.prefix / "lib"
    if folder.is_dir():
        names |= {path.name for path in folder.iterdir() if looks_shared(path.name)}
    return names


def _environment_checks(
    environment: Environment, installed: Mapping[str, Distribution]
) -> tuple[list[Check], dict[str, Sequence[Library]], list[str]]:
    """Judge the libraries of torch and of everything compiled against it, by distribution."""
    parts: dict[str, Sequence[Library]] = {}
    all_of: list[Library] = []
    imports: list[str] = []
    requires: set[str] = set()
    for name, item in installed.items():
        needs = _requires(item)
        if name != _TORCH and name not in COMPANIONS and _TORCH not in needs:
            continue
        found = _libraries(item)
        if name != _TORCH and not any(uses_torch(library) for library in found):
            continue
        if name not in (_TORCH, *COMPANIONS):
            imports += sorted(
                {
                    file.parts[0]
                    for file in item.files or ()
                    if file.name == "__init__.py" and len(file.parts) == 2
                }
            )
        if found:
            parts[name] = found
        all_of += found
        requires |= needs
    if _TORCH not in parts:
        parts[_TORCH] = _unrecorded(environment)
        all_of += parts[_TORCH]
    around = Surroundings(
        requires=frozenset(requires),
        installed=frozenset(installed),
        present=frozenset(_present(environment, installed)),
        system=system_libraries(),
        prefix=str(environment.prefix),
    )
    return judge(all_of, around), parts, imports


def _requires(item: Distribution) -> set[str]:
    names = set()
    for line in item.requires or ():
        try:
            names.add(str(canonicalize_name(Requirement(line).name)))
        except InvalidRequirement:
            continue
    return names


def _libraries(item: Distribution) -> tuple[Library, ...]:
    files = [str(file) for file in item.files or () if looks_shared(file.name)]
    return read_files(Path(str(item.locate_file(""))), files)


def _unrecorded(environment: Environment) -> tuple[Library, ...]:
    """The torch of an environment that kept no list of its files, as a distribution's may not."""
    for path in environment.paths:
        if (path / "torch").is_dir():
            return read_files(path, below(path, "torch"))
    return ()


def system_libraries() -> frozenset[str]:
    """Names the machine's loader finds."""
    for program in ("ldconfig", "/sbin/ldconfig"):
        if said := run([program, "-p"]):
            return frozenset(line.split()[0] for line in said.splitlines()[1:] if line.split())
    return frozenset()
