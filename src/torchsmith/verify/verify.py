"""Verifying from one end to the other: look at the files, install, use, compare.

As a program it proves what one step of a plan made, in the work folder; the reports are left
beside the wheel.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import Distribution
from pathlib import Path
from typing import IO

import msgspec
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from torchsmith import __version__
from torchsmith.checks import Check, Status, few, holds, rated
from torchsmith.errors import VerificationError
from torchsmith.inputs import one_file
from torchsmith.plan.expects import Expects
from torchsmith.sources.tree import file_hash
from torchsmith.tasks import run_task
from torchsmith.verify.binary import MAGIC, Library, below, looks_shared, read_files
from torchsmith.verify.compare import compare, compare_companion, judge_gpu_code, matching
from torchsmith.verify.fatbin import gpu_code, order
from torchsmith.verify.linkage import Surroundings, judge, system_libraries
from torchsmith.verify.probing import Probed, foreign_paths, probe
from torchsmith.verify.report import Report, from_json, keep_beside, lines
from torchsmith.verify.report import as_json as report_json
from torchsmith.verify.target import (
    Environment,
    Options,
    Say,
    fresh_environment,
    read_environment,
    sort_targets,
    torch_given,
)
from torchsmith.verify.wheelfile import (
    COMPANIONS,
    Wheel,
    read_wheel,
    required,
    torch_pin,
    uses_torch,
    wants_another_torch,
)

_DEFAULTS = Options()
_TORCH = canonicalize_name("torch")


def verify(
    paths: Sequence[Path],
    *,
    options: Options = _DEFAULTS,
    asked: Sequence[Expects] = (),
    say: Say = lambda text: None,
) -> Report:
    """Prove that wheels or an environment are a torch that works, and the one asked for.

    Where all that is asked is about a library built against torch, that is used, and of torch
    only what it needs.
    """
    wheel_paths, folder = sort_targets(paths)
    subjects = tuple(str(path) for path in paths)
    if folder is not None:
        environment = read_environment(folder)
        return _used(subjects, (), environment, options, asked, say)
    say(f"reading {', '.join(path.name for path in wheel_paths)}")
    wheels = [read_wheel(path) for path in wheel_paths]
    unusable = [wheel for wheel in wheels if not wheel.installable]
    torch = torch_given(wheels, options) if options.run else ""
    if any(wants_another_torch(wheel, torch) for wheel in wheels):
        # Installed, it would bring that one, and be tried with it.
        checks = [*_wheel_checks(wheels, None, asked, torch)]
        return Report(subjects, __version__, tuple(checks), torch=torch)
    if not options.run or unusable:
        checks = [*_wheel_checks(wheels, None, asked)]
        torch = next((wheel.version for wheel in wheels if wheel.name == "torch"), "")
        parts = {wheel.name: wheel.libraries for wheel in wheels}
        checks += _gpu_code(parts, _companion(asked) or matching(asked, torch, ""))
        if unusable:
            checks.append(Check("python", "installation", "absent", "", detail="not tried"))
        return Report(subjects, __version__, tuple(checks), torch=torch)
    with fresh_environment(wheels, options, say) as (environment, complaint):
        if complaint:
            last = complaint.rpartition("\n")[2]
            failed = Check("python", "installation", "fail", last, detail=complaint[-2000:])
            checks = [*_wheel_checks(wheels, None, asked), failed]
            return Report(subjects, __version__, tuple(checks), python=environment.version)
        return _used(subjects, wheels, environment, options, asked, say)


def _used(
    subjects: tuple[str, ...],
    wheels: Sequence[Wheel],
    environment: Environment,
    options: Options,
    asked: Sequence[Expects],
    say: Say,
) -> Report:
    installed = environment.installed()
    parts: Mapping[str, Sequence[Library]]
    if wheels:
        checks = [*_wheel_checks(wheels, environment, asked)]
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
    companion = _companion(asked)
    probed = Probed()
    if options.run:
        say("using it")
        names = dict.fromkeys((*imports, *(companion.imports if companion else ())))
        only = ("companions",) if companion else ()
        check = companion.check if companion else ""
        probed = probe(environment, tuple(names), options.timeout, only, check)
        checks += probed.checks
    facts = probed.facts
    versions = {name: item.version for name, item in installed.items()}
    expects = companion or matching(asked, facts.version, environment.version)
    checks += _gpu_code(parts, expects)
    if companion is not None:
        checks += compare_companion(companion, environment.version, versions, probed.checks)
    elif facts.version:
        checks.append(_own_account(facts.config, expects))
        if expects is not None:
            tags = {str(tag) for item in wheels if item.name == "torch" for tag in item.tags}
            python = environment.version
            checks += compare(expects, facts, python, libraries, versions, tags)
    return Report(
        subjects=subjects,
        torchsmith=__version__,
        checks=tuple(checks),
        torch=facts.version,
        python=environment.version,
        variant=expects.variant if expects else "",
        features={name: facts.has(name) for name in facts.features},
        archs=facts.compiled_for,
        # A report is about these bytes and no others.
        wheels={wheel.path.name: file_hash(wheel.path) for wheel in wheels},
        environment=str(environment.prefix) if options.keep or not wheels else "",
    )


def _own_account(config: str, expects: Expects | None) -> Check:
    """Whether what a torch says of its build names somebody's folders."""
    places = [str(Path.home())]
    if expects is not None and expects.folder:
        # The folder a plan is run in, which is where its steps are run.
        places.append(str(Path.cwd()))
    found = foreign_paths(config, places)
    ours = expects is not None and not expects.published
    status: Status = "pass" if not found else "fail" if ours else "warn"
    cure = "set that path by a variable of the build, not in CFLAGS; or -ffile-prefix-map"
    wanted = "no path of the building machine's users"
    seen = few(found) or "none of a person's"
    return rated("libraries", "paths in its build settings", status, seen, wanted, cure)


