"""What a package will say of itself, found in the wheel where the spec does not say it."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, Specifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from torchsmith.errors import UsageError
from torchsmith.package.conda.tree import Entry
from torchsmith.package.conda.wheel import Contents, Layout
from torchsmith.plan.conda import (
    CONDA_NAMES,
    CondaSpec,
    conda_subdir,
    cuda_requirements,
    python_requirements,
    torch_constraints,
    torch_run_exports,
)
from torchsmith.resolve.naming import conda_build_string
from torchsmith.sources.tree import epoch, file_hash
from torchsmith.verify.binary import Library, version_key

# A package for any Python is tried with these: what one of them needs, all of them get.
_PYTHONS = tuple(f"3.{minor}" for minor in range(8, 16))
_CUDA_SUFFIX = re.compile(r"-cu\d+$")
# The first gcc whose libstdc++ has a symbol version:
# https://gcc.gnu.org/onlinedocs/libstdc++/manual/abi.html
_LIBSTDCXX = (
    ("3.4.22", "6"),
    ("3.4.24", "7"),
    ("3.4.25", "8"),
    ("3.4.28", "9.3"),
    ("3.4.29", "11"),
    ("3.4.30", "12"),
    ("3.4.32", "13.2"),
    ("3.4.33", "14"),
    ("3.4.34", "15"),
)


def conda_name(project: str) -> str:
    """A project's name in conda: torch -> pytorch, nvidia-cublas-cu12 -> libcublas."""
    name = canonicalize_name(project)
    general = _CUDA_SUFFIX.sub("", name) if name.startswith("nvidia-") else name
    return CONDA_NAMES.get(general, name)


def public_version(version: str) -> str:
    """A version without its label: conda takes 1.13.1+cpu to be older than 1.13.1."""
    try:
        return Version(version).public
    except InvalidVersion:
        raise UsageError(
            f"{version!r} is not a version", "The wheel's metadata has to name one."
        ) from None


def conda_depends(requires: Iterable[str], *, python: str, machine: str) -> tuple[str, ...]:
    """Match specs for what has to be installed beside it; without `python`, for every Python."""
    found: dict[str, str] = {}
    for line in requires:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            raise UsageError(
                f"{line!r} is not a requirement", "The wheel's metadata is damaged: build it again."
            ) from None
        if not _applies(requirement, python, machine):
            continue
        name = conda_name(requirement.name)
        exact = _exact_torch(requirement) if name == "pytorch" else ""
        found[name] = exact or f"{name} {conda_versions(requirement.specifier)}".strip()
    return tuple(found.values())


def _applies(requirement: Requirement, python: str, machine: str) -> bool:
    if requirement.marker is None:
        return True
    fixed = {
        "extra": "",
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "sys_platform": "linux",
    }
    marker = requirement.marker
    return any(
        marker.evaluate({**fixed, "python_version": one, "python_full_version": f"{one}.0"})
        for one in ([python] if python else _PYTHONS)
    )


def _exact_torch(requirement: Requirement) -> str:
    """The torch a library was compiled against, of the kind its label says."""
    for one in requirement.specifier:
        if one.operator in ("==", "===") and "+" in one.version:
            public, _, label = one.version.partition("+")
            cuda = cuda_of_label(label)
            # A pattern for the build strings torchsmith gives: cu126 -> *cuda12.6*.
            build = f"*cuda{cuda}*" if cuda else "cpu_*" if label == "cpu" else ""
            return f"pytorch =={public} {build}".strip()
    return ""


def cuda_of_label(label: str) -> str:
    """cu126 -> 12.6."""
    match = re.match(r"cu(\d+)(\d)(?!\d)", label)
    return f"{match[1]}.{match[2]}" if match else ""


def conda_versions(specifiers: SpecifierSet) -> str:
    """'!=8.3.*,>=5.3' as conda writes it; labels are left out."""
    return ",".join(sorted(map(_one, specifiers)))


def _one(specifier: Specifier) -> str:
    operator, version = specifier.operator, specifier.version.partition("+")[0]
    if operator == "==" and version.endswith(".*"):
        return version
    return f"{'==' if operator == '===' else operator}{version}"


def system_requirements(libraries: Sequence[Library]) -> tuple[list[str], list[str]]:
    """What libraries need of the system: glibc, always; libstdc++, where conda brings one."""
    glibc = _newest(libraries, "GLIBC")
    depends = [f"__glibc >={glibc},<3.0.a0"] if glibc else []
    needed = version_key(_newest(libraries, "GLIBCXX"))
    for symbols, gcc in _LIBSTDCXX:
        if needed and needed <= version_key(symbols):
            return depends, [f"{name} >={gcc}" for name in ("libstdcxx", "libstdcxx-ng")]
    return depends, []


def _newest(libraries: Sequence[Library], family: str) -> str:
    found = filter(None, (library.versions.get(family) for library in libraries))
    return max(found, key=version_key, default="")


_ARCHITECTURES = {"linux-64": "x86_64", "linux-aarch64": "aarch64"}


