"""The steps that pack a build: wheels for other machines, libtorch, conda packages, a lock."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct, json
from msgspec.structs import replace

from torchsmith.plan.companions import distribution_version
from torchsmith.plan.conda import (
    CondaSpec,
    archive_formats,
    conda_requirements,
    conda_subdir,
    cuda_requirements,
    exact_torch,
    gpu_flags,
    gpu_requirements,
    linked_blas,
    torch_constraints,
    torch_run_exports,
)
from torchsmith.plan.models import Cost, Step, Task, as_json
from torchsmith.plan.publish import wheel_folder
from torchsmith.plan.sources import patch_files
from torchsmith.plan.torch import loader_env, toolkit_step
from torchsmith.recipe.outcome import Libraries, Packages
from torchsmith.resolve.models import Resolution


class Together(Struct, frozen=True, omit_defaults=True):
    """What pip installs together, and where the lock goes; paths are those of the work folder.

    `words` are pip's options and torch; `wheels` are patterns of the wheels built here.
    """

    environment: str
    output: str
    wheels: tuple[str, ...]
    words: tuple[str, ...] = ()


def pylock_step(resolution: Resolution, environ: Step, proofs: Sequence[Step]) -> Step:
    """Resolve everything again, as an installer does, and list each file."""
    variant = resolution.variant
    output = f"{wheel_folder(proofs)}/pylock.toml"
    words: list[str] = []
    if resolution.installed is None:
        # What is in the environment already belongs to the lock as well.
        words.append("--ignore-installed")
    if resolution.use == "wheel":
        if resolution.wheel_index:
            words += ["--extra-index-url", resolution.wheel_index]
        words.append(f"torch=={distribution_version(resolution)}")
    wheels = tuple(proof.expects.wheel for proof in proofs if proof.expects is not None)
    return Step(
        id=f"lock-{variant}",
        kind="package",
        title="Lock the stack: pylock.toml",
        why="pip and uv install the same files from it anywhere",
        variant=variant,
        needs=(environ.id, *(proof.id for proof in proofs)),
        task=Task("pylock", Together(environ.outputs[0], output, wheels, tuple(words))),
        outputs=(output,),
        network="pip asks the index which files go together",
        cost=Cost(core_seconds=20, disk_mb=1, basis="reading an index"),
    )


class Libtorch(Struct, frozen=True):
    """What is packed, and into what: paths of the work folder; the wheel's may be a pattern."""

    wheel: str
    archive: str


def archive_name(version: str, platform: str) -> str:
    """The name of the archive of a version for a platform such as linux-x86_64."""
    return f"libtorch-{version}-{platform}.zip"


def libtorch_step(resolution: Resolution, wheel: Step) -> Step:
    """Pack headers, libraries and CMake files for C++ programs."""
    variant = resolution.variant
    archive = f"dist/{variant}/{archive_name(resolution.version, resolution.platform)}"
    return Step(
        id=f"package-libtorch-{variant}",
        kind="package",
        title="Pack libtorch",
        why="headers, libraries and CMake files for C++ programs",
        project="torch",
        variant=variant,
        needs=(wheel.id, f"environment-{variant}"),
        outputs=(archive,),
        task=Task("libtorch", Libtorch(wheel.outputs[0], archive)),
        cost=Cost(core_seconds=60, disk_mb=2500, basis="compression"),
    )


# How torch/ and torch/lib/ in site-packages find the libraries of a conda prefix.
MODULE_RPATH = "$ORIGIN:$ORIGIN/lib:$ORIGIN/../../.."
LIBRARY_RPATH = "$ORIGIN:$ORIGIN/../../../.."


def _packages(resolution: Resolution, stem: str, formats: tuple[str, ...]) -> tuple[str, ...]:
    folder = f"channel/{resolution.variant}/{conda_subdir(resolution.platform)}"
    return tuple(f"{folder}/{stem}.{archive}" for archive in formats)


def _gpus(resolution: Resolution, packages: Packages) -> tuple[str, ...]:
    return gpu_requirements(resolution) if packages.conda_by_gpu else ()


