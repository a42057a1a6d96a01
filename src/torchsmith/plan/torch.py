"""The steps that make torch itself: environment, configure, compile, verify."""

from __future__ import annotations

import re
from functools import partial

from msgspec.structs import replace

from torchsmith.facts.files import Facts
from torchsmith.facts.ranges import python_release, release
from torchsmith.plan.costs import compile_cost
from torchsmith.plan.expects import expected
from torchsmith.plan.models import Cost, Step, Task
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
from torchsmith.plan.toolkit import toolkit_folder, toolkit_step
from torchsmith.resolve.models import InstalledChoice, Resolution


def env_folder(variant: str) -> str:
    """The isolated Python environment of a variant."""
    # Beside what is built in it: variants name its headers alike, so a compiler cache knows them.
    return f"build/{variant}/env"


def site_packages(folder: str, python: str) -> str:
    """Where an environment keeps its modules."""
    return f"{folder}/lib/python{python}/site-packages"


# The pip inside an old Python does not know today's wheels, and today's pip does not know it.
_LAST_PIP = {
    "3.5": "pip<21",
    "3.6": "pip<22",
    "3.7": "pip<24.1",
    "3.8": "pip<25.1",
    "3.9": "pip<26.1",
}


def last_pip(python: str) -> str:
    """The newest pip a Python can have, where its own is too old; empty if its own will do."""
    return _LAST_PIP.get(python, "")


def newer_pip(resolution: Resolution) -> str:
    """The pip an environment has to get first; empty if the one it is made with will do."""
    last = last_pip(resolution.python)
    if last or resolution.python not in _UNREPORTING or _pip_below(resolution):
        return last
    return f"pip>={FIRST_REPORTING}"


# Distributions have it with a pip that cannot report.
_UNREPORTING = ("3.10",)


def _pip_below(resolution: Resolution) -> str:
    """The version of the pip that lies beside an installed torch."""
    return dict(resolution.installed.beside).get("pip", "") if resolution.installed else ""


def has_reports(resolution: Resolution) -> bool:
    """Whether the pip of a variant's environment can report what it took."""
    below = _pip_below(resolution)
    if below and not last_pip(resolution.python):
        return [int(part) for part in re.findall(r"\d+", below)][:2] >= [*release(FIRST_REPORTING)]
    return python_release(resolution.python) >= (3, 7)


def fresh_venv(creator: str, folder: str, python: str) -> list[str]:
    """An empty environment made with an interpreter, its pip new enough."""
    commands = [sh("rm", "-rf", folder), sh(creator, "-m", "venv", folder)]
    if last := last_pip(python):
        commands.append(
            sh(f"{folder}/bin/python", "-m", "pip", "install", "--quiet", "--upgrade", last)
        )
    return commands


_BELOW = "import sys; print('import site; site.addsitedir(%r)' % sys.argv[1])"


def layered_venv(below: str, folder: str, python: str) -> list[str]:
    """An environment on top of another, which stays as it is."""
    return [
        sh("rm", "-rf", folder),
        # Without pip: the one below serves, and no second setuptools hides the pinned one.
        sh(f"{below}/bin/python", "-m", "venv", "--without-pip", folder),
        # addsitedir reads the .pth files there: the one below may lie on another itself.
        # Python writes the path as Python reads it, whatever is in it.
        f"{sh(f'{below}/bin/python', '-c', _BELOW)} {in_work(site_packages(below, python))} > "
        f"{sh(site_packages(folder, python) + '/below.pth')}",
    ]


def venv_on(installed: InstalledChoice, folder: str, python: str) -> list[str]:
    """An environment that also sees what an installed torch's own has, which stays as it is."""
    # Not --system-site-packages: made from a venv, that shows the packages of the Python below
    # it. addsitedir reads the .pth files there, through which a torch in development is found.
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
    """A command that lends programs pip did not install, as their packages lie below already."""
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
        # First, and alone: that index has torch and what it requires, and nothing else.
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
        # In an image they are installed; elsewhere somebody has to.
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
        # An interpreter has setuptools link as it was linked itself, its own folders included:
        # those would be looked in wherever the wheel is installed.
        "LDSHARED": f"{compiler.cc} -shared",
        "LDCXXSHARED": f"{compiler.cxx} -shared",
    }
    linking: list[str] = []
    if compiler.kind == "gcc" and compiler.cxx.rpartition("-")[2].isdigit():
        # g++-13 beside the distribution's own gcc 14 links with gcc 13's libstdc++, which lacks
        # what the distribution's libraries want of theirs. The newer one is there when they run.
        linking.append("-Wl,--allow-shlib-undefined")
    if resolution.feature("mkl") == "static":
        # Objects of MKL's archives do not say that they need no executable stack, so the linker
        # asks for one, and glibc from 2.41 on loads no such library.
        linking.append("-Wl,-z,noexecstack")
    if linking:
        env["LDFLAGS"] = " ".join(linking)
    if resolution.cuda is not None:
        env["CUDAHOSTCXX"] = resolution.compiler.cxx
        if toolkit := toolkit_folder(resolution):
            env["CUDA_HOME"] = f"@/{toolkit}"
        elif resolution.cuda.toolkit == "debian":
            # /usr/bin/nvcc and /usr/include; torch's own build knows that layout by this name.
            env["CUDA_HOME"] = "/usr"
        elif resolution.container or resolution.board:
            env["CUDA_HOME"] = "/usr/local/cuda"
    if resolution.cpu_flags:
        env["CFLAGS"] = env["CXXFLAGS"] = resolution.cpu_flags
    env.update(resolution.feature_env)
    own = dict(resolution.env)
    if linking and "LDFLAGS" in own:
        # What a recipe adds does not take away what the libraries need.
        own["LDFLAGS"] = f"{env['LDFLAGS']} {own['LDFLAGS']}"
    env.update(own)
    return tuple(env.items())


def search_path(resolution: Resolution) -> tuple[str, ...]:
    """Folders before PATH: the environment's programs, then the toolkit's."""
    toolkit = toolkit_folder(resolution)
    return (f"{env_folder(resolution.variant)}/bin", *([f"{toolkit}/bin"] if toolkit else []))


def _cache_checks(resolution: Resolution) -> list[str]:
    cache = "build/CMakeCache.txt"
    checks = [unless(f"test -f {cache}", f"CMake left no {cache}")]
    for wanted in (True, False):
        names = [name for name, state in resolution.expected_cache if state is wanted]
        # An option this configuration never reached is off too.
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
        # CMake looks there, and silently goes without where it finds nothing.
        env = (*env, ("MAGMA_HOME", f"@/{magma.outputs[0]}"))
    if resolution.feature("mkl") == "static" and "CMAKE_PREFIX_PATH" not in dict(env):
        # pip put it there. As a CMAKE_PREFIX_PATH the environment would also give CMake its own
        # ninja before the one on the PATH, which compiles in batches.
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
            # An earlier attempt's wheel must not pass for this one's.
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
    """Why torch's own build uses the network, if it does."""
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
    """Where torch finds CUDA's libraries when they are not in the system's own folders."""
    toolkit = toolkit_folder(resolution)
    return (("LD_LIBRARY_PATH", f"@/{toolkit}/lib"),) if toolkit else ()


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
        cost=Cost(core_seconds=90, disk_mb=2500, basis="an installation"),
    )


def reports(wheel: str) -> tuple[str, str]:
    """Where the reports on a wheel lie: beside it."""
    return f"{wheel}.verify.json", f"{wheel}.verify.txt"
