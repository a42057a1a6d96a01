"""The steps that make torch itself: environment, configure, compile, verify."""

from __future__ import annotations

import shlex

from torchsmith.facts.files import Facts
from torchsmith.facts.ranges import release
from torchsmith.plan.costs import compile_cost
from torchsmith.plan.models import Cost, Step
from torchsmith.plan.shell import in_work, sh, unless
from torchsmith.resolve.models import Resolution

# What of NVIDIA's PyPI wheels makes a toolkit that PyTorch's CMake finds complete.
_TOOLKIT_PARTS = (
    "nvcc",
    "runtime",
    "nvrtc",
    "cupti",
    "profiler-api",
    "cccl",
)
_TOOLKIT_LIBRARIES = ("cublas", "cufft", "curand", "cusolver", "cusparse", "nvjitlink", "nvtx")


def env_folder(variant: str) -> str:
    """The isolated Python environment of a variant."""
    return f"env/{variant}"


def toolkit_folder(resolution: Resolution) -> str:
    """Where a toolkit assembled from wheels lies; empty if it is installed otherwise."""
    if resolution.cuda is not None and resolution.cuda.toolkit == "wheels":
        return f"toolkit/cuda-{resolution.cuda.version}"
    return ""


def toolkit_requirements(resolution: Resolution) -> tuple[str, ...]:
    """The PyPI packages a toolkit is assembled from, pinned to its release."""
    cuda = resolution.cuda
    if cuda is None:
        return ()
    major = release(cuda.version)[0]
    suffix = "" if major >= 13 else f"-cu{major}"
    pin = f"=={cuda.version}.*"
    parts = [f"nvidia-cuda-{part}{suffix}{pin}" for part in _TOOLKIT_PARTS]
    # Each library has a version of its own; the metadata of its CUDA line holds them together.
    parts += [f"nvidia-{library}{suffix}" for library in _TOOLKIT_LIBRARIES]
    if major >= 13:
        parts += [f"nvidia-cuda-crt{pin}", f"nvidia-nvvm{pin}"]
    if resolution.feature("cudnn") not in (None, "off"):
        parts.append(f"nvidia-cudnn-cu{major}" + (f"=={cuda.cudnn}.*" if cuda.cudnn else ""))
    if resolution.feature("nccl") not in (None, "off"):
        parts.append(f"nvidia-nccl-cu{major}" + (f"=={cuda.nccl}.*" if cuda.nccl else ""))
    return tuple(parts)


def environment(resolution: Resolution) -> Step:
    """The isolated environment a variant is built in."""
    folder = env_folder(resolution.variant)
    python = f"python{resolution.python}"
    commands = [
        sh(python, "-m", "venv", "--clear", folder)
        if resolution.python_from == "system"
        else sh("uv", "venv", "--clear", "--seed", "--python", resolution.python, folder)
    ]
    pip = (f"{folder}/bin/python", "-m", "pip", "install", "--quiet")
    requires = list(resolution.requires)
    if resolution.use == "wheel":
        requires.append(f"torch=={resolution.torch}")
    commands.append(sh(*pip, *requires))
    outputs = [folder]
    if toolkit := toolkit_folder(resolution):
        parts = f"{folder}/lib/python{resolution.python}/site-packages/nvidia"
        commands += [
            sh(*pip, *toolkit_requirements(resolution)),
            # CUDA 13's wheels share one folder, CUDA 12's have one each: either way one tree.
            f"rm -rf {toolkit} && mkdir -p {toolkit}",
            f"if test -d {parts}/cu13; then cp -rs \"$WORK/{parts}/cu13/.\" {toolkit}; fi",
            f"for part in {parts}/*/; do case $part in */cu13/) ;; "
            f'*) cp -rsn "$WORK/$part." {toolkit} ;; esac; done',
            f"test -e {toolkit}/lib64 || ln -s lib {toolkit}/lib64",
            f"for library in {toolkit}/lib/lib*.so.*; do "
            'plain="${library%%.so.*}.so"; test -e "$plain" || ln -s "${library##*/}" "$plain"; done',
            unless(f"{toolkit}/bin/nvcc --version", "nvcc from the wheels does not start"),
        ]
        outputs.append(toolkit)
    return Step(
        id=f"environment-{resolution.variant}",
        kind="environment",
        title=f"Environment: Python {resolution.python}"
        + (f" and CUDA {resolution.cuda.version} from PyPI" if toolkit and resolution.cuda else ""),
        why="; ".join(
            [
                "its own, so that nothing of this machine's Python leaks in",
                *(["the interpreter comes from uv"] if resolution.python_from == "uv" else []),
            ]
        ),
        variant=resolution.variant,
        commands=tuple(commands),
        outputs=tuple(outputs),
        cost=Cost(core_seconds=60, disk_mb=6000 if toolkit else 700, basis="downloads"),
    )


