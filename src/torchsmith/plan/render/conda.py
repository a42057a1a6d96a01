"""A plan as conda recipes: folders that rattler-build (or conda-build's successor) builds."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from torchsmith import yaml_text
from torchsmith.plan.conda import (
    blas_packages,
    conda_requirements,
    cuda_requirements,
    exact_torch,
    linked_blas,
    torch_constraints,
    torch_depends,
)
from torchsmith.plan.magma import (
    BUILD_NUMBER,
    PKGCONFIG,
    configure_words,
    gencode,
    install_commands,
    pkgconfig,
)
from torchsmith.plan.models import Plan
from torchsmith.plan.packages import LIBRARY_RPATH, MODULE_RPATH
from torchsmith.plan.shell import export_unless_set, needs_program
from torchsmith.plan.sources import patch_files
from torchsmith.plan.torch import build_env
from torchsmith.resolve.models import MagmaChoice, Resolution

Yaml = str | int | bool | Sequence["Yaml"] | dict[str, "Yaml"]

_BUILD_TOOLS = ("cmake", "ninja")
_BASH = "#!/usr/bin/env bash\nset -euo pipefail\n\n"


def _build(number: int, string: str) -> dict[str, Yaml]:
    return {
        "number": number,
        "string": string,
        "script": "build.sh",
        # build.sh sets the RPATHs that lead to the libraries beside torch.
        "dynamic_linking": {"missing_dso_allowlist": ["*"], "binary_relocation": False},
    }


def _torch_recipe(resolution: Resolution, source: list[Yaml], *, wheel: bool) -> str:
    """The recipe of the pytorch package, from its wheel or from its source."""
    python = f"python {resolution.python}.*"
    needs = conda_requirements(resolution.requires)
    numpy = needs.get("numpy", "numpy")
    host: list[Yaml] = [python, "pip"]
    if wheel:
        host += [needs.get("setuptools", "setuptools"), numpy]
    else:
        host += [text for name, text in sorted(needs.items()) if name not in _BUILD_TOOLS]
    run: list[Yaml] = [python, *torch_depends(resolution)]
    if not wheel:
        found, needed = blas_packages(resolution)
        host += [name for name in found if name not in needs]
        run += needed
    else:
        run += linked_blas(resolution)
    cuda = resolution.cuda
    constraints: list[Yaml] = list(torch_constraints(resolution.torch, cuda=cuda is not None))
    if cuda is not None and resolution.magma is not None:
        host.append(f"{resolution.magma.package} {resolution.magma.version}.*")
    build: list[Yaml] = ["patchelf"]
    if not wheel:
        build += ["git", *(needs.get(tool, tool) for tool in _BUILD_TOOLS)]
    table: dict[str, Yaml] = {
        "package": {"name": "pytorch", "version": resolution.torch},
        "source": source,
        "build": _build(resolution.build_number, resolution.conda_build),
        "requirements": {
            "build": build,
            "host": host,
            "run": run,
            "run_constraints": constraints,
        },
        "tests": [{"python": {"imports": ["torch"], "pip_check": False}}],
        "about": {
            "homepage": "https://pytorch.org",
            "repository": "https://github.com/pytorch/pytorch",
            "license": "BSD-3-Clause",
            "summary": f"PyTorch {resolution.torch}, built by torchsmith",
        },
    }
    return yaml_text.write(table)


_SET_RPATHS = f"""\
# Libraries of the prefix are found from where torch's own lie; RPATH, not RUNPATH, so that it
# holds for what they load in turn. $ORIGIN is the loader's word, not the shell's.
# shellcheck disable=SC2016
for module in "$SP_DIR"/torch/*.so; do
  patchelf --force-rpath --set-rpath '{MODULE_RPATH}' "$module"
done
# shellcheck disable=SC2016
for library in "$SP_DIR"/torch/lib/*.so*; do
  if [ -L "$library" ]; then continue; fi
  patchelf --force-rpath --set-rpath '{LIBRARY_RPATH}' "$library"
done
"""


def source_build_script(resolution: Resolution) -> str:
    """build.sh that builds torch from source inside conda's environment."""
    exports: list[str] = []
    for name, value in build_env(resolution):
        if name == "CUDA_HOME" and value.startswith("@/"):
            exports.append('export CUDA_HOME="${CUDA_HOME:-/usr/local/cuda}"')
        elif name in ("CC", "CXX", "CUDAHOSTCXX"):
            exports.append(export_unless_set(name, value.rsplit("/", 1)[-1]))
        elif name in ("LDSHARED", "LDCXXSHARED", "LDFLAGS"):
            # Conda's compilers have their own options for linking; the paths are set below.
            continue
        else:
            exports.append(f"export {name}={shlex.quote(value)}")
    return (
        _BASH + "\n".join(exports) + '\nexport CMAKE_PREFIX_PATH="$PREFIX"\n'
        'export MAX_JOBS="${MAX_JOBS:-${CPU_COUNT:-1}}"\n\n'
        + (
            '"$PYTHON" setup.py install --single-version-externally-managed --record=record.txt\n\n'
            if resolution.frontend == "setup.py"
            else '"$PYTHON" -m pip install --no-deps --no-build-isolation .\n\n'
        )
        + _SET_RPATHS
    )


def _magma_recipe(
    magma: MagmaChoice, cuda: str, source: list[Yaml], tools: tuple[str, ...] = ()
) -> str:
    """The recipe of magma-cudaXYZ, with the tools it is built with."""
    required: dict[str, Yaml] = {"build": tools} if tools else {}
    table: dict[str, Yaml] = {
        "package": {"name": magma.package, "version": magma.version},
        "source": source,
        "build": _build(BUILD_NUMBER, str(BUILD_NUMBER)),
        "requirements": {**required, "run_constraints": [cuda_requirements(cuda)[0]]},
        "about": {
            "homepage": "https://icl.utk.edu/magma/",
            "license": "BSD-3-Clause",
            "summary": f"MAGMA {magma.version} for CUDA {cuda}",
        },
    }
    return yaml_text.write(table)


def _magma_pkgconfig(magma: MagmaChoice) -> str:
    text = shlex.quote(pkgconfig(magma))
    return (
        f'mkdir -p "$PREFIX/{PKGCONFIG.rpartition("/")[0]}"\n'
        # The words in braces are for pkg-config.
        "# shellcheck disable=SC2016\n"
        f'printf %s {text} | sed "s|@PREFIX@|$PREFIX|" > "$PREFIX/{PKGCONFIG}"\n'
    )


def _magma_source_script(magma: MagmaChoice) -> str:
    """build.sh that builds MAGMA from source."""
    return (
        _BASH + f'export CUDA_ARCH_LIST="{gencode(magma.archs)}"\n'
        f"cmake -S . -B build {configure_words(magma)}\n"
        'cmake --build build --target magma --parallel "${CPU_COUNT:-1}"\n'
        + "".join(f"{line}\n" for line in install_commands(".", "build", '"$PREFIX"'))
        + _magma_pkgconfig(magma)
    )


def conda_files(resolution: Resolution, wheel: str) -> dict[str, bytes]:
    """The recipe folder with which a plan's own conda step packs a finished build."""
    folder = f"conda/{resolution.variant}"
    # A recipe's paths are relative to its own folder, three below the work folder.
    source: list[Yaml] = [{"path": f"../../../{wheel}"}]
    name = shlex.quote(wheel.rsplit("/", 1)[-1])
    unpack = f'"$PYTHON" -m pip install --no-deps --no-index --no-build-isolation {name}'
    files = {
        f"{folder}/pytorch/recipe.yaml": _torch_recipe(resolution, source, wheel=True),
        f"{folder}/pytorch/build.sh": f"{_BASH}{unpack}\n\n{_SET_RPATHS}",
    }
    return {name: text.encode() for name, text in files.items()}


def library_files(resolution: Resolution, name: str, wheel: str) -> dict[str, bytes]:
    """The recipe folder for packing a companion or an extension."""
    folder = f"conda/{resolution.variant}/{name}"
    place, _, pattern = wheel.rpartition("/")
    python = f"python {resolution.python}.*"
    table: dict[str, Yaml] = {
        # The packing step reads the version from the wheel's name.
        "package": {"name": name, "version": "${{ env.get('WHEEL_VERSION', default='0') }}"},
        "source": [{"path": f"../../../{place}", "filter": [pattern]}],
        "build": _build(resolution.build_number, resolution.conda_build),
        "requirements": {"host": [python, "pip"], "run": [python, exact_torch(resolution)]},
    }
    script = _BASH + (
        f'"$PYTHON" -m pip install --no-deps --no-index --no-build-isolation {pattern}\n'
    )
    return {
        f"{folder}/recipe.yaml": yaml_text.write(table).encode(),
        f"{folder}/build.sh": script.encode(),
    }


def magma_files(resolution: Resolution, magma: MagmaChoice) -> dict[str, bytes]:
    """The recipe folder for packing MAGMA."""
    folder = f"conda/{resolution.variant}/{magma.package}"
    assert resolution.cuda is not None
    source: list[Yaml] = [{"path": f"../../../build/{resolution.variant}/magma-prefix"}]
    script = (
        _BASH + 'mkdir -p "$PREFIX/lib" "$PREFIX/include"\n'
        'cp -a lib/libmagma* "$PREFIX/lib/"\n'
        'cp -a include/. "$PREFIX/include/"\n' + _magma_pkgconfig(magma)
    )
    return {
        f"{folder}/recipe.yaml": _magma_recipe(magma, resolution.cuda.version, source).encode(),
        f"{folder}/build.sh": script.encode(),
    }


def _git_source(resolution: Resolution, patches: list[str]) -> list[Yaml]:
    source = resolution.source
    extra: dict[str, Yaml] = {"patches": list(patches)} if patches else {}
    if source.kind == "archive" and source.url:
        return [{"url": source.url, "sha256": source.sha256, **extra}]
    if source.kind in ("folder", "archive"):
        return [{"path": source.path, **extra}]
    url = source.url or "https://github.com/pytorch/pytorch.git"
    ref = source.ref if source.kind == "git" else f"v{resolution.torch}"
    pin: dict[str, Yaml] = {"rev": source.commit} if source.commit else {"tag": ref}
    return [{"git": url, **pin, **extra}]


def _patches(
    files: dict[str, bytes], folder: str, resolution: Resolution, project: str
) -> list[str]:
    # Conda builds from upstream's source: patches for other sources are left out.
    mine = tuple(
        patch
        for patch in resolution.patches
        if patch.project == project and not (patch.unless or patch.only_with)
    )
    named = {f"patches/{name}": content for name, content in patch_files(mine).items()}
    files.update({f"{folder}/{name}": content for name, content in named.items()})
    return list(named)


def _build_all(packages: Sequence[str], cuda: str) -> str:
    """A script that builds the recipes beside it, each after those it needs."""
    lines = [
        "#!/bin/sh",
        "# Builds these packages with rattler-build into the folder output.",
        "set -eu",
    ]
    lines.append('cd "$(dirname "$0")"')
    if cuda:
        lines += [
            "# A package is installed and tried when it is built. Where no NVIDIA driver is, this",
            "# stands for one.",
            f'export CONDA_OVERRIDE_CUDA="${{CONDA_OVERRIDE_CUDA:-{cuda}}}"',
        ]
    lines.append(needs_program("rattler-build", "see https://rattler.build"))
    lines += [
        f'rattler-build build --recipe {name}/recipe.yaml --output-dir output "$@"'
        for name in packages
    ]
    return "\n".join([*lines, ""])


def render_conda(plan: Plan) -> dict[str, bytes]:
    """Recipe folders that build everything from source; one per variant and package."""
    files: dict[str, bytes] = {}
    for resolution in plan.variants:
        magmas = [resolution.magma.package] if resolution.magma and resolution.cuda else []
        cuda = resolution.cuda.version if resolution.cuda else ""
        driver = cuda_requirements(cuda)[1].partition(">=")[2] if cuda else ""
        top = f"{resolution.variant}/" if len(plan.variants) > 1 else ""
        files[f"{top}build-all.sh"] = _build_all([*magmas, "pytorch"], driver).encode()
        patches = _patches(files, f"{top}pytorch", resolution, "torch")
        recipe = _torch_recipe(resolution, _git_source(resolution, patches), wheel=False)
        files[f"{top}pytorch/recipe.yaml"] = recipe.encode()
        files[f"{top}pytorch/build.sh"] = source_build_script(resolution).encode()
        if (magma := resolution.magma) is not None and resolution.cuda is not None:
            source: dict[str, Yaml] = {"url": magma.url, "sha256": magma.sha256}
            if changes := _patches(files, f"{top}{magma.package}", resolution, "magma"):
                source["patches"] = list(changes)
            tools = ("cmake", "make")
            text = _magma_recipe(magma, resolution.cuda.version, [source], tools)
            files[f"{top}{magma.package}/recipe.yaml"] = text.encode()
            files[f"{top}{magma.package}/build.sh"] = _magma_source_script(magma).encode()
    return files
