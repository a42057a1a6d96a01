"""The steps for libraries built against the torch of the same plan."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence

from msgspec.structs import replace
from packaging.utils import canonicalize_name

from torchsmith.facts.files import Facts
from torchsmith.facts.torch import stack_package
from torchsmith.plan.costs import compile_cost
from torchsmith.plan.expects import Expects, expected_companion, expected_extension
from torchsmith.plan.models import Cost, Step, Task
from torchsmith.plan.shell import compressed, fresh_copy, in_work, sh, unless
from torchsmith.plan.sources import bringing, fetching, folder_commands
from torchsmith.plan.torch import (
    INSTALLING,
    build_env,
    loader_env,
    reports,
    search_path,
    toolkit_step,
)
from torchsmith.resolve.models import CompanionChoice, ExtensionChoice, Resolution, SourceChoice

# Sixty boxes against an implementation of three lines. One line: a Dockerfile takes no more.
VISION_CHECK = "; ".join(
    [
        "import functools, torch, torchvision",
        "torch.manual_seed(0)",
        "low = torch.rand(60, 2)",
        "boxes = torch.cat([low, low + torch.rand(60, 2)], 1)",
        "scores = torch.rand(60)",
        "area = lambda b: float((b[2] - b[0]) * (b[3] - b[1]))",
        "both = lambda a, b: float((torch.min(a[2:], b[2:]) - torch.max(a[:2], b[:2]))"
        ".clamp(min=0).prod())",
        "ratio = lambda a, b: both(a, b) / (area(a) + area(b) - both(a, b))",
        "order = scores.argsort(descending=True).tolist()",
        "want = functools.reduce(lambda kept, new: kept + [new] if all("
        "ratio(boxes[new], boxes[old]) <= .5 for old in kept) else kept, order, [])",
        "found = torchvision.ops.nms(boxes, scores, .5).tolist()",
        "assert found == want and 1 < len(want) < 60, (found, want)",
    ]
)

# torchvision's setup.py goes without a library that it does not find, and says so in one line of a
# long log. So each format is checked before the build, after it, and in use.
# PNG gives back every value; JPEG of a smooth picture comes close.
_READ = {
    "png": [
        "picture = torch.randint(0, 256, (3, 16, 16), dtype=torch.uint8)",
        "again = torchvision.io.decode_png(torchvision.io.encode_png(picture))",
        "assert torch.equal(again, picture), again",
    ],
    "jpeg": [
        "picture = (torch.arange(256).reshape(1, 16, 16) // 2 + 60).to(torch.uint8)"
        ".expand(3, 16, 16).contiguous()",
        "again = torchvision.io.decode_jpeg(torchvision.io.encode_jpeg(picture, 95))",
        "assert (again.int() - picture.int()).abs().max() <= 12, again",
    ],
}

_FIND = "; ".join(
    [
        "import glob, sys, zipfile",
        "wheel = zipfile.ZipFile(glob.glob(sys.argv[1])[0])",
        "names = [name for name in wheel.namelist() if name.startswith('torchvision/image')]",
        "code = b''.join(wheel.read(name) for name in names if name.endswith('.so'))",
        "asked = dict(text.split('=') for text in sys.argv[2:])",
        "lost = [name for name in asked if asked[name].encode() not in code]",
        "sys.exit('torchvision was built without ' + ' '.join(lost) if lost else 0)",
    ]
)


def include_folders(resolution: Resolution) -> tuple[str, ...]:
    """The folders where the recipe has torchvision look for headers."""
    folders = dict(resolution.env).get("TORCHVISION_INCLUDE", "")
    return tuple(folder for folder in folders.split(":") if folder)


def header_flags(header: str, folders: tuple[str, ...]) -> tuple[str, ...]:
    """A C compiler's options for testing whether a header can be used."""
    look = tuple(f"-I{folder}" for folder in folders)
    # jpeglib.h does not include stdio.h itself.
    return (*look, "-fsyntax-only", "-x", "c", "-include", "stdio.h", "-include", header)