def conda_record(resolution: Resolution) -> tuple[tuple[str, str], ...]:
    """The files about its plan in a package: choices, and the patches themselves.

    Without reasons and names of variants, which do not change the package.
    """
    cuda = resolution.cuda
    table = {
        "torch": resolution.version,
        "python": resolution.python,
        "platform": resolution.platform,
        "cuda": as_json(cuda) if cuda else None,
        "compiler": as_json(resolution.compiler),
        "features": as_json(resolution.features),
        "env": as_json(resolution.env),
        "cmake": as_json(resolution.cmake),
        # A path of the building machine concerns nobody.
        "source": as_json(replace(resolution.source, path="")),
    }
    text = json.format(json.encode(table, order="sorted"), indent=2).decode() + "\n"
    mine = [patch for patch in resolution.patches if patch.project == "torch"]
    patches = patch_files(tuple(mine))
    return (
        ("torchsmith.json", text),
        *((f"patches/{name}", patches[name].decode("utf-8", "replace")) for name in patches),
    )


def conda_step(
    resolution: Resolution,
    packages: Packages,
    wheel: Step,
    proof: Step,
    after: tuple[str, ...],
) -> Step:
    """Pack the wheel just built as a conda package."""
    variant = resolution.variant
    name = f"pytorch-{resolution.torch}-{resolution.conda_build}"
    formats = archive_formats(packages.conda_format)
    cuda = cuda_requirements(resolution.cuda.version) if resolution.cuda else ()
    numpy = conda_requirements(resolution.requires).get("numpy", "numpy")
    spec = CondaSpec(
        output=f"channel/{variant}",
        name="pytorch",
        version=resolution.torch,
        build=resolution.conda_build,
        number=resolution.build_number,
        subdir=conda_subdir(resolution.platform),
        formats=formats,
        wheel=wheel.outputs[0],
        python=resolution.python,
        depends=(numpy, *cuda, *linked_blas(resolution), *_gpus(resolution, packages)),
        constrains=torch_constraints(resolution.torch, cuda=resolution.cuda is not None),
        run_exports=torch_run_exports(resolution.torch),
        imports=("torch",),
        record=conda_record(resolution),
        flags=gpu_flags(resolution) if packages.conda_by_gpu else (),
    )
    return Step(
        id=f"package-conda-{variant}",
        kind="package",
        title=f"Pack {name} for conda",
        why="the same build, with RPATHs that find the prefix's libraries",
        project="torch",
        variant=variant,
        # Proven first: a published package stays.
        needs=(wheel.id, proof.id, *after),
        outputs=_packages(resolution, name, formats),
        task=Task("conda", spec),
        cost=Cost(core_seconds=300, disk_mb=3000, basis="compression"),
        details=(
            ("build string", resolution.conda_build),
            ("RPATH of torch/*.so", MODULE_RPATH),
            ("RPATH of torch/lib/*.so", LIBRARY_RPATH),
        ),
    )


def library_conda_step(
    resolution: Resolution,
    packages: Packages,
    name: str,
    wheel: Step,
    proof: Step,
    torch: Step | None,
) -> Step:
    """Pack a companion or an extension; it needs the very torch it was built against."""
    variant = resolution.variant
    formats = archive_formats(packages.conda_format)
    # Only the wheel has the version. It begins with a digit, unlike the rest of another name.
    stem = f"{name}-[0-9]*-{resolution.conda_build}"
    pattern = wheel.outputs[0]
    spec = CondaSpec(
        output=f"channel/{variant}",
        name=name,
        # The same as torch's own: it tells which torch this is for.
        build=resolution.conda_build,
        number=resolution.build_number,
        subdir=conda_subdir(resolution.platform),
        formats=formats,
        wheel=pattern,
        python=resolution.python,
        depends=(exact_torch(resolution), *_gpus(resolution, packages)),
        record=conda_record(resolution),
        flags=gpu_flags(resolution) if packages.conda_by_gpu else (),
    )
    return Step(
        id=f"package-conda-{name}-{variant}",
        kind="package",
        title=f"Pack {name} for conda",
        why=f"it needs {exact_torch(resolution)}, and no other",
        project=wheel.project,
        variant=variant,
        needs=(wheel.id, proof.id, *([torch.id] if torch else [])),
        outputs=_packages(resolution, stem, formats),
        task=Task("conda", spec),
        cost=Cost(core_seconds=20, disk_mb=200, basis="compression"),
    )