@dataclass(frozen=True, slots=True)
class Description:
    """What an index and a solver know of a package.

    https://docs.conda.io/projects/conda-build/en/stable/resources/package-spec.html
    """

    name: str
    version: str
    build: str
    subdir: str
    number: int = 0
    depends: tuple[str, ...] = ()
    constrains: tuple[str, ...] = ()
    run_exports: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    license: str = ""
    summary: str = ""
    home: str = ""
    # Seconds since 1970; 0: not known.
    date: int = 0
    imports: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    entry_points: tuple[str, ...] = ()
    variant: Mapping[str, str] = field(default_factory=dict)
    # The wheel it was made of, and its hash.
    origin: Mapping[str, str] = field(default_factory=dict)

    @property
    def stem(self) -> str:
        """Its file name, without the ending that says its format."""
        return f"{self.name}-{self.version}-{self.build}"


def info_files(described: Description, entries: Sequence[Entry]) -> dict[str, bytes]:
    """Every file of info/, by name."""
    files = {
        "index.json": _json(_index(described)),
        "paths.json": _json({"paths": [_path(entry) for entry in entries], "paths_version": 1}),
        "about.json": _json(
            _filled(
                home=described.home,
                license=described.license,
                summary=described.summary,
                extra=dict(described.origin),
            )
        ),
        "files": _lines(entry.path for entry in entries),
        "hash_input.json": _json(dict(described.variant)),
    }
    if placed := [entry for entry in entries if entry.placeholder]:
        files["has_prefix"] = _lines(
            f'"{entry.placeholder}" "{entry.mode}" "{entry.path}"' for entry in placed
        )
    if described.run_exports:
        files["run_exports.json"] = _json({"weak": list(described.run_exports)})
    if described.subdir == "noarch":
        link = {"type": "python", "entry_points": list(described.entry_points)}
        files["link.json"] = _json({"noarch": link, "package_metadata_version": 1})
    if tests := _tests(described):
        files["tests/tests.yaml"] = _json(tests)
    return files


def _index(described: Description) -> dict[str, object]:
    noarch = described.subdir == "noarch"
    return _filled(
        name=described.name,
        version=described.version,
        build=described.build,
        depends=list(described.depends),
        constrains=list(described.constrains),
        flags=list(described.flags),
        # The format that has flags: https://conda.org/learn/ceps/cep-0045
        schema_version=3 if described.flags else "",
        license=described.license,
        timestamp=described.date * 1000,
        subdir=described.subdir,
        noarch="python" if noarch else "",
        platform="" if noarch else "linux",
        arch=_ARCHITECTURES.get(described.subdir, ""),
    ) | {"build_number": described.number, "depends": list(described.depends)}


def _path(entry: Entry) -> dict[str, object]:
    return {
        "_path": entry.path,
        "path_type": "softlink" if entry.target else "hardlink",
        "sha256": entry.sha256,
        "size_in_bytes": entry.size,
    } | _filled(prefix_placeholder=entry.placeholder, file_mode=entry.mode)


def _tests(described: Description) -> list[dict[str, object]]:
    """As rattler-build keeps them; JSON is YAML."""
    tests: list[dict[str, object]] = []
    if described.imports:
        tests.append({"python": {"imports": list(described.imports), "pip_check": False}})
    if described.commands:
        tests.append({"script": {"content": list(described.commands)}})
    return tests


def _filled(**values: object) -> dict[str, object]:
    """The table without what is not known."""
    return {name: value for name, value in values.items() if value}


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _lines(texts: Iterable[str]) -> bytes:
    return "".join(f"{text}\n" for text in texts).encode()


_CUDA_OF_TORCH = re.compile(r"^cuda\b[^=\n]*=\s*['\"](\d+\.\d+)", re.MULTILINE)


def describe_tree(spec: CondaSpec) -> Description:
    """A package of the files of a prefix: all is in the spec."""
    return Description(
        name=spec.name,
        version=spec.version,
        build=spec.build or str(spec.number),
        subdir=spec.subdir,
        number=spec.number,
        depends=spec.depends,
        constrains=spec.constrains,
        run_exports=spec.run_exports,
        flags=spec.flags,
        license=spec.license,
        summary=spec.summary,
        home=spec.home,
        date=epoch(),
        imports=spec.imports,
        commands=spec.commands,
        variant={"target_platform": spec.subdir},
    )


def layout_of(spec: CondaSpec, contents: Contents) -> Layout:
    """Where the wheel's files go: below one Python, or wherever the installer's has them."""
    pure = all((tag.abi, tag.platform) == ("none", "any") for tag in contents.wheel.tags)
    # Then one package will do for every Python and machine.
    noarch = pure and not spec.python and spec.subdir in ("", "noarch")
    return Layout("" if noarch else _python(spec, contents))


