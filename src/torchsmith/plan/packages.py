"""The steps that pack a build: libtorch, conda packages, and the lock of a stack."""

from __future__ import annotations

from collections.abc import Sequence

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
from torchsmith.recipe.outcome import Packages
from torchsmith.resolve.models import Resolution


class Together(Struct, frozen=True, omit_defaults=True):
    """What pip installs together, and where the lock goes; paths are those of the work folder.

    `words` are its options and torch; `wheels` are patterns of those that were built.
    """

    environment: str
    output: str
    wheels: tuple[str, ...]
    words: tuple[str, ...] = ()


def pylock_step(resolution: Resolution, environ: Step, proofs: Sequence[Step]) -> Step:
    """Resolve everything once more, as an installer does, and write down each file."""
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
        cost=Cost(core_seconds=20, disk_mb=1, basis="reading an index"),
    )


class Libtorch(Struct, frozen=True):
    """What is packed, and into what: paths of the work folder; the wheel's may be a pattern."""

    wheel: str
    archive: str


def archive_name(version: str, platform: str) -> str:
    """What the archive of a version is called, on linux-x86_64 say."""
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


# Where libraries of a conda prefix are found from torch/ and from torch/lib/ in site-packages.
MODULE_RPATH = "$ORIGIN:$ORIGIN/lib:$ORIGIN/../../.."
LIBRARY_RPATH = "$ORIGIN:$ORIGIN/../../../.."


def _packages(resolution: Resolution, stem: str, formats: tuple[str, ...]) -> tuple[str, ...]:
    folder = f"channel/{resolution.variant}/{conda_subdir(resolution.platform)}"
    return tuple(f"{folder}/{stem}.{archive}" for archive in formats)


def _gpus(resolution: Resolution, packages: Packages) -> tuple[str, ...]:
    return gpu_requirements(resolution) if packages.conda_by_gpu else ()


def conda_record(resolution: Resolution) -> tuple[tuple[str, str], ...]:
    """What a package keeps of the plan it comes from: choices, and the patches themselves.

    No reasons and no names of variants: they change nothing that is packed.
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
        # Where it lay on the building machine is nobody's business.
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
        # Proven first: nobody takes a package back.
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
    # The version is in the wheel's name, once there is a wheel. A digit, or it is another's name.
    stem = f"{name}-[0-9]*-{resolution.conda_build}"
    pattern = wheel.outputs[0]
    spec = CondaSpec(
        output=f"channel/{variant}",
        name=name,
        # As torch's own: it says which torch this is for.
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
