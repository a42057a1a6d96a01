"""The values a recipe may hold, each checked and brought to one spelling.

Everything that can reach a shell, a Dockerfile or a file system is held to a narrow
alphabet here, so that no later room has to wonder.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from torchsmith.facts.models import Mode
from torchsmith.facts.ranges import release


def _is_version(text: str) -> str:
    release(text)
    return text


VersionText = Annotated[str, AfterValidator(_is_version), Field(examples=["2.6.0"])]

_PYTHON = re.compile(r"[23]\.\d{1,2}")


def _is_python(text: str) -> str:
    if text != "host" and not _PYTHON.fullmatch(text):
        raise ValueError("a Python is written as major.minor, such as 3.11, or 'host'")
    return text


PythonText = Annotated[str, AfterValidator(_is_python), Field(examples=["3.11", "host"])]


def one_or_many(value: Any) -> Any:
    """Let a single value stand for a list of one."""
    return value if isinstance(value, list) else [value]


Pythons = Annotated[
    list[PythonText],
    BeforeValidator(one_or_many),
    Field(min_length=1, max_length=64),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "examples": ["3.11"]},
                {"type": "array", "items": {"type": "string"}, "minItems": 1},
            ]
        }
    ),
]

# PEP 440's characters; the shell's own are not among them.
_PACKAGE_VERSION = re.compile(r"\d[0-9A-Za-z.+!]{0,63}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
# git-check-ref-format allows more; an option (leading dash), '..' and '@{' are never a ref here.
_REF = re.compile(r"(?!.*(?:\.\.|@\{|//|\.lock$))[A-Za-z0-9][A-Za-z0-9._/+-]{0,199}")
_URL = re.compile(r"(?:https?|ssh|git|file|s3)://[A-Za-z0-9._~:/?#@!$&'()*+,;=%\[\]-]{1,500}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_IMAGE = re.compile(
    r"(?:[a-z0-9.-]+(?::\d+)?/)?[A-Za-z0-9]+(?:[._/-]+[A-Za-z0-9]+)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(?:@sha256:[0-9a-f]{64})?"
)
_CPU = re.compile(r"(?:-m(?:arch|cpu|tune)=)?[a-z0-9][a-z0-9+._-]{0,63}")
_SIZE = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)\s*([KMGT])(?:i?B)?", re.IGNORECASE)
_PIP = re.compile(
    r"[A-Za-z0-9][A-Za-z0-9._-]*(?:\[[A-Za-z0-9,._-]+\])?(?:[=<>!~]=?=?[A-Za-z0-9.*+!,<>=~]+)?"
)
_APT = re.compile(r"[a-z0-9][a-z0-9+.-]*(?:=[A-Za-z0-9.+:~-]+)?")


def _matching(pattern: re.Pattern[str], expected: str) -> AfterValidator:
    def check(text: str) -> str:
        if not pattern.fullmatch(text):
            raise ValueError(f"expected {expected}")
        return text

    return AfterValidator(check)


PackageVersion = Annotated[
    str, _matching(_PACKAGE_VERSION, "a package version such as 1.8.0+cu110")
]
Name = Annotated[str, _matching(_NAME, "a name of letters, digits, '.', '_' and '-'")]
Ref = Annotated[str, _matching(_REF, "a git tag, branch or commit")]
Url = Annotated[str, _matching(_URL, "an http(s), ssh, git, file or s3 URL")]
EnvName = Annotated[str, _matching(_ENV_NAME, "the name of an environment variable")]
ImageName = Annotated[str, _matching(_IMAGE, "an image name such as debian:trixie-slim")]
Sha256 = Annotated[str, _matching(re.compile(r"[0-9a-f]{64}"), "64 hexadecimal digits")]
Commit = Annotated[
    str, _matching(re.compile(r"[0-9a-f]{40}"), "the 40 hexadecimal digits of a commit")
]
CpuText = Annotated[
    str, _matching(_CPU, "'portable', 'native', or a CPU the compiler knows, such as haswell")
]
PipRequirement = Annotated[str, _matching(_PIP, "a pip requirement such as pillow>=9")]
AptPackage = Annotated[str, _matching(_APT, "a Debian package name")]
Login = Annotated[
    str, _matching(re.compile(r"[a-z_][a-z0-9_-]{0,31}"), "a Linux user name: lower case, no slash")
]


def _single_line(text: str) -> str:
    if any(ord(char) < 32 or ord(char) == 127 for char in text):
        raise ValueError("must be one line, without control characters")
    return text


Line = Annotated[str, AfterValidator(_single_line), Field(max_length=4000)]


def _is_size(text: str) -> str:
    match = _SIZE.fullmatch(text)
    if not match:
        raise ValueError("a size is written like 8G or 512 MiB")
    return f"{match[1]}{match[2].upper()}"


Size = Annotated[str, AfterValidator(_is_size), Field(examples=["8G", "512M"])]


def size_bytes(size: str) -> int:
    """Return how many bytes a `Size` stands for."""
    match = _SIZE.fullmatch(size)
    assert match, size
    return int(float(match[1]) * 1024 ** ("KMGT".index(match[2].upper()) + 1))


def _inside(text: str) -> str:
    path = PurePosixPath(text)
    if not text or "\0" in text or "\\" in text or "\n" in text:
        raise ValueError("is not a usable path")
    if path.is_absolute() or text.startswith("~"):
        raise ValueError("must be relative to the recipe's folder")
    if ".." in path.parts:
        raise ValueError("climbs out of the recipe's folder")
    if text.startswith("-"):
        raise ValueError("must not start with a dash: programs would read it as an option")
    return str(path)


def _no_climbing(text: str) -> str:
    return text if text.startswith("/") and ".." not in PurePosixPath(text).parts else _inside(text)


ProjectPath = Annotated[str, AfterValidator(_inside), Field(max_length=1000)]
# A source tree or bundle may lie elsewhere if the recipe says so plainly: an absolute path.
SourcePath = Annotated[str, AfterValidator(_no_climbing), Field(max_length=1000)]


def _feature_mode(value: Any) -> Any:
    return ("off", "on")[value] if isinstance(value, bool) else value


FeatureMode = Annotated[
    Mode,
    BeforeValidator(_feature_mode),
    WithJsonSchema({"enum": ["on", "off", "system", "static", True, False]}),
]

PlatformText = Literal["host", "linux-x86_64", "linux-aarch64"]
