"""What a wheel requires, in conda's words."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import Specifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

from torchsmith.errors import UsageError
from torchsmith.plan.conda import CONDA_NAMES
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
        found[name] = _spec(name, requirement)
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


def _spec(name: str, requirement: Requirement) -> str:
    if name == "pytorch" and (exact := _exact_torch(requirement)):
        return exact
    return f"{name} {conda_versions(requirement.specifier)}".strip()


def _exact_torch(requirement: Requirement) -> str:
    """The torch a library was compiled against, of the kind its label says."""
    for one in requirement.specifier:
        if one.operator in ("==", "===") and "+" in one.version:
            public, _, label = one.version.partition("+")
            build = _builds_of(label)
            return f"pytorch =={public} {build}".strip()
    return ""


def _builds_of(label: str) -> str:
    """A pattern for the build strings torchsmith gives: cu126 -> *cuda12.6*."""
    if label == "cpu":
        return "cpu_*"
    cuda = cuda_of_label(label)
    return f"*cuda{cuda}*" if cuda else ""


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
    return max(_versions(libraries, family), key=version_key, default="")


def _versions(libraries: Sequence[Library], family: str) -> Iterator[str]:
    for library in libraries:
        if found := library.versions.get(family):
            yield found