def formats_can_be_built(resolution: Resolution, companion: CompanionChoice) -> list[str]:
    """Commands that end a step where a library for a format is missing."""
    commands = []
    for item in companion.formats:
        complaint = f"{companion.package} is to read {item.name.upper()}, but {{}} is missing: "
        cure = f"install {item.apt}, or leave {item.name} out of companions.vision_formats"
        flags = sh(*header_flags(item.header, include_folders(resolution)))
        test = f'"${{CC:-cc}}" {flags} /dev/null 2>/dev/null'
        commands.append(unless(test, complaint.format(item.header) + cure))
        if item.program:
            test = f"command -v {shlex.quote(item.program)} >/dev/null"
            commands.append(unless(test, complaint.format(item.program) + cure))
    return commands


def formats_were_built(companion: CompanionChoice, wheel: str) -> list[str]:
    """A command that looks for each library's functions in the wheel just built."""
    if not companion.formats:
        return []
    asked = [f"{item.name}={item.symbol}" for item in companion.formats]
    # Quoted: it is Python that reads the pattern.
    folder, name = wheel.rsplit("/", 1)
    return [f"python -c {shlex.quote(_FIND)} {in_work(folder)}/{shlex.quote(name)} {sh(*asked)}"]


_CHECKS = {
    "vision": VISION_CHECK,
    "audio": "import torchaudio",
    "text": "import torchtext",
    "codec": "import torchcodec",
}


# What their wheels require besides torch: https://github.com/pytorch/vision/blob/v0.21.0/setup.py
_REQUIRED = {"vision": ("numpy", "pillow>=5.3.0,!=8.3.*")}


def _env(resolution: Resolution) -> dict[str, str]:
    """torch's own build environment, for what is built against it."""
    env = dict(build_env(resolution))
    for name in ("PYTORCH_BUILD_VERSION", "PYTORCH_BUILD_NUMBER"):
        env.pop(name, None)
    if resolution.profile != "debug":
        # By default setuptools compiles as its interpreter was compiled, with debugging
        # information: up to a third of the compiler's work, and most wheels are stripped of it.
        for name in sorted({"CFLAGS", "CXXFLAGS"} - dict(resolution.env).keys()):
            env[name] = f"{env.get(name, '')} -g0".lstrip()
    return env


def companion_env(
    resolution: Resolution, companion: CompanionChoice
) -> tuple[tuple[str, str], ...]:
    """torch's own build environment, and the variables that pin the companion to that torch."""
    env = _env(resolution)
    label = resolution.version.partition("+")[2]
    if resolution.installed is not None and resolution.cuda is None:
        # The installed torch's label may promise a CUDA that this build has not.
        label = ""
    env["BUILD_VERSION"] = companion.version + (f"+{label}" if label else "")
    # Companions write this into Requires-Dist: the wheel then asks for exactly this torch.
    env["PYTORCH_VERSION"] = distribution_version(resolution)
    env.update(companion.switches)
    # The recipe's own wins.
    env.update((name, value) for name, value in resolution.env if name in dict(companion.switches))
    if resolution.cuda is not None:
        # Their setup.py otherwise looks for a GPU on the building machine.
        env["FORCE_CUDA"] = "1"
        if companion.name == "audio":
            env["USE_CUDA"] = "1"
        elif companion.name == "codec":
            env["ENABLE_CUDA"] = "1"
    return tuple(env.items())


def distribution_version(resolution: Resolution) -> str:
    """Torch's version for pip: PyPI's 2.11.0 calls itself 2.11.0+cu130."""
    beside = dict(resolution.installed.beside) if resolution.installed is not None else {}
    return beside.get("torch", resolution.version)


def companion_path(resolution: Resolution, environ: Step) -> tuple[str, ...]:
    """Folders to put before PATH: a layered environment's, then those torch was built with."""
    own = f"{environ.outputs[0]}/bin"
    return tuple(dict.fromkeys((own, *search_path(resolution))))


