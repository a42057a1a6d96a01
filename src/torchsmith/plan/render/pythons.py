"""Pythons a distribution does not have, brought into its image: by uv, or from CPython's source."""

from __future__ import annotations

from torchsmith.plan.shell import sh
from torchsmith.resolve.models import CPythonChoice

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


# What its modules are made of; pip needs ssl and zlib, numpy ctypes.
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
        f"CC=gcc LDFLAGS=-Wl,-rpath,{own}/lib ./configure --prefix={own} {quietly}",
        f'make -j "$(nproc)" {quietly}',
        f"make install {quietly}",
        # Whoever copies the folder need not have these packages.
        f"ldd {own}/lib/python{python}/lib-dynload/*.so | awk '/=> [/]/ {{ print $3 }}' | sort -u "
        "| grep -E '/lib(bz2|crypto|ffi|lzma|sqlite3|ssl|z)[.]so' "
        f"| xargs -r cp -t {own}/lib",
        f"{own}/bin/python{python} -c 'import bz2, ctypes, lzma, sqlite3, ssl, venv, zlib' "
        f"|| {{ tail -n 40 /tmp/python.log; echo 'CPython {python} lacks a module: this "
        "distribution is too new for it'; exit 1; }",
        "cd /",
        f"rm -rf {tree} {archive} /tmp/python.log {own}/lib/python{python}/test",
    ]


def uv_commands(platform: str) -> list[str]:
    """Commands that put uv into /opt/uv: the file of a known hash, no script of anybody's."""
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
