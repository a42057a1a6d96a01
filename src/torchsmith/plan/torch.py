"""The steps that make torch: environment, CUDA toolkit without root, configure, compile, verify."""

from __future__ import annotations

import re
from functools import partial

from msgspec.structs import replace

from torchsmith.facts.files import Facts
from torchsmith.facts.ranges import python_release, release
from torchsmith.plan.costs import compile_cost
from torchsmith.plan.expects import expected
from torchsmith.plan.models import Cost, Step, Task, digest
from torchsmith.plan.shell import (
    FIRST_REPORTING,
    compressed,
    fresh_copy,
    in_work,
    needs_program,
    pip_install,
    sh,
    unless,
)
from torchsmith.resolve.models import CudaChoice, InstalledChoice, Resolution

# `cuda-toolkit` is NVIDIA's own list of which library belongs to which toolkit release; these
# are the parts of it that PyTorch's CMake asks for. Static libraries' tools are left out.
_TOOLKIT_PARTS = (
    "cccl",
    "cublas",
    "cudart",
    "cufft",
    "cufile",
    "cupti",
    "curand",
    "cusolver",
    "cusparse",
    "nvcc",
    "nvjitlink",
    "nvml",
    "nvrtc",
    "nvtx",
    "profiler",
)
_RUNTIME_PARTS = tuple(
    part for part in _TOOLKIT_PARTS if part not in ("cccl", "nvcc", "nvml", "profiler")
)


def _cuda_from_wheels(resolution: Resolution) -> CudaChoice | None:
    """The CUDA that is to be assembled from wheels; None if it is installed otherwise."""
    cuda = resolution.cuda
    return cuda if cuda is not None and cuda.toolkit == "wheels" else None


def _toolkit_packages(
    resolution: Resolution, cuda: CudaChoice, parts: tuple[str, ...] = _TOOLKIT_PARTS
) -> tuple[str, ...]:
    """The PyPI packages of a toolkit, all of its release."""
    major = release(cuda.version)[0]
    wanted = [f"cuda-toolkit[{','.join(parts)}]=={cuda.version}.*"]
    for feature, version in (("cudnn", cuda.cudnn), ("nccl", cuda.nccl)):
        if resolution.feature(feature) not in (None, "off"):
            wanted.append(f"nvidia-{feature}-cu{major}" + (f"=={version}.*" if version else ""))
    return tuple(wanted)


def runtime_requirements(resolution: Resolution) -> tuple[str, ...]:
    """The packages that torch loads when it runs, if the toolkit came from wheels."""
    cuda = _cuda_from_wheels(resolution)
    return _toolkit_packages(resolution, cuda, _RUNTIME_PARTS) if cuda else ()


def toolkit_folder(resolution: Resolution) -> str:
    """Where a toolkit assembled from wheels lies; empty if it is installed otherwise."""
    cuda = _cuda_from_wheels(resolution)
    if cuda is None:
        return ""
    # Variants that differ in Python share it; variants that differ in cuDNN or NCCL do not.
    # The compiler of the place it is used in makes its stubs.
    place = resolution.system if resolution.container else ""
    parts = (*_toolkit_packages(resolution, cuda), resolution.compiler.cc, place)
    mark = digest("\n".join(parts).encode())[:8]
    return f"toolkit/cuda-{cuda.version}-{mark}"


def assemble_toolkit(folder: str, packages: tuple[str, ...]) -> tuple[str, ...]:
    """Commands that make one tree (bin, include, lib64, nvvm) of the wheels' separate ones."""
    wheels = f"{folder}/wheels"
    python = f"{wheels}/bin/python"
    return (
        needs_program("python3", "install python3 and its venv module"),
        sh("rm", "-rf", folder),
        # The wheels hold no Python code: any Python can fetch them. Its own pip may be too old.
        sh("python3", "-m", "venv", wheels),
        sh(python, "-m", "pip", "install", "--quiet", "--upgrade", "pip"),
        pip_install(python, folder, *packages),
        f"{wheels}/bin/python -m pip list --format=freeze > {folder}/packages.txt",
        # Hard links, not symbolic ones: nvcc looks for its parts from where it really lies.
        f"for part in {wheels}/lib/python3*/site-packages/nvidia/*/; do "
        f'cp -rlf "$part." {folder}/; done',
        sh("rm", "-rf", wheels),
        f"test -e {folder}/lib64 || ln -s lib {folder}/lib64",
        # Wheels only have libcudart.so.13; a linker asks for libcudart.so.
        f"for library in {folder}/lib/lib*.so.*; do "
        'plain="${library%%.so.*}.so"; test -e "$plain" || ln -s "${library##*/}" "$plain"; done',
        # libcuda comes with the driver, which a building machine need not have: for linking, stubs
        # of the functions in cuda.h are enough.
        f"mkdir -p {folder}/lib/stubs",
        f"grep -Eo '\\bcu[A-Z][A-Za-z0-9]*(_v[0-9]+)?' {folder}/include/cuda.h | sort -u "
        "| sed 's/.*/void &(void) {}/' "
        '| "${CC:-cc}" -shared -fPIC -Wl,-soname,libcuda.so.1 -x c '
        f"-o {folder}/lib/stubs/libcuda.so -",
        unless(
            f"{folder}/bin/nvcc --version",
            "nvcc from the wheels does not start",
        ),
    )