def companion_steps(
    facts: Facts,
    resolution: Resolution,
    companion: CompanionChoice,
    source: Step,
    environ: Step,
    torch: Step | None,
) -> list[Step]:
    """Compile a companion in an environment that has its torch, then use it."""
    variant = resolution.variant
    folder = f"build/{variant}/{companion.name}"
    dist = f"dist/{variant}"
    pattern = f"{dist}/{companion.package}-{companion.version}*.whl"
    compile_step = Step(
        id=f"compile-{companion.name}-{variant}",
        kind="compile",
        title=f"Compile {companion.package} {companion.version} against torch {resolution.version}",
        why="it only works with the torch it was built against: rebuilt whenever that changes",
        project=companion.name,
        variant=variant,
        needs=(source.id, *_before(resolution, environ, torch)),
        env=companion_env(resolution, companion),
        path=companion_path(resolution, environ),
        commands=(
            *formats_can_be_built(resolution, companion),
            fresh_copy(source.outputs[0], folder),
            f"rm -f {pattern}",
            f"cd {folder}",
            f"python setup.py bdist_wheel --dist-dir {in_work(dist)}",
            _one_wheel(dist, f"{companion.package}-{companion.version}", companion.package),
            *formats_were_built(companion, pattern),
            compressed(pattern),
        ),
        outputs=(pattern,),
        cost=compile_cost(facts, companion.name, resolution),
    )
    # A picture of each kind is written and read again.
    pictures = [line for item in companion.formats for line in _READ[item.name]]
    check = "; ".join([_CHECKS[companion.name], *pictures])
    expects = expected_companion(resolution, companion)
    return [
        compile_step,
        _verify(resolution, companion.name, check, expects, compile_step, environ, torch),
    ]


def _before(resolution: Resolution, environ: Step, torch: Step | None) -> tuple[str, ...]:
    steps = (torch, environ, toolkit_step(resolution))
    return tuple(step.id for step in steps if step is not None)


def _one_wheel(dist: str, prefix: str, name: str) -> str:
    return unless(f"ls {in_work(dist)}/{prefix}*.whl", f"the build made no {name} wheel")


def _verify(
    resolution: Resolution,
    name: str,
    check: str,
    expects: Expects,
    compiled: Step,
    environ: Step,
    torch: Step | None,
) -> Step:
    variant = resolution.variant
    return Step(
        id=f"verify-{name}-{variant}",
        kind="verify",
        title=f"Verify {name}",
        why="it loads and runs beside its torch",
        project=name,
        variant=variant,
        needs=(environ.id, compiled.id, *((torch.id,) if torch else ())),
        env=loader_env(resolution),
        task=Task(
            "verify",
            replace(
                expects,
                check=check,
                wheel=compiled.outputs[0],
                beside=(torch.outputs[0],) if torch else (),
                environment=environ.outputs[0],
                # The published torch is large: it is used where it lies.
                layered=torch is None,
                folder=f"verify/{variant}/{name}",
            ),
        ),
        outputs=reports(compiled.outputs[0]),
        network=INSTALLING,
        pip=(*(resolution.numpy if torch else ()), *_REQUIRED.get(name, ())),
        cost=Cost(core_seconds=20, disk_mb=100, basis="an installation"),
    )


def _compiled_here(facts: Facts, project: str, module: str) -> dict[str, str]:
    """Variables that have a project compiled: many setups look for a published wheel first.

    Flash-attention began this, and others copied it, each with a variable of its own name.
    """
    known = stack_package(facts, canonicalize_name(project))
    return {f"{module.upper()}_FORCE_BUILD": "TRUE"} if known is None else known.env