class Finishing(Struct, frozen=True, omit_defaults=True):
    """The arguments of `torchsmith.package.finish`; paths are those of the work folder.

    `wheel` and `output` may be patterns, since the build chooses a wheel's whole name and finishing
    finds its tag. `torch` is the version that a library built against it will require; `pins` is a
    file with the versions of NVIDIA's wheels, `known` are those known beforehand.
    """

    wheel: str
    output: str
    libraries: Libraries = "vendor"
    strip: bool = True
    torch: str = ""
    pins: str = ""
    known: tuple[str, ...] = ()


def finished(
    packages: Packages,
    resolution: Resolution,
    steps: Sequence[Step],
    beside: Sequence[Step] = (),
) -> list[Step]:
    """The steps of a project; its wheel is finished before it is verified, if that is wanted.

    `beside` are the steps of the torch it is verified with, finished already.
    """
    if packages.libraries == "system":
        return list(steps)
    *before, compiled, verify = steps
    finish = _finish_step(packages, resolution, compiled)
    instead = {compiled.outputs[0]: finish.outputs[0]}
    needs = [finish.id]
    if beside:
        *_, torch, ready, _ = beside
        instead[torch.outputs[0]] = ready.outputs[0]
        needs.append(ready.id)
    return [*before, compiled, finish, _verified_instead(verify, instead, needs)]


def _verified_instead(verify: Step, instead: Mapping[str, str], needs: Sequence[str]) -> Step:
    """The same proof of other wheels."""

    def renamed(text: str) -> str:
        for old, new in instead.items():
            text = text.replace(old, new)
        return text

    assert verify.expects is not None
    return replace(
        verify,
        needs=(*verify.needs, *needs),
        outputs=tuple(map(renamed, verify.outputs)),
        task=Task(
            "verify",
            replace(
                verify.expects,
                wheel=renamed(verify.expects.wheel),
                beside=tuple(map(renamed, verify.expects.beside)),
            ),
        ),
    )


def _finish_step(packages: Packages, resolution: Resolution, compiled: Step) -> Step:
    variant = resolution.variant
    wheel = compiled.outputs[0]
    folder, _, name = wheel.rpartition("/")
    # Of the name of torch's wheel only the platform is not known beforehand.
    output = f"{folder}/finished/" + re.sub(r"-linux_\w+\.whl$", "-*.whl", name)
    toolkit = toolkit_step(resolution)
    finishing = Finishing(
        wheel=wheel,
        output=output,
        libraries=packages.libraries,
        strip=packages.strip,
        torch="" if compiled.project == "torch" else distribution_version(resolution),
        pins=f"{toolkit.outputs[0]}/packages.txt" if toolkit else "",
        known=_known_pins(resolution) if packages.libraries == "wheels" else (),
    )
    return Step(
        id=f"package-wheel-{compiled.project}-{variant}",
        kind="package",
        title=f"Finish {name}",
        why="its libraries come along, none of this machine's folders do, its tag is what is true",
        project=compiled.project,
        variant=variant,
        needs=(compiled.id, *([toolkit.id] if toolkit else [])),
        env=loader_env(resolution),
        outputs=(output,),
        task=Task("finish", finishing),
        cost=Cost(core_seconds=60, disk_mb=1500, basis="reading every symbol, and compression"),
        details=(("libraries", packages.libraries),),
    )


def _known_pins(resolution: Resolution) -> tuple[str, ...]:
    """The versions that the resolution names of the toolkit it is compiled with."""
    cuda = resolution.cuda
    if cuda is None:
        return ()
    major = cuda.version.partition(".")[0]
    parts = (("cudnn", cuda.cudnn), ("nccl", cuda.nccl))
    return (
        f"cuda-toolkit=={cuda.version}.*",
        *(f"nvidia-{name}-cu{major}=={version}.*" for name, version in parts if version),
    )