def toolkit_step(resolution: Resolution) -> Step | None:
    """Assemble the toolkit, once for every variant that needs the same one."""
    cuda = _cuda_from_wheels(resolution)
    if cuda is None:
        return None
    folder = toolkit_folder(resolution)
    return Step(
        id=folder.replace("/", "-"),
        kind="environment",
        title=f"CUDA {cuda.version} from PyPI",
        why="nothing of it is installed on this machine, and nothing needs root",
        env=(("CC", resolution.compiler.cc),),
        commands=assemble_toolkit(folder, _toolkit_packages(resolution, cuda)),
        outputs=(folder,),
        pip=("pip", *_toolkit_packages(resolution, cuda)),
        cost=Cost(core_seconds=90, disk_mb=6000, basis="downloads"),
    )


def env_folder(variant: str) -> str:
    """The isolated Python environment of a variant."""
    # Beside the build: its headers then have the same relative names in every variant's compiles.
    return f"build/{variant}/env"


def site_packages(folder: str, python: str) -> str:
    """The folder of an environment's modules."""
    return f"{folder}/lib/python{python}/site-packages"


# An old Python's own pip does not know today's wheels, and today's pip does not know the Python.
_LAST_PIP = {
    "3.5": "pip<21",
    "3.6": "pip<22",
    "3.7": "pip<24.1",
    "3.8": "pip<25.1",
    "3.9": "pip<26.1",
}


def last_pip(python: str) -> str:
    """The newest pip for a Python whose own is too old; empty if its own will do."""
    return _LAST_PIP.get(python, "")


def newer_pip(resolution: Resolution) -> str:
    """The pip to install first into an environment; empty if its own will do."""
    last = last_pip(resolution.python)
    if last or resolution.python not in _UNREPORTING or _pip_below(resolution):
        return last
    return f"pip>={FIRST_REPORTING}"


# Distributions ship these with a pip that cannot report.
_UNREPORTING = ("3.10",)


def _pip_below(resolution: Resolution) -> str:
    """The version of the pip that lies beside an installed torch."""
    return dict(resolution.installed.beside).get("pip", "") if resolution.installed else ""


def has_reports(resolution: Resolution) -> bool:
    """Whether the pip of a variant's environment can report what it installed."""
    below = _pip_below(resolution)
    if below and not last_pip(resolution.python):
        return [int(part) for part in re.findall(r"\d+", below)][:2] >= [*release(FIRST_REPORTING)]
    return python_release(resolution.python) >= (3, 7)


def fresh_venv(creator: str, folder: str, python: str) -> list[str]:
    """Commands for an empty environment with a pip that is new enough."""
    commands = [sh("rm", "-rf", folder), sh(creator, "-m", "venv", folder)]
    if last := last_pip(python):
        commands.append(
            sh(f"{folder}/bin/python", "-m", "pip", "install", "--quiet", "--upgrade", last)
        )
    return commands


_BELOW = "import sys; print('import site; site.addsitedir(%r)' % sys.argv[1])"


def layered_venv(below: str, folder: str, python: str) -> list[str]:
    """Commands for an environment on top of another, which stays as it is."""
    return [
        sh("rm", "-rf", folder),
        # Without pip: the one below serves, and no other setuptools hides the pinned one.
        sh(f"{below}/bin/python", "-m", "venv", "--without-pip", folder),
        # addsitedir reads the .pth files there: the one below may itself lie on another. Python
        # writes the path, so that any character in it is quoted right.
        f"{sh(f'{below}/bin/python', '-c', _BELOW)} {in_work(site_packages(below, python))} > "
        f"{sh(site_packages(folder, python) + '/below.pth')}",
    ]