def build_env(resolution: Resolution) -> tuple[tuple[str, str], ...]:
    """The environment torch and its companions are configured and compiled in."""
    env: dict[str, str] = {"CC": resolution.compiler.cc, "CXX": resolution.compiler.cxx}
    if resolution.cuda is not None:
        env["CUDAHOSTCXX"] = resolution.compiler.cxx
        if toolkit := toolkit_folder(resolution):
            env["CUDA_HOME"] = f"@/{toolkit}"
        elif resolution.container or resolution.board:
            env["CUDA_HOME"] = "/usr/local/cuda"
    if resolution.cpu_flags:
        env["CFLAGS"] = env["CXXFLAGS"] = resolution.cpu_flags
    env.update(resolution.feature_env)
    env.update(resolution.env)
    return tuple(env.items())


def search_path(resolution: Resolution) -> tuple[str, ...]:
    """Folders before PATH: the environment's programs, then the toolkit's."""
    toolkit = toolkit_folder(resolution)
    return (f"{env_folder(resolution.variant)}/bin", *([f"{toolkit}/bin"] if toolkit else []))


def fresh_copy(source: str, folder: str) -> str:
    """Copy a source tree to build in; a build that was stopped keeps the one it was in.

    The copy gets its name when it is whole, so one that was cut short is never gone on from.
    No `&&` between the commands: the shell does not stop at a failure in the middle of those.
    """
    return (
        f'if [ -z "${{TORCHSMITH_RESUME:-}}" ] || ! [ -d {folder} ]; then '
        f"rm -rf {folder} {folder}.part; mkdir -p {folder}.part; "
        f"cp -a {source}/. {folder}.part; mv {folder}.part {folder}; fi"
    )


def _cache_checks(resolution: Resolution) -> list[str]:
    checks: list[str] = []
    for name, wanted in resolution.expected_cache:
        values = "ON|1|TRUE|YES" if wanted else "OFF|0|FALSE|NO|"
        state = "on" if wanted else "off"
        if wanted:
            test = f"grep -Eiq '^{name}:[A-Z]+=({values})$' build/CMakeCache.txt"
        else:
            # An option this configuration never reached is off too.
            test = f"! grep -Eiq '^{name}:[A-Z]+=(ON|1|TRUE|YES)$' build/CMakeCache.txt"
        checks.append(unless(test, f"{name} should be {state} and is not: see build/CMakeCache.txt"))
    return checks