def _python(spec: CondaSpec, contents: Contents) -> str:
    """The Python a wheel is for: as its tag says, or as it was told where that says none."""
    name = contents.wheel.path.name
    if spec.python and not re.fullmatch(r"3\.\d{1,2}", spec.python):
        raise UsageError(f"{spec.python!r} is not a version of Python", "Write it as 3.11.")
    found = {
        f"{match[1]}.{match[2]}"
        for tag in contents.wheel.tags
        if tag.abi.startswith("cp") and (match := re.fullmatch(r"cp(\d)(\d+)", tag.interpreter))
    }
    if found and spec.python and spec.python not in found:
        raise UsageError(
            f"{name} is for Python {' and '.join(sorted(found))}, not for {spec.python}",
            "Leave --python out, or give a wheel for that Python.",
        )
    if not spec.python and len(found) != 1:
        raise UsageError(f"{name} does not say which Python it is for", "Add --python 3.11.")
    return spec.python or found.pop()


def _machine(contents: Contents) -> str:
    """The machine a wheel is for; nothing: any."""
    for tag in contents.wheel.tags:
        # Neither musllinux nor macosx: conda's Linux has a glibc.
        if match := re.fullmatch(r"(?:many)?linux.*_(x86_64|aarch64)", tag.platform):
            return match[1]
    if any(tag.platform != "any" for tag in contents.wheel.tags):
        raise UsageError(
            f"{contents.wheel.path.name} is not for a machine that torchsmith packs for",
            "It packs for Linux with glibc, on x86_64 and aarch64.",
        )
    return ""


def describe_wheel(spec: CondaSpec, contents: Contents, layout: Layout) -> Description:
    """A package of a wheel."""
    wheel, metadata = contents.wheel, contents.metadata
    machine = _machine(contents)
    if layout.python and not machine and not spec.subdir:
        raise UsageError(f"{wheel.path.name} is for any Python and machine", "Leave --python out.")
    version = spec.version or public_version(wheel.version)
    label = wheel.version.partition("+")[2]
    cuda = _cuda_of(contents) or cuda_of_label(label)
    python: tuple[str, ...]
    if layout.python:
        python = python_requirements(layout.python)
    else:
        asked = _versions(metadata.get("Requires-Python", ""))
        python = (f"python {asked}".strip(),)
    subdir = spec.subdir or (conda_subdir(f"linux-{machine}") if layout.python else "noarch")
    system, constrained = system_requirements(wheel.libraries)
    depends = [
        *python,
        *conda_depends(wheel.requires, python=layout.python, machine=machine),
        *system,
    ]
    constrains = [*spec.constrains]
    run_exports = spec.run_exports
    if cuda and not any(item.startswith("__cuda ") for item in spec.depends):
        toolkit, driver = cuda_requirements(cuda)
        depends.append(driver)
        if wheel.name == "torch":
            depends.append(toolkit)
    if wheel.name == "torch" and not spec.constrains:
        constrains += torch_constraints(version, cuda=bool(cuda))
    if wheel.name == "torch" and not run_exports:
        run_exports = torch_run_exports(version)
    return Description(
        name=spec.name or conda_name(wheel.name),
        version=version,
        build=spec.build or _build(spec, layout, label, cuda, torch=wheel.name == "torch"),
        subdir=subdir,
        number=spec.number,
        depends=_sorted(depends, spec.depends),
        constrains=tuple(sorted({*constrains, *constrained})),
        run_exports=run_exports,
        flags=spec.flags,
        license=spec.license or _license(contents),
        summary=spec.summary or metadata.get("Summary", ""),
        home=spec.home or metadata.get("Home-page", "") or "",
        date=contents.date or epoch(),
        # Every module it brings that is not private.
        imports=spec.imports
        or tuple(name for name in contents.wheel.modules if not name.startswith("_")),
        commands=spec.commands,
        entry_points=contents.entry_points,
        variant={
            "target_platform": subdir,
            **({"python": layout.python} if layout.python else {}),
            **({"cuda": cuda} if cuda else {}),
        },
        origin={"wheel": wheel.path.name, "sha256": file_hash(wheel.path)},
    )


def _sorted(found: Sequence[str], overrides: Sequence[str]) -> tuple[str, ...]:
    """One spec for each package; one that was given stands in place of one that was found."""
    named = {spec.partition(" ")[0]: spec for spec in (*found, *overrides)}
    return tuple(named[name] for name in sorted(named))


def _versions(text: str) -> str:
    """What Requires-Python asks for; what cannot be read asks for nothing."""
    try:
        return conda_versions(SpecifierSet(text))
    except InvalidSpecifier:
        return ""


def _cuda_of(contents: Contents) -> str:
    """The CUDA a torch says it was built with."""
    if contents.wheel.name != "torch" or "torch/version.py" not in contents.wheel.files:
        return ""
    with zipfile.ZipFile(contents.wheel.path) as archive:
        match = _CUDA_OF_TORCH.search(archive.read("torch/version.py").decode("utf-8", "replace"))
    return match[1] if match else ""


def _build(spec: CondaSpec, layout: Layout, label: str, cuda: str, *, torch: bool) -> str:
    if not layout.python:
        return f"pyh_{spec.number}"
    if torch or cuda or label == "cpu":
        return conda_build_string(layout.python, cuda, "", spec.number)
    return f"py{layout.python.replace('.', '')}_{spec.number}"


def _license(contents: Contents) -> str:
    text = contents.metadata.get("License-Expression") or contents.metadata.get("License") or ""
    # Some write the whole text there.
    return text if "\n" not in text and len(text) < 100 else ""