def venv_on(installed: InstalledChoice, folder: str, python: str) -> list[str]:
    """Commands for an environment that also sees an installed torch's, which stays as it is."""
    # Not --system-site-packages: in a venv made from a venv, that shows the packages of the Python
    # below both. addsitedir reads the .pth files there, which lead to a torch in development.
    lines = [f"import site; site.addsitedir({path!r})" for path in installed.packages]
    below = site_packages(folder, python) + "/below.pth"
    version = "import torch; print(torch.__version__)"
    made = fresh_venv(installed.python, folder, python)
    if "pip" in dict(installed.beside) and not last_pip(python):
        # The one below serves; Debian's Pythons have no other without a package of their own.
        made = [
            sh("rm", "-rf", folder),
            sh(installed.python, "-m", "venv", "--without-pip", folder),
        ]
    return [
        unless(
            f"test -x {sh(installed.python)}",
            f"{installed.python} is gone: torch {installed.version} was seen in its environment",
        ),
        *made,
        f"printf '%s\\n' {sh(*lines)} > {sh(below)}",
        unless(
            f'test "$({sh(f"{folder}/bin/python", "-c", version)})" = {sh(installed.version)}',
            f"the torch in {installed.module} is not {installed.version} any more, or does not "
            "start: its own words are above",
        ),
    ]


def _programs_below(installed: InstalledChoice, folder: str) -> str:
    """A command that links cmake and ninja: pip skips them, since their packages lie below."""
    bin_ = installed.python.rpartition("/")[0]
    return (
        "for program in cmake ninja; do "
        f'test -x {sh(folder)}/bin/"$program" || ! test -x {sh(bin_)}/"$program" '
        f'|| ln -s {sh(bin_)}/"$program" {sh(folder)}/bin/; done'
    )


def environment(resolution: Resolution) -> Step:
    """The isolated environment a variant is built in."""
    folder = env_folder(resolution.variant)
    python = f"python{resolution.python}"
    why = "its own, so that nothing of this machine's Python leaks in"
    if resolution.installed is not None:
        commands = venv_on(resolution.installed, folder, resolution.python)
        why = f"on top of the one torch {resolution.version} is installed in, which stays as it is"
    elif resolution.python_from in ("system", "source"):
        commands = [
            needs_program(python, f"install it with its venv module (Debian: {python}-venv)"),
            *fresh_venv(python, folder, resolution.python),
        ]
    else:
        commands = [
            needs_program("uv", "see https://docs.astral.sh/uv, or python3 -m pip install uv"),
            sh("rm", "-rf", folder),
            sh("uv", "venv", "--quiet", "--seed", "--python", resolution.python, folder),
        ]
    requires = list(resolution.requires)
    newer = newer_pip(resolution)
    reports = has_reports(resolution)
    if newer and not last_pip(resolution.python):
        commands.append(
            sh(f"{folder}/bin/python", "-m", "pip", "install", "--quiet", "--upgrade", newer)
        )
    install = partial(pip_install, f"{folder}/bin/python", folder, reports=reports)
    if resolution.wheel_index:
        # First, and alone: that index only has torch and what it requires.
        torch = f"torch=={resolution.version}"
        commands.append(install("--index-url", resolution.wheel_index, torch))
    elif resolution.use == "wheel":
        requires.append(f"torch=={resolution.torch}")
    commands.append(install(*requires, number=2))
    if resolution.installed is not None:
        commands.append(_programs_below(resolution.installed, folder))
    return Step(
        id=f"environment-{resolution.variant}",
        kind="environment",
        title=f"Environment: Python {resolution.python}",
        why=why + ("; the interpreter comes from uv" if resolution.python_from == "uv" else ""),
        variant=resolution.variant,
        # Another torch in the same place is another environment.
        reads=resolution.installed.evidence if resolution.installed is not None else (),
        commands=tuple(commands),
        outputs=(folder,),
        pip=(*filter(None, [newer]), *requires),
        cost=Cost(core_seconds=60, disk_mb=700, basis="downloads"),
        # An image installs them; elsewhere a person has to.
        details=(("system packages", " ".join(resolution.apt)),)
        if resolution.apt and not resolution.container
        else (),
    )


def torch_environment(resolution: Resolution, environ: Step, compiled: Step) -> Step:
    """The environment companions are built in: the one torch was built in, and that torch."""
    below = environ.outputs[0]
    folder = f"{below}-torch"
    return Step(
        id=f"environment-torch-{resolution.variant}",
        kind="environment",
        title="Environment with the torch just built",
        why="companions are compiled against exactly this one",
        variant=resolution.variant,
        needs=(environ.id, compiled.id),
        commands=(
            *layered_venv(below, folder, resolution.python),
            pip_install(
                f"{folder}/bin/python",
                folder,
                reports=has_reports(resolution),
                pattern=compiled.outputs[0],
            ),
        ),
        outputs=(folder,),
        cost=Cost(core_seconds=30, disk_mb=2500, basis="an installation"),
    )