def torch_steps(facts: Facts, resolution: Resolution, source: Step, environ: Step) -> list[Step]:
    """Configure (where the release can do so apart), compile to a wheel, verify it."""
    variant = resolution.variant
    folder = f"build/{variant}/torch"
    dist = f"dist/{variant}"
    wheel = f"{dist}/{resolution.wheel}"
    env = build_env(resolution)
    path = search_path(resolution)
    cost = compile_cost(facts, "torch", resolution)
    # Copied and configured in one step, so that a broken attempt starts from a clean tree.
    copy = f'cd "$WORK"; {fresh_copy(source.outputs[0], folder)}; cd {folder}'
    extra = [sh("cmake", *(f"-D{name}={value}" for name, value in resolution.cmake), "build")]
    checks = _cache_checks(resolution)
    steps: list[Step] = []
    needs = (source.id, environ.id)
    prepare = [copy]
    if resolution.cmake_only:
        configure = Step(
            id=f"configure-torch-{variant}",
            kind="configure",
            title=f"Configure torch {resolution.torch}",
            why="every feature asked for is checked in CMake's cache before hours are spent",
            project="torch",
            variant=variant,
            needs=needs,
            env=env,
            path=path,
            folder=".",
            commands=(
                copy,
                "CMAKE_ONLY=1 python setup.py build --cmake-only"
                if resolution.frontend == "setup.py"
                else "CMAKE_ONLY=1 python setup.py build",
                *(extra if resolution.cmake else []),
                *checks,
            ),
            outputs=(folder,),
            cost=Cost(core_seconds=120, disk_mb=3000, basis="CMake's own checks"),
        )
        steps.append(configure)
        needs, prepare, checks = (configure.id,), [f"cd {folder}"], []
    build = (
        f"python setup.py bdist_wheel --dist-dir {in_work(dist)}"
        if resolution.frontend == "setup.py"
        else f"python -m pip wheel --no-deps --no-build-isolation --wheel-dir {in_work(dist)} ."
    )
    compile_step = Step(
        id=f"compile-torch-{variant}",
        kind="compile",
        title=f"Compile torch {resolution.torch} into a wheel",
        why=_summary(resolution),
        project="torch",
        variant=variant,
        needs=needs,
        env=env,
        path=path,
        commands=(
            *prepare,
            build,
            *checks,
            unless(f"test -f {in_work(wheel)}", f"the build made no {resolution.wheel}"),
        ),
        outputs=(wheel,),
        cost=cost,
    )
    steps += [compile_step, verify_step(resolution, compile_step, wheel)]
    return steps


def _summary(resolution: Resolution) -> str:
    cuda = resolution.cuda
    gpu = f"CUDA {cuda.version} for {cuda.arch_list}" if cuda else "no CUDA"
    return f"profile {resolution.profile}, {gpu}, {resolution.compiler.kind} {resolution.compiler.version}"


def verify_step(resolution: Resolution, compiled: Step, wheel: str) -> Step:
    """Install the wheel into a fresh environment and use it."""
    variant = resolution.variant
    folder = f"verify/{variant}"
    # Python 3.5 is among the targets: no f-strings here.
    lines = [
        "import importlib.machinery, os, torch",
        f"assert torch.__version__ == {resolution.version!r}, torch.__version__",
        "name = os.path.basename(torch._C.__file__)",
        "assert name[2:] in importlib.machinery.EXTENSION_SUFFIXES, name",
        "x = torch.ones(3, 3, requires_grad=True)",
        "(x.mm(x)).sum().backward()",
        "assert x.grad.sum().item() == 54, x.grad",
    ]
    if resolution.cuda is not None:
        lines.append(
            f"assert torch.version.cuda.startswith({resolution.cuda.version!r}), torch.version.cuda"
        )
        lines += [
            f"assert 'sm_{arch.number}' in torch._C._show_config(), 'no code for {arch.arch}'"
            for arch in resolution.cuda.archs
        ]
    if resolution.feature("nccl") in ("on", "system", "static"):
        lines.append("assert torch.distributed.is_available()")
    # One line: a Dockerfile cannot carry a line break inside a command.
    program = "; ".join(lines)
    return Step(
        id=f"verify-torch-{variant}",
        kind="verify",
        title=f"Verify {resolution.wheel}",
        why="installed into a fresh environment: version, _C naming, autograd, architectures",
        project="torch",
        variant=variant,
        needs=(compiled.id,),
        commands=(
            sh(f"{env_folder(variant)}/bin/python", "-m", "venv", "--clear", folder),
            sh(f"{folder}/bin/python", "-m", "pip", "install", "--quiet", "numpy", wheel),
            f"cd {folder} && bin/python -c {shlex.quote(program)}",
        ),
        outputs=(folder,),
        cost=Cost(core_seconds=60, disk_mb=2500, basis="an installation"),
    )
