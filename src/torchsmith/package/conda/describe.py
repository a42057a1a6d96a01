"""What a package will say of itself, found in the wheel where the spec does not say it."""

from __future__ import annotations

import os
import re
import zipfile
from collections.abc import Sequence

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from torchsmith.errors import UsageError
from torchsmith.package.conda.info import Description
from torchsmith.package.conda.requirements import (
    conda_depends,
    conda_name,
    conda_versions,
    cuda_of_label,
    public_version,
    system_requirements,
)
from torchsmith.package.conda.wheel import Contents, Layout
from torchsmith.plan.conda import (
    CondaSpec,
    conda_subdir,
    cuda_requirements,
    python_requirements,
    torch_constraints,
    torch_run_exports,
)
from torchsmith.resolve.naming import conda_build_string
from torchsmith.sources.tree import file_hash

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
        license=spec.license,
        summary=spec.summary,
        home=spec.home,
        date=_source_date(),
        imports=spec.imports,
        commands=spec.commands,
        variant={"target_platform": spec.subdir},
    )


def _source_date() -> int:
    """https://reproducible-builds.org/specs/source-date-epoch/."""
    text = os.environ.get("SOURCE_DATE_EPOCH", "")
    return int(text) if text.isdigit() else 0


def layout_of(spec: CondaSpec, contents: Contents) -> Layout:
    """Where the wheel's files go: below one Python, or wherever the installer's has them."""
    return Layout("" if _noarch(spec, contents) else _python(spec, contents))


def _noarch(spec: CondaSpec, contents: Contents) -> bool:
    """Whether one package will do for every Python and machine."""
    pure = all((tag.abi, tag.platform) == ("none", "any") for tag in contents.wheel.tags)
    return pure and not spec.python and spec.subdir in ("", "noarch")


def _python(spec: CondaSpec, contents: Contents) -> str:
    """The Python a wheel is for: as its tag says, or as it was told where that says none."""
    name = contents.wheel.path.name
    if spec.python and not re.fullmatch(r"3\.\d{1,2}", spec.python):
        raise UsageError(f"{spec.python!r} is no Python a package is for", "Write it so: 3.11.")
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
        raise UsageError(f"{name} does not say for which Python it is", "Add --python 3.11.")
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
    if cuda and not any(item.startswith("__cuda") for item in spec.depends):
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
        license=spec.license or _license(contents),
        summary=spec.summary or metadata.get("Summary", ""),
        home=spec.home or metadata.get("Home-page", "") or "",
        date=contents.date or _source_date(),
        imports=spec.imports or _imports(contents),
        commands=spec.commands,
        entry_points=contents.entry_points,
        variant={
            "target_platform": subdir,
            **({"python": layout.python} if layout.python else {}),
            **({"cuda": cuda} if cuda else {}),
        },
        origin={"wheel": wheel.path.name, "sha256": file_hash(wheel.path)},
    )


def _sorted(found: Sequence[str], given: Sequence[str]) -> tuple[str, ...]:
    """One spec for each package; one that was given stands in place of one that was found."""
    named = {spec.partition(" ")[0]: spec for spec in (*found, *given)}
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


def _imports(contents: Contents) -> tuple[str, ...]:
    """What a test imports: every module it brings that is not private."""
    return tuple(name for name in contents.wheel.modules if not name.startswith("_"))


def _license(contents: Contents) -> str:
    said = contents.metadata.get("License-Expression") or contents.metadata.get("License") or ""
    # Some write the whole text there.
    return said if "\n" not in said and len(said) < 100 else ""