def build_env(resolution: Resolution) -> tuple[tuple[str, str], ...]:
    """The environment torch and its companions are configured and compiled in."""
    compiler = resolution.compiler
    env: dict[str, str] = {
        "CC": compiler.cc,
        "CXX": compiler.cxx,
        # By default setuptools links as its interpreter was linked, with that one's folders: they
        # would be searched wherever the wheel is installed.
        "LDSHARED": f"{compiler.cc} -shared",
        "LDCXXSHARED": f"{compiler.cxx} -shared",
    }
    linking: list[str] = []
    if compiler.kind == "gcc" and compiler.cxx.rpartition("-")[2].isdigit():
        # g++-13 beside the distribution's own gcc 14 links with gcc 13's libstdc++, which lacks
        # symbols that the distribution's libraries use. At run time the newer one is loaded.
        linking.append("-Wl,--allow-shlib-undefined")
    if resolution.feature("mkl") == "static":
        # Objects in MKL's archives do not state that they need no executable stack, so the linker
        # asks for one, and glibc from 2.41 on loads no such library.
        linking.append("-Wl,-z,noexecstack")
    built = resolution.use == "source" and release(resolution.torch) >= release("2.0")
    # Not tried with CUDA, whose runtime knows kernels by the addresses of functions.
    if built and resolution.cuda is None and resolution.profile != "debug":
        # A library's calls of its own functions go straight there, not through a table that other
        # libraries may change: small operations of 2.6.0 run 1.09 times as fast (docs/bench.md).
        # Ubuntu links every package so: https://wiki.ubuntu.com/ToolChain/CompilerFlags
        linking.append("-Wl,-Bsymbolic-functions")
    if linking:
        env["LDFLAGS"] = " ".join(linking)
    if resolution.cuda is not None:
        env["CUDAHOSTCXX"] = resolution.compiler.cxx
        if toolkit := toolkit_folder(resolution):
            env["CUDA_HOME"] = f"@/{toolkit}"
        elif resolution.cuda.toolkit == "debian":
            # For /usr/bin/nvcc and /usr/include, torch's own build expects this value.
            env["CUDA_HOME"] = "/usr"
        elif resolution.container or resolution.board:
            env["CUDA_HOME"] = "/usr/local/cuda"
    if resolution.cpu_flags:
        env["CFLAGS"] = env["CXXFLAGS"] = resolution.cpu_flags
    env.update(resolution.feature_env)
    own = dict(resolution.env)
    if linking and "LDFLAGS" in own:
        # The recipe's flags are added to those that the libraries need.
        own["LDFLAGS"] = f"{env['LDFLAGS']} {own['LDFLAGS']}"
    env.update(own)
    return tuple(env.items())


def search_path(resolution: Resolution) -> tuple[str, ...]:
    """Folders to put before PATH: the environment's programs, then the toolkit's."""
    toolkit = toolkit_folder(resolution)
    return (f"{env_folder(resolution.variant)}/bin", *([f"{toolkit}/bin"] if toolkit else []))


def _cache_checks(resolution: Resolution) -> list[str]:
    cache = "build/CMakeCache.txt"
    checks = [unless(f"test -f {cache}", f"CMake left no {cache}")]
    for wanted in (True, False):
        names = [name for name, state in resolution.expected_cache if state is wanted]
        # An option that this configuration never reached counts as off.
        on = f'grep -Eiq "^$name:[A-Z]+=(ON|1|TRUE|YES)$" {cache}'
        test, state = (f"! {on}", "on") if wanted else (on, "off")
        complaint = f'echo "$name should be {state} and is not: see {cache}" >&2'
        check = f"if {test}; then {complaint}; exit 1; fi"
        if len(names) > 1:
            checks.append(f"for name in {' '.join(names)}; do {check}; done")
        elif names:
            checks += [f"name={names[0]}", check]
    return checks