def _wheel_checks(
    wheels: Sequence[Wheel],
    environment: Environment | None,
    asked: Sequence[Expects],
    torch: str = "",
) -> Iterator[Check]:
    present = {name for wheel in wheels for item in wheel.libraries for name in _names(item)}
    installed = environment.installed() if environment is not None else {}
    if environment is not None:
        present |= _present(environment, installed)
    system = system_libraries()
    toolkit = _lent()
    torch = torch or next((wheel.version for wheel in wheels if wheel.name == "torch"), "")
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
                toolkit=toolkit,
                declared=any(item.system_libraries for item in asked),
                glibc=wheel.glibc,
            )
            found += judge(wheel.libraries, around)
            if pin := torch_pin(wheel, torch):
                found.append(pin)
        several = f" {wheel.path.name}" if len(wheels) > 1 else ""
        for check in found:
            yield msgspec.structs.replace(check, group=f"{check.group}{several}")


def _companion(asked: Sequence[Expects]) -> Expects | None:
    return next((item for item in asked if item.package != _TORCH), None)


def _gpu_code(parts: Mapping[str, Sequence[Library]], expects: Expects | None) -> Iterator[Check]:
    """The GPU code in each package, held against the GPUs asked for where a recipe builds it."""
    for name, libraries in parts.items():
        # What others built is for the GPUs they chose.
        ours = expects is not None and name in expects.built
        yield from judge_gpu_code(name, libraries, expects if ours else None)


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


def _lent() -> frozenset[str]:
    """Libraries in LD_LIBRARY_PATH: those of a CUDA toolkit that was assembled."""
    folders = [Path(entry) for entry in os.environ.get("LD_LIBRARY_PATH", "").split(":") if entry]
    return frozenset(
        path.name
        for folder in folders
        if folder.is_dir()
        for path in folder.iterdir()
        if looks_shared(path.name)
    )


def without(report: Report, place: str) -> Report:
    """The report with no path of the work folder in it: it is true of the wheel anywhere."""
    text = report_json(report).decode()
    return from_json(text.replace(msgspec.json.encode(place).decode()[1:-1], "$WORK").encode())


def prove(expects: Expects) -> Report:
    """Prove one wheel of a plan, or a static library, in the current folder."""
    wheel = one_file(expects.wheel)
    if expects.symbols:
        report = verify_archive(wheel, expects)
        folder = Path(expects.folder)
        folder.mkdir(parents=True, exist_ok=True)
        keep_beside(report, folder / wheel.name)
        return report
    options = Options(
        python=f"{expects.environment}/bin/python",
        folder=Path(expects.folder),
        layered=expects.layered,
        beside=tuple(map(one_file, expects.beside)),
        numpy=expects.numpy,
    )
    made = verify(
        [wheel], options=options, asked=[expects], say=lambda text: print(text, flush=True)
    )
    made = without(msgspec.structs.replace(made, subjects=(wheel.name,)), str(Path.cwd()))
    keep_beside(made, wheel)
    return made


def _prove(expects: Expects) -> int:
    made = prove(expects)
    print("\n".join(lines(made, everything=True)), flush=True)
    return VerificationError.exit_code if made.rating == "fail" else 0


_ARCHIVE = b"!<arch>\n"
_HEADER_BYTES = 60


def members(stream: IO[bytes]) -> Iterator[bytes]:
    """The object files of an archive, one after the other, as ar(5) has them."""
    if stream.read(len(_ARCHIVE)) != _ARCHIVE:
        raise ValueError("it is not an archive of object files")
    while header := stream.read(_HEADER_BYTES):
        if len(header) < _HEADER_BYTES or header[58:60] != b"`\n":
            raise ValueError("it is cut short")
        size = int(header[48:58])
        content = stream.read(size)
        if len(content) < size:
            raise ValueError("it is cut short")
        if size % 2:
            stream.read(1)
        # The others are the archive's own tables.
        if content.startswith(MAGIC):
            yield content


def _defined(elf: ELFFile) -> Iterator[str]:
    table = elf.get_section_by_name(".symtab")
    if isinstance(table, SymbolTableSection):
        for symbol in table.iter_symbols():
            info = symbol.entry
            if info.st_shndx != "SHN_UNDEF" and info.st_info.bind != "STB_LOCAL":
                yield symbol.name


def verify_archive(library: Path, expects: Expects) -> Report:
    """Hold a static library against what is expected of it."""
    names: set[str] = set()
    code: set[str] = set()
    objects = 0
    try:
        with library.open("rb") as stream:
            for content in members(stream):
                elf = ELFFile(io.BytesIO(content))
                names.update(_defined(elf))
                code.update(gpu_code(elf))
                objects += 1
    except (OSError, ValueError) as error:
        raise VerificationError(
            f"{library} cannot be read: {error}", "Build it again: torchsmith build --fresh."
        ) from error
    missing = [name for name in expects.symbols if name not in names]
    found = sorted(code, key=order)
    checks = (
        holds("library", "objects", objects > 0, found=str(objects), wanted="some"),
        holds(
            "library",
            "functions",
            not missing,
            found=f"without {few(missing)}" if missing else f"{len(expects.symbols)} looked for",
            wanted="every function that PyTorch calls",
        ),
        holds(
            "GPU code",
            expects.package,
            set(expects.archs) <= code,
            found=" ".join(found) or "none",
            wanted=" ".join(expects.archs),
        ),
    )
    return Report((library.name,), __version__, checks, archs=tuple(found))


if __name__ == "__main__":
    run_task(Expects, _prove)