def extension_steps(
    facts: Facts,
    resolution: Resolution,
    extension: ExtensionChoice,
    environ: Step,
    torch: Step | None,
    used: Sequence[Step] = (),
) -> list[Step]:
    """Any other library: its sdist, repository or folder built against this torch.

    `used` are the proofs of the extensions that it imports.
    """
    variant = resolution.variant
    dist = f"dist/{variant}"
    env = _env(resolution)
    if resolution.cuda is not None:
        env["FORCE_CUDA"] = "1"
    fetch = _fetch_extension(extension)
    # Wheels have the project's name, whatever the plan calls it.
    project = extension.sdist.partition("==")[0] or extension.name
    # What its module is most likely called: torch-scatter -> torch_scatter.
    module = re.sub(r"[^A-Za-z0-9_]", "_", project)
    env.update({**_compiled_here(facts, project, module), **dict(extension.env)})
    prefix = f"{module}-"
    build = f"build/{variant}/{extension.name}"
    compile_step = Step(
        id=f"compile-{extension.name}-{variant}",
        kind="compile",
        title=f"Compile {extension.name} against torch {resolution.version}",
        why=f"from {extension.sdist or extension.git_url or extension.folder}",
        project=extension.name,
        variant=variant,
        needs=(fetch.id, *_before(resolution, environ, torch)),
        env=tuple(env.items()),
        path=companion_path(resolution, environ),
        commands=(
            f"rm -f {dist}/{prefix}*.whl",
            fresh_copy(fetch.outputs[0], build),
            *(
                [f"sed -i -E {shlex.quote(extension.edit)} {build}/setup.py"]
                if extension.edit
                else []
            ),
            *([f'export {extension.jobs}="${{MAX_JOBS:-1}}"'] if extension.jobs else []),
            "python -m pip wheel --quiet --no-deps --no-build-isolation "
            f"--wheel-dir {in_work(dist)} ./{build}",
            _one_wheel(dist, prefix, extension.name),
            compressed(f"{dist}/{prefix}*.whl"),
        ),
        outputs=(f"{dist}/{prefix}*.whl",),
        network=extension.network,
        cost=compile_cost(facts, extension.name, resolution),
    )
    # torch first: an extension's own library expects libtorch to be loaded.
    check = f"import torch; {extension.check or f'import {module}'}"
    expects = expected_extension(resolution, extension, () if extension.check else (module,))
    proof = _verify(resolution, extension.name, check, expects, compile_step, environ, torch)
    return [fetch, compile_step, _beside(proof, extension, used)]


def _beside(proof: Step, extension: ExtensionChoice, used: Sequence[Step]) -> Step:
    """A proof in an environment that also has the packages which the extension imports."""
    assert proof.expects is not None
    wheels = tuple(step.expects.wheel for step in used if step.expects is not None)
    expects = replace(proof.expects, beside=(*proof.expects.beside, *wheels))
    return replace(
        proof,
        needs=(*proof.needs, *(step.id for step in used)),
        task=Task("verify", expects),
        pip=tuple(dict.fromkeys((*proof.pip, *extension.requires))),
    )


def _fetch_extension(extension: ExtensionChoice) -> Step:
    """Its source, brought once for every variant."""
    folder = f"sources/extension/{extension.name}"
    commands: tuple[str, ...] = ()
    task: Task | None = None
    kind = "git" if extension.git_url else "folder" if extension.folder else "sdist"
    if extension.git_url:
        why = f"{extension.git_url} at {extension.git_ref}"
        task = fetching(SourceChoice("git", url=extension.git_url, ref=extension.git_ref), folder)
    elif extension.folder:
        # It travels with the recipe: no bundle needs it.
        why = f"the folder {extension.folder} beside the recipe"
        commands = folder_commands(folder, extension.folder)
    else:
        project, _, version = extension.sdist.partition("==")
        why = f"the source archive of {project} {version} on PyPI"
        task = fetching(
            SourceChoice("sdist", package=project, ref=version, sha256=extension.sha256), folder
        )
    return Step(
        id=f"fetch-extension-{extension.name}",
        kind="fetch",
        title=f"Fetch {extension.name}",
        why=why,
        project=extension.name,
        reads=(extension.folder,) if extension.folder else (),
        commands=commands,
        task=task,
        outputs=(folder,),
        cost=bringing(kind, 5, 100),
    )