def torch_steps(
    facts: Facts, resolution: Resolution, source: Step, environ: Step, magma: Step | None
) -> list[Step]:
    """Configure (where the release can do so apart), compile to a wheel, verify it."""
    variant = resolution.variant
    folder = f"build/{variant}/torch"
    dist = f"dist/{variant}"
    wheel = f"{dist}/{resolution.wheel}"
    env = build_env(resolution)
    if magma is not None:
        # CMake looks there; if it finds nothing, it builds without MAGMA and does not say so.
        env = (*env, ("MAGMA_HOME", f"@/{magma.outputs[0]}"))
    if resolution.feature("mkl") == "static" and "CMAKE_PREFIX_PATH" not in dict(env):
        # pip installs it there. In CMAKE_PREFIX_PATH the environment would also provide its own
        # ninja, instead of the one on the PATH, which compiles in batches.
        mkl = f"@/{env_folder(variant)}"
        env = (*env, ("CMAKE_INCLUDE_PATH", f"{mkl}/include"), ("CMAKE_LIBRARY_PATH", f"{mkl}/lib"))
    path = search_path(resolution)
    cost = compile_cost(facts, "torch", resolution)
    # Copied and configured in one step, so that a broken attempt starts from a clean tree.
    copy = [fresh_copy(source.outputs[0], folder), f"cd {folder}"]
    extra = [sh("cmake", *(f"-D{name}={value}" for name, value in resolution.cmake), "build")]
    checks = _cache_checks(resolution)
    network = _reaches_out(resolution)
    steps: list[Step] = []
    tools = (environ.id, *(step.id for step in (toolkit_step(resolution), magma) if step))
    needs = (source.id, *tools)
    prepare = copy
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
            commands=(
                *copy,
                "CMAKE_ONLY=1 python setup.py build --cmake-only"
                if resolution.frontend == "setup.py"
                else "CMAKE_ONLY=1 python setup.py build",
                *(extra if resolution.cmake else []),
                *checks,
            ),
            outputs=(folder,),
            network=network,
            cost=Cost(core_seconds=60, disk_mb=3000, basis="CMake's own checks"),
        )
        steps.append(configure)
        needs, prepare, checks = (configure.id, *tools), [f"cd {folder}"], []
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
            # An earlier attempt's wheel must not pass for the new one.
            f"rm -f {in_work(wheel)}",
            build,
            *checks,
            unless(f"test -f {in_work(wheel)}", f"the build made no {resolution.wheel}"),
            compressed(wheel),
        ),
        outputs=(wheel,),
        network=network,
        cost=cost,
    )
    steps += [compile_step, verify_step(resolution, compile_step, environ)]
    return steps


def _reaches_out(resolution: Resolution) -> str:
    """The reason why torch's own build uses the network; empty if it does not."""
    nccl = dict(resolution.features).get("nccl", "off")
    newer = release(resolution.torch)[:2]
    cloned = nccl == "on" or (newer == (2, 7) and nccl != "system")
    if resolution.cuda is None or resolution.source.kind != "git" or newer < (2, 7) or not cloned:
        return ""
    return 'from 2.7 on torch\'s build clones NCCL itself; nccl = "system" takes an installed one'


def _summary(resolution: Resolution) -> str:
    cuda = resolution.cuda
    gpu = f"CUDA {cuda.version} for {cuda.arch_list}" if cuda else "no CUDA"
    compiler = f"{resolution.compiler.kind} {resolution.compiler.version}"
    return f"profile {resolution.profile}, {gpu}, {compiler}"


def loader_env(resolution: Resolution) -> tuple[tuple[str, str], ...]:
    """The search path for CUDA's libraries outside of the system's own folders."""
    toolkit = toolkit_folder(resolution)
    return (("LD_LIBRARY_PATH", f"@/{toolkit}/lib"),) if toolkit else ()


# The reason why a proof uses the network.
INSTALLING = "pip installs what the wheel requires"


def verify_step(resolution: Resolution, compiled: Step, environ: Step) -> Step:
    """Install the wheel into a fresh environment and prove that it is what was asked for."""
    variant = resolution.variant
    folder = f"verify/{variant}/torch"
    wheel = compiled.outputs[0]
    return Step(
        id=f"verify-torch-{variant}",
        kind="verify",
        title=f"Verify {resolution.wheel}",
        why="installed into a fresh environment: features, linking, architectures, results",
        project="torch",
        variant=variant,
        needs=(environ.id, compiled.id),
        env=loader_env(resolution),
        task=Task(
            "verify",
            replace(
                expected(resolution), wheel=wheel, environment=environ.outputs[0], folder=folder
            ),
        ),
        outputs=reports(wheel),
        network=INSTALLING,
        cost=Cost(core_seconds=90, disk_mb=2500, basis="an installation"),
    )


def reports(wheel: str) -> tuple[str, str]:
    """The reports on a wheel, beside it."""
    return f"{wheel}.verify.json", f"{wheel}.verify.txt"
