"""The stages of an image: packages of the distribution, packages of pip, a person's account."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from msgspec.structs import replace

from torchsmith.facts.ranges import python_release, release
from torchsmith.plan.render.instructions import (
    PIP_MOUNTS,
    Pin,
    apt_install,
    arg,
    env,
    run,
    secret_exports,
    secret_mounts,
)
from torchsmith.plan.shell import needs_program, sh, unless
from torchsmith.plan.torch import last_pip, runtime_requirements
from torchsmith.recipe.outcome import Foundation, Training
from torchsmith.resolve.models import CPythonChoice, Resolution

# The release of uv that brings a Python the distribution lacks, as PyPI has it for each machine:
# https://pypi.org/project/uv/0.13.7/#files
_UV = "0.13.7"
_UV_WHEELS = {
    "x86_64": (
        "b9/93/0e053a2ca4523ee9825ccbedeb7121470d0a188933f11688b6d90d7f5c08",
        "manylinux_2_17_x86_64.manylinux2014_x86_64",
        "2c9bdc4a872b60a93c5f26c0791089ea11585a4f9d3b3c017d78eb8487505e25",
    ),
    "aarch64": (
        "96/72/da1119f94034d7173e6c8e2cd77a6299744458f0af3cb8e3a04d5cd419d1",
        "manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64",
        "a90f5d95716ab83091f0f73a8e7ec64e557abf2a28537fcd719b2ac88e6f725a",
    ),
}


# What CPython's modules are built from; pip needs ssl and zlib, numpy ctypes.
CPYTHON_PACKAGES = (
    "curl",
    "gcc",
    "libbz2-dev",
    "libc6-dev",
    "libffi-dev",
    "liblzma-dev",
    "libsqlite3-dev",
    "libssl-dev",
    "make",
    "xz-utils",
    "zlib1g-dev",
)


# For Pythons before 3.7. Compilers since gcc 7 expect memory aligned as on x86-64, and such a
# Python crashes: https://bugs.python.org/issue27987. glibc 2.41 has a sinpi of its own:
# https://bugs.python.org/issue36106
_CPYTHON_MENDS = (
    "sed -i 's/^#define ALIGNMENT  *8 /#define ALIGNMENT 16 /; "
    "s/^#define ALIGNMENT_SHIFT  *3$/#define ALIGNMENT_SHIFT 4/' Objects/obmalloc.c",
    "sed -i 's/^    double dummy;/    long double dummy;/' Include/objimpl.h",
    "sed -i 's/\\bsinpi(/m_sinpi(/g' Modules/mathmodule.c",
)


def cpython_commands(python: str, source: CPythonChoice) -> list[str]:
    """Commands that build CPython into /opt/python, with the libraries it needs beside it."""
    archive, tree, own = "/tmp/python.tar", "/tmp/python", "/opt/python"
    quietly = "> /tmp/python.log 2>&1 || { tail -n 40 /tmp/python.log; exit 1; }"
    return [
        f"{sh('curl', '--fail', '--silent', '--show-error', '--location')} "
        f"--output {archive} {sh(source.url)}",
        f"echo '{source.sha256}  {archive}' | sha256sum --check --quiet",
        f"mkdir {tree}",
        f"tar --extract --file {archive} --directory {tree} --strip-components=1",
        f"cd {tree}",
        *(_CPYTHON_MENDS if python_release(python) < (3, 7) else ()),
        f"CC=gcc LDFLAGS=-Wl,-rpath,{own}/lib ./configure --prefix={own} {quietly}",
        f'make -j "$(nproc)" {quietly}',
        f"make install {quietly}",
        # A stage that copies the folder need not have these packages.
        f"ldd {own}/lib/python{python}/lib-dynload/*.so | awk '/=> [/]/ {{ print $3 }}' | sort -u "
        "| grep -E '/lib(bz2|crypto|ffi|lzma|sqlite3|ssl|z)[.]so' "
        f"| xargs -r cp -t {own}/lib",
        f"{own}/bin/python{python} -c 'import bz2, ctypes, lzma, math, sqlite3, ssl, venv, zlib' "
        f"|| {{ tail -n 40 /tmp/python.log; echo 'CPython {python} lacks a module: this "
        "distribution is too new for it'; exit 1; }",
        "cd /",
        f"rm -rf {tree} {archive} /tmp/python.log {own}/lib/python{python}/test",
    ]


def uv_commands(platform: str) -> list[str]:
    """Commands that put uv into /opt/uv: a file with a known hash, without an install script."""
    folder, tag, sha256 = _UV_WHEELS[platform.partition("-")[2]]
    address = f"https://files.pythonhosted.org/packages/{folder}/uv-{_UV}-py3-none-{tag}.whl"
    return [
        "mkdir -p /opt/uv",
        f"curl --fail --silent --show-error --location --output /opt/uv/uv.whl {address}",
        f"echo '{sha256}  /opt/uv/uv.whl' | sha256sum --check --quiet -",
        f"unzip -q -j /opt/uv/uv.whl uv-{_UV}.data/scripts/uv -d /opt/uv",
        "chmod 755 /opt/uv/uv",
        "rm /opt/uv/uv.whl",
    ]


_CUDA = "/usr/local/cuda"
# Images whose python3 is this one, if the recipe names no distribution.
_PLAIN_BASES = {
    "3.8": "docker.io/library/ubuntu:20.04",
    "3.9": "docker.io/library/debian:11",
    "3.10": "docker.io/library/ubuntu:22.04",
    "3.12": "docker.io/library/ubuntu:24.04",
    "3.13": "docker.io/library/debian:13",
    "3.14": "docker.io/library/ubuntu:26.04",
}


def base_name(resolution: Resolution) -> str:
    """The image to build on."""
    plain = _PLAIN_BASES.get(resolution.python, "docker.io/library/debian:12")
    return resolution.base_image or plain


def runtime_base(resolution: Resolution) -> str:
    """The image to put the build on."""
    base = base_name(resolution)
    # NVIDIA publishes a small sibling of each of its images.
    nvidias = base.removeprefix("docker.io/").startswith("nvidia/cuda:")
    return base.replace("-devel-", "-runtime-") if nvidias else base


def base_stage(resolution: Resolution, *, compilers: bool, name: str = "") -> list[str]:
    """The stage that every step of a variant can run in: its base image, packages and settings.

    Only sources, a work folder and a compiler cache are missing.
    """
    lines = [f"FROM {base_name(resolution)}" + (f" AS {name}" if name else "")]
    lines += _repositories(resolution, cuda=compilers)
    packages = build_packages(resolution) if compilers else python_packages(resolution)
    lines += apt_install(packages, pins(resolution))
    if compilers and absent_cuda(resolution):
        lines += run([unless(f"test -x {_CUDA}/bin/nvcc", absent_cuda(resolution))])
    if compilers and _from_repository(resolution):
        lines += run(cuda_commands(resolution))
        # As NVIDIA's images have it: libcuda comes with the driver, a stub is linked against.
        lines.append("ENV PATH=/usr/local/cuda/bin:$PATH LIBRARY_PATH=/usr/local/cuda/lib64/stubs")
    if resolution.python_from == "uv":
        lines += [
            "# The distribution has another Python: uv brings this one, in a folder to copy.",
            "ENV UV_PYTHON_INSTALL_DIR=/opt/python PATH=/opt/uv:$PATH",
            *run(uv_commands(resolution.platform)),
        ]
    if resolution.cpython is not None:
        lines += [
            "# Nobody packs this Python for this distribution: built here, in a folder to copy.",
            "ENV PATH=/opt/python/bin:$PATH",
            *run(cpython_commands(resolution.python, resolution.cpython)),
        ]
    return lines


def foundation_stage(foundation: Foundation, resolution: Resolution) -> list[str]:
    """The start of the recipe's own base image; for a deleted image, its packages."""
    instead = resolution.foundation
    if instead is None:
        return [f"FROM {foundation.start}"]
    there = replace(resolution, system=instead.system, base_image=instead.start, cuda=instead.cuda)
    return [
        f"# {foundation.start} is gone from Docker Hub: the packages it was made of.",
        f"FROM {instead.start}",
        *_repositories(there, cuda=True),
        *apt_install(instead.cuda.apt, pins(there)),
        *run(cuda_commands(there)),
        "ENV PATH=/usr/local/cuda/bin:$PATH LIBRARY_PATH=/usr/local/cuda/lib64/stubs "
        "NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    ]


def absent_cuda(resolution: Resolution) -> str:
    """The message for a base image without CUDA, if the plan uses the machine's own."""
    cuda = resolution.cuda
    if cuda is None or cuda.toolkit != "system":
        return ""
    owner = (
        f"JetPack {resolution.jetpack} installs it on the board"
        if resolution.jetpack
        else ("the plan takes the machine's own")
    )
    cure = "" if resolution.board else "; or let an image bring it: `system` in the recipe"
    return (
        f"{base_name(resolution)} has no CUDA {cuda.version}: {owner}. Lend it to the build "
        f"(podman build --volume {_CUDA}:{_CUDA}:ro, and cuDNN in the same way); or name an "
        f"image that has both: image.base{cure}"
    )


def runtime_stage(resolution: Resolution) -> list[str]:
    """The stage in which the build runs: its base image and the libraries that torch loads."""
    lines = [f"FROM {runtime_base(resolution)} AS shared"]
    lines += _repositories(resolution, cuda=True)
    lines += apt_install(runtime_packages(resolution), pins(resolution), resolution.apt)
    if _from_repository(resolution):
        lines += run(cuda_commands(resolution))
    if resolution.cuda is not None and resolution.cuda.apt_runtime:
        # As in NVIDIA's images: what its container runtime is to mount.
        lines.append("ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility")
    return lines


def _from_repository(resolution: Resolution) -> bool:
    return resolution.cuda is not None and bool(resolution.cuda.repositories)


def _repositories(resolution: Resolution, *, cuda: bool) -> list[str]:
    lines = run(archive_commands(resolution)) if resolution.archive else []
    packages, commands = repository_setup(resolution) if cuda else ([], [])
    lines += apt_install(packages) if packages else []
    return lines + (run(commands) if commands else [])


def archive_commands(resolution: Resolution) -> list[str]:
    """Commands that point apt to the archive of an old distribution."""
    if not resolution.archive:
        return []
    return [
        "sed -i -E -e '/-updates /d' "
        f"-e 's,https?://(deb|security)[.]debian[.]org,{resolution.archive},' "
        "/etc/apt/sources.list",
        # Its lists are no longer signed anew.
        "echo 'Acquire::Check-Valid-Until \"false\";' > /etc/apt/apt.conf.d/99archive",
    ]


def repository_setup(resolution: Resolution) -> tuple[list[str], list[str]]:
    """What apt needs before it can install CUDA: packages, then commands."""
    cuda = resolution.cuda
    if cuda is not None and cuda.toolkit == "debian":
        # Debian's images list their archive in one of two forms, and main only.
        return [], [
            "find /etc/apt -name '*.list' -o -name '*.sources' | xargs sed -i -E "
            "'/ non-free( |$)/! s/^(deb |Components:).*main( .*)?$/& contrib non-free/'"
        ]
    if cuda is None or not cuda.repositories:
        return [], []
    packages = ["ca-certificates", "curl", "gnupg"]
    if resolution.system == "ubuntu-16.04":
        packages.append("apt-transport-https")
    commands = []
    for number, item in enumerate(cuda.repositories):
        ring = f"/usr/share/keyrings/nvidia-{number}.gpg"
        commands += [
            "curl --fail --silent --show-error --location --output /tmp/nvidia.pub "
            f"{item.url}{item.key}",
            f"gpg --dearmor --output {ring} /tmp/nvidia.pub",
            unless(
                f"gpg --no-default-keyring --keyring {ring} --with-colons --fingerprint "
                f"| grep -q '^fpr:.*:{item.fingerprint}:'",
                f"{item.url}{item.key} is not the key of NVIDIA's that is expected",
            ),
            f"echo 'deb [signed-by={ring}] {item.url} /' "
            f"> /etc/apt/sources.list.d/nvidia-{number}.list",
        ]
    return packages, [*commands, "rm -rf /tmp/nvidia.pub /root/.gnupg"]


def cuda_commands(resolution: Resolution) -> list[str]:
    """Commands that link a toolkit of NVIDIA's packages to the place it has in their images."""
    assert resolution.cuda is not None
    return [
        f"test -e /usr/local/cuda || ln -s cuda-{resolution.cuda.version} /usr/local/cuda",
        "echo /usr/local/cuda/lib64 > /etc/ld.so.conf.d/nvidia-cuda.conf",
        "ldconfig",
    ]


def pins(resolution: Resolution) -> dict[str, Pin]:
    """The releases of NCCL and cuDNN for a toolkit, as apt patterns."""
    cuda = resolution.cuda
    if cuda is None:
        return {}
    # NVIDIA's packages say which toolkit they are for: 2.4.8-1+cuda9.0. cuDNN's from 9 on do not.
    nvidias = bool(cuda.repositories) or resolution.base_image == cuda.image != ""
    suffix = f"+cuda{cuda.version}" if nvidias else ""
    named = any(name.startswith("libcudnn9") for name in cuda.apt) or release(cuda.cudnn or "0") > (
        9,
    )
    found: dict[str, Pin] = {}
    for library, version, numbers, end in (
        ("nccl", cuda.nccl, 3, suffix),
        ("cudnn", cuda.cudnn, 4, "" if named else suffix),
    ):
        whole = version.count(".") + 1 >= numbers
        pattern = f"{version}{'-' if whole else '.'}*" if version else "*"
        found[library] = Pin(pattern + end, asked=bool(version))
    return found


def python_packages(resolution: Resolution) -> list[str]:
    """The packages for making a virtual environment."""
    if resolution.python_from == "uv":
        return ["ca-certificates", "curl", "unzip"]
    if resolution.cpython is not None:
        return ["ca-certificates", *CPYTHON_PACKAGES]
    return ["ca-certificates", *_with_venv(resolution)]


def _with_venv(resolution: Resolution) -> list[str]:
    return [resolution.python_package, f"{resolution.python_package}-venv"]


def build_packages(resolution: Resolution) -> list[str]:
    """The packages for compiling."""
    compiler = resolution.compiler
    packages = ["bash", "ccache", "curl", "git", "make", "ninja-build", "patch"]
    packages += [*python_packages(resolution), *resolution.apt]
    packages.append(compiler.cc.rsplit("/", 1)[-1])
    if compiler.kind == "gcc":
        packages.append(compiler.cxx.rsplit("/", 1)[-1])
    if python_release(resolution.python) < (3, 7):
        # CMake has no wheel for a Python that old.
        packages.append("cmake")
    if python_release(resolution.python) < (3, 6):
        # cffi has no AArch64 wheel that old: pip compiles it.
        packages.append("libffi-dev")
    if resolution.python_from == "system":
        packages += [f"{resolution.python_package}-dev", "python3-pip"]
    if resolution.cuda is not None and resolution.cuda.toolkit == "wheels":
        # The toolkit is fetched with any Python, and its stubs are made with `cc`.
        packages += ["gcc", "python3", "python3-venv"]
    if any(item.name == "vision" for item in resolution.companions):
        packages += ["libjpeg-dev", "libpng-dev", "zlib1g-dev"]
    if resolution.source.kind == "debian":
        packages += ["debian-archive-keyring", "dpkg-dev"]
    if resolution.use == "source":
        packages.append("libopenblas-dev")
        if resolution.feature("mpi") in ("on", "system"):
            packages.append("libopenmpi-dev")
    return packages


def runtime_packages(resolution: Resolution) -> list[str]:
    """The packages that torch and its companions load when they run."""
    packages = ["ca-certificates", "libgomp1", "tzdata"]
    if resolution.cuda is not None and resolution.cuda.apt_runtime:
        packages += resolution.cuda.apt_runtime
        if resolution.feature("nccl") == "system":
            packages.append("libnccl2")
    if resolution.use == "source":
        old = resolution.system in ("ubuntu-16.04", "ubuntu-18.04", "debian-10")
        packages.append("libopenblas-base" if old else "libopenblas0")
        if resolution.feature("mpi") in ("on", "system"):
            packages.append("openmpi-bin")
    if resolution.python_from == "system":
        packages += _with_venv(resolution)
    if any(item.name == "vision" for item in resolution.companions):
        packages.append("libjpeg-turbo8" if "ubuntu" in resolution.system else "libjpeg62-turbo")
        packages.append(_png(resolution.system))
    return packages


def _png(system: str) -> str:
    if system == "ubuntu-16.04":
        return "libpng12-0"
    # The 64-bit time_t transition renamed it.
    return "libpng16-16t64" if system in _TIME64 else "libpng16-16"


_TIME64 = ("ubuntu-24.04", "ubuntu-26.04", "debian-13", "debian-forky")


def environment_commands(resolution: Resolution, files: str) -> list[str]:
    """Commands that make the virtual environment /opt/venv with torch in it; `files` are wheels."""
    python = resolution.python
    if resolution.python_from == "uv":
        make = f"uv venv --quiet --seed --python {python} /opt/venv"
    else:
        # A person's own base image may only have the name python3.
        make = f'"$(command -v python{python} || command -v python3)" -m venv /opt/venv'
    packages = list(runtime_requirements(resolution))
    # torch runs without numpy, but warns at every import, and nearly every program uses it.
    packages += resolution.numpy
    first: list[str] = []
    if resolution.wheel_index:
        first = ["--index-url", resolution.wheel_index, f"torch=={resolution.version}"]
        first = [f"/opt/venv/bin/python -m pip install {shlex.join(first)}"]
    elif resolution.use != "source":
        # The public version of an installed one: its exact build may be on no index.
        packages.append(f"torch=={resolution.torch}")
    *newer, rest = pip_install("/opt/venv/bin/python", python, packages, files)
    return [make, *newer, *first, rest]


def pip_install(python: str, version: str, packages: Sequence[str], files: str) -> list[str]:
    """Commands that install into an environment; its pip may be as old as its Python."""
    upgrade = last_pip(version)
    commands = [f"{python} -m pip install --upgrade {shlex.quote(upgrade)}"] if upgrade else []
    what = " ".join(filter(None, [shlex.join(packages), files]))
    return [*commands, f"{python} -m pip install {what}"]


def _locale(training: Training) -> tuple[list[str], list[str]]:
    """Packages and commands that make a locale; C's are in every image."""
    language, _, charset = training.locale.partition(".")
    if language in ("C", "POSIX"):
        return [], []
    words = ["localedef", "-i", language, "-f", charset or "UTF-8", training.locale]
    return ["locales"], [shlex.join(words)]


def train_stage(training: Training, secrets: Sequence[str]) -> list[str]:
    """The image a person works in, as themselves."""
    uid = "1000" if training.uid == "caller" else str(training.uid)
    gid = "1000" if training.gid == "caller" else str(training.gid)
    groups = f" --groups {','.join(training.groups)}" if training.groups else ""
    user, workdir = training.user, training.workdir
    lines = ["", f"# ---- {training.name}: the image {user} works in"]
    lines += [f"FROM shared AS train-{training.name}", arg("UID", uid), arg("GID", gid)]
    lines.append(arg("TZ", training.timezone))
    packages, make_locale = _locale(training)
    if training.apt or packages:
        lines += apt_install([*training.apt, *packages])
    lines.append('ENV TZ="$TZ"')
    lines += run(
        [
            unless('test "$UID" != 0', "UID is 0: this image is for a person, not for root"),
            unless(
                f"test -e /usr/share/zoneinfo/{training.timezone}",
                f"this distribution knows no time zone {training.timezone}",
            ),
            unless(f"test -x {training.shell}", f"there is no {training.shell}: name it in apt"),
            *make_locale,
            'ln -sfn "/usr/share/zoneinfo/$TZ" /etc/localtime',
            'echo "$TZ" > /etc/timezone',
            *(f"getent group {name} || groupadd {name}" for name in training.groups),
            f'getent group "$GID" || groupadd --gid "$GID" {user}',
            # Ubuntu's images from 24.04 on have a user of their own with number 1000.
            'owner="$(getent passwd "$UID" | cut -d: -f1)"',
            'if [ -n "$owner" ]; then userdel --remove "$owner" || true; fi',
            'useradd --uid "$UID" --gid "$GID" --no-log-init --create-home '
            f"--shell {training.shell}{groups} {user}",
            f"mkdir -p {workdir}",
            # The folders, not their content: more can be installed, and no layer is copied.
            f'chown "$UID:$GID" {workdir} /opt/venv /opt/venv/bin '
            "/opt/venv/lib/python3*/site-packages",
        ]
    )
    lines.append(env({"LANG": training.locale, "LC_ALL": training.locale}))
    exports, mounts = secret_exports(secrets), secret_mounts(secrets)
    if training.pip:
        command = f"pip install {shlex.join(training.pip)}"
        lines += run([*exports, command], [*PIP_MOUNTS, *mounts])
    if training.conda:
        lines += run(
            [
                needs_program("conda", "train.conda needs a base image that has it"),
                f"conda install --yes {shlex.join(training.conda)}",
            ]
        )
    if training.run:
        lines += run([*exports, *training.run], mounts)
    if training.env:
        lines.append(env(training.env))
    return [*lines, f"USER {user}", f"WORKDIR {workdir}", f'CMD ["{training.shell}"]']
