"""The values a recipe may hold, each checked and brought to one spelling.

Everything that can reach a shell, a Dockerfile or a file system is held to a narrow
alphabet here, so that no later room has to wonder.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal, Protocol, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    WithJsonSchema,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from torchsmith.facts.files import shipped
from torchsmith.facts.models import Mode
from torchsmith.facts.platforms import other_platform, platform_named
from torchsmith.secret_names import holds_secret, is_secret_name


class Section(BaseModel):
    """A table that takes only the keys it knows, each of exactly its type."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


class WhenThere:
    """Marks a table whose own checks are made ready only where a recipe has that table.

    Making all of them ready takes longer than planning, and most recipes have few of the tables.
    """

    def __get_pydantic_core_schema__(
        self, table: type[Section], handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        def of_table(_: CoreSchema, describe: GetJsonSchemaHandler) -> dict[str, Any]:
            table.model_rebuild()
            return describe(table.__pydantic_core_schema__)

        return core_schema.no_info_plain_validator_function(
            table.model_validate,
            # The name the schema for editors knows the table by.
            ref=f"{table.__module__}.{table.__qualname__}:{id(table)}",
            metadata={"pydantic_js_functions": [of_table]},
        )


class _HasName(Protocol):
    @property
    def name(self) -> str: ...


_Named = TypeVar("_Named", bound=_HasName)


def unique_names(items: list[_Named]) -> list[_Named]:
    """Entries of a list are told apart by name; two of one name are a mistake."""
    names = [item.name for item in items]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise ValueError(f"entries {names.index(name) + 1} and {index + 1} are both {name!r}")
    return items


@dataclass(frozen=True)
class Form:
    """Text of a certain form: checked here, and told to editors in the JSON Schema.

    ASCII only: `\\d` would take the digits of every script, and a case-insensitive `k`
    the sign for kelvin.
    """

    pattern: str
    expected: str
    examples: tuple[str, ...] = ()
    longest: int = 256

    def check(self, text: str) -> str:
        """Return the text, or say in a `ValueError` what was expected."""
        if len(text) > self.longest or not re.fullmatch(self.pattern, text, re.ASCII):
            raise ValueError(f"expected {self.expected}")
        return text

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return self.json_schema()

    def json_schema(self) -> JsonSchemaValue:
        """The same, as JSON Schema."""
        shown: JsonSchemaValue = {"type": "string", "pattern": f"^(?:{self.pattern})$"}
        return {**shown, "examples": list(self.examples)} if self.examples else shown


class OrText:
    """Tells editors that text of a certain form may stand for a table."""

    def __init__(self, *forms: JsonSchemaValue) -> None:
        self.forms = forms

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {"anyOf": [*self.forms, handler(schema)]}


VERSION = Form(r"[0-9]{1,6}(?:\.[0-9]{1,6}){0,5}", "a version number such as 2.6.0")
VersionText = Annotated[str, VERSION]
# What `torch.__version__` says of wheels: 2.7.0.dev20250101+cu126.
_OF_WHEEL = re.compile(
    r"(\d{1,6}\.\d{1,6}(?:\.\d{1,6})?)(?:(\.dev\d{1,9}|a0)|(rc\d{1,3}))?(?:\+([\w.]{1,64}))?"
)


def _release(value: Any) -> Any:
    """What to write for the version of a wheel."""
    found = _OF_WHEEL.fullmatch(value) if isinstance(value, str) else None
    if found is None or not any(found.groups()[1:]):
        return value
    release, nightly, candidate, label = found.groups()
    if nightly:
        raise ValueError(
            f"a nightly's version does not name its commit: release = {release!r}, ref = the "
            "commit that torch.version.git_version says there"
        )
    if candidate:
        raise ValueError(f"a candidate is named by its tag: v{release}-{candidate}")
    raise ValueError(f"+{label} is the label of a wheel: release = {release!r}, and cuda apart")


TorchRelease = Annotated[str, BeforeValidator(_release), VERSION]
CUDA_VERSION = Form(VERSION.pattern, "a CUDA release such as 12.6")
CudaVersion = Annotated[str, CUDA_VERSION]
PYTHON = Form(
    r"[23]\.[0-9]{1,2}|3\.[0-9]{2}t|host",
    "a Python as major.minor, such as 3.11, 3.14t for the free-threaded one, or 'host'",
    ("3.11", "3.14t", "host"),
)
PythonText = Annotated[str, PYTHON]


def one_or_many(value: Any) -> Any:
    """Let a single value stand for a list of one."""
    return value if isinstance(value, list) else [value]


def _pythons(value: Any) -> Any:
    """Several Pythons, also in one text with commas, as a command line has them."""
    texts = one_or_many(value)
    return [
        word.strip() if isinstance(word, str) else word
        for text in texts
        for word in (text.split(",") if isinstance(text, str) else [text])
    ]


Pythons = Annotated[
    list[PythonText],
    BeforeValidator(_pythons),
    Field(min_length=1, max_length=64),
    WithJsonSchema(
        {
            "anyOf": [
                PYTHON.json_schema(),
                {"type": "array", "items": PYTHON.json_schema(), "minItems": 1},
            ]
        }
    ),
]

PACKAGE_VERSION = Form(r"[0-9][0-9A-Za-z.+!]{0,63}", "a package version such as 1.8.0+cu110")


def _is_pep440(text: str) -> str:
    from packaging.version import InvalidVersion, Version

    try:
        Version(text)
    except InvalidVersion:
        raise ValueError(f"expected {PACKAGE_VERSION.expected}, as in PEP 440") from None
    return text


PackageVersion = Annotated[str, PACKAGE_VERSION, AfterValidator(_is_pep440)]
Name = Annotated[
    str, Form(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", "a name of letters, digits, '.', '_' and '-'")
]


def _system(value: Any) -> Any:
    """One spelling: images write `ubuntu:22.04`, and the system itself `Ubuntu 22.04`."""
    if isinstance(value, str) and (found := re.fullmatch(r"([A-Za-z]+)[: ](\w[\w.]*)", value)):
        return f"{found[1].lower()}-{found[2].lower()}"
    return value


System = Annotated[Name, BeforeValidator(_system)]
# PEP 440's local version segment, or the word that leaves it out.
Label = Annotated[
    str,
    Form(r"[A-Za-z0-9]{1,32}(?:[._-][A-Za-z0-9]{1,32}){0,4}", "a label such as cu118, or 'none'"),
]


def _without_secret(text: str) -> str:
    if holds_secret(text):
        # Without the text: this sentence ends up in logs.
        raise ValueError(
            "a password or token stands in it; it would be copied into plans, scripts and "
            "signed provenance. Leave it out: programs find it in their own configuration"
        )
    return text


_DOTS = re.compile(r"/(?:\.|%2e){1,2}(?:[/?#]|\Z)", re.IGNORECASE)


def _as_it_reads(url: str) -> str:
    if _DOTS.search(url):
        # What fetches it takes these out: it would come from another place than provenance says.
        raise ValueError("must not hold /./ or /../: write where it leads")
    return url


# git-check-ref-format allows more; an option (leading dash), '..' and '@{' are never a ref here.
Ref = Annotated[
    str,
    Form(
        r"(?!.*(?:\.\.|//|\.lock$))[A-Za-z0-9][A-Za-z0-9._/+-]{0,199}",
        "a git tag, branch or commit",
    ),
]
# Of a library whose release follows from torch's. Not any word: a slip of the pen is no branch.
BRANCH = Form(
    r"main|master|nightly|release/\d{1,4}(?:\.\d{1,4}){0,2}|[0-9a-f]{12,40}",
    "a branch such as main or release/0.10, or a commit",
)
BranchText = Annotated[str, BRANCH]
# RFC 3986 allows more; what a shell reads as a command ($, `, (, ;, ') is written %24 and so on.
# No password or token: a recipe is committed, and becomes part of the provenance.
Url = Annotated[
    str,
    Form(
        r"(?:(?:ssh|git)://(?![^/@]*:[^/@]*@)|(?:https?|file|s3)://(?![^/?#]*@))"
        r"[A-Za-z0-9._~:/?#@&+,=%\[\]-]{1,500}",
        "an http(s), ssh, git, file or s3 URL without a password or token in it",
        longest=512,
    ),
    AfterValidator(_without_secret),
    AfterValidator(_as_it_reads),
]
Bucket = Annotated[
    str,
    Form(
        r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](?:/[A-Za-z0-9._-]+)*/?",
        "an address such as s3://bucket/folder",
        longest=512,
    ),
]
EnvName = Annotated[
    str, Form(r"[A-Za-z_][A-Za-z0-9_]{0,127}", "the name of an environment variable")
]
ImageName = Annotated[
    str,
    Form(
        r"(?:[a-z0-9.-]+(?::[0-9]{1,5})?/)?[A-Za-z0-9]+(?:[._/-]+[A-Za-z0-9]+)*"
        r"(?::[A-Za-z0-9_][A-Za-z0-9._-]{0,127})?(?:@sha256:[0-9a-f]{64})?",
        "an image name such as debian:trixie-slim",
        longest=512,
    ),
]
Sha256 = Annotated[str, Form(r"[0-9a-f]{64}", "64 hexadecimal digits")]
Commit = Annotated[str, Form(r"[0-9a-f]{40}", "the 40 hexadecimal digits of a commit")]
CpuText = Annotated[
    str,
    Form(
        r"(?:-m(?:arch|cpu|tune)=)?[a-z0-9][a-z0-9+._-]{0,63}",
        "'portable', 'native', or a CPU the compiler knows, such as haswell",
        ("portable", "native", "haswell"),
    ),
]
PipRequirement = Annotated[
    str,
    Form(
        r"[A-Za-z0-9][A-Za-z0-9._-]*(?:\[[A-Za-z0-9,._-]+\])?"
        r"(?:[=<>!~]=?=?[A-Za-z0-9.*+!,<>=~]+)?",
        "a pip requirement such as pillow>=9",
    ),
]
Pin = Annotated[
    str,
    Form(
        r"[A-Za-z0-9][A-Za-z0-9._-]*==[0-9][A-Za-z0-9.+!]*",
        "a project and its version, such as torch-scatter==2.1.2",
    ),
]
# A dash at the end is how apt-get is told to remove a package.
AptPackage = Annotated[
    str,
    Form(r"[a-z0-9][a-z0-9+.-]*(?<!-)(?:=[A-Za-z0-9.+:~-]+)?", "a Debian package name"),
]
Login = Annotated[str, Form(r"[a-z_][a-z0-9_-]{0,31}", "a Linux user name: lower case, no slash")]

# They change the order in which a line is shown: it would not read as it runs (CVE-2021-42574).
_REORDERING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def is_plain(char: str) -> bool:
    """Whether a character shows as itself: no control, no line break, no reordering."""
    return unicodedata.category(char) not in ("Cc", "Cs", "Zl", "Zp") and char not in _REORDERING


def _single_line(text: str) -> str:
    if not all(map(is_plain, text)):
        raise ValueError("must be one line, without control characters")
    return text


def _plain_lines(text: str) -> str:
    if not all(char in "\n\t" or is_plain(char) for char in text):
        raise ValueError("must not hold control characters")
    return text


Line = Annotated[
    str, AfterValidator(_single_line), AfterValidator(_without_secret), Field(max_length=4000)
]
Lines = Annotated[
    str, AfterValidator(_plain_lines), AfterValidator(_without_secret), Field(max_length=2000)
]
Script = Annotated[
    str, AfterValidator(_plain_lines), AfterValidator(_without_secret), Field(max_length=200_000)
]


def no_secrets(cure: str) -> AfterValidator:
    """A table of variables without secrets; `cure` says where a secret belongs instead."""

    def check(env: dict[str, str]) -> dict[str, str]:
        for name in env:
            if is_secret_name(name):
                raise ValueError(f"{name} would hold a secret in clear; {cure.format(name=name)}")
        return env

    return AfterValidator(check)


BuildVariables = Annotated[
    dict[EnvName, Line],
    no_secrets("plans, scripts and signed provenance would show it, and a build needs none"),
]
ImageVariables = Annotated[
    dict[EnvName, Line],
    no_secrets("whoever has the image could read it: name it under image.secrets instead"),
]

SIZE = Form(
    r"([0-9]{1,6}(?:\.[0-9]{1,3})?) ?([KkMmGgTt])(?:[Ii]?[Bb])?", "a size like 8G or 512 MiB"
)


def _one_spelling(text: str) -> str:
    match = re.fullmatch(SIZE.pattern, text)
    assert match, text
    if not float(match[1]):
        raise ValueError("must be more than nothing")
    return f"{match[1]}{match[2].upper()}"


Size = Annotated[str, SIZE, AfterValidator(_one_spelling), Field(examples=["8G", "512M"])]


def size_bytes(size: str) -> int:
    """Return how many bytes a size such as 8G stands for; `ValueError` if it is not one."""
    match = re.fullmatch(SIZE.pattern, size)
    if not match:
        raise ValueError(f"{size!r} is not {SIZE.expected}")
    return int(float(match[1]) * 1024 ** ("KMGT".index(match[2].upper()) + 1))


# Names of any language, but nothing a shell or a Dockerfile would read as more than a name.
_PATH = re.compile(r"[\w.+@=,:/-]+")


def _inside(text: str) -> str:
    path = PurePosixPath(text)
    if path.is_absolute() or text.startswith("~"):
        raise ValueError("must be relative to the recipe's folder")
    if ".." in path.parts:
        raise ValueError("climbs out of the recipe's folder")
    if text.startswith("-"):
        raise ValueError("must not start with a dash: programs would read it as an option")
    if not _PATH.fullmatch(text):
        raise ValueError("is not a usable path: letters, digits and . _ - + @ = , : / can be in it")
    return str(path)


def _no_climbing(text: str) -> str:
    return "/" + _inside(text.lstrip("/") or ".") if text.startswith("/") else _inside(text)


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


def _platform(value: Any) -> Any:
    """One spelling for a platform; what there is for one that nothing is built for."""
    if not isinstance(value, str):
        return value
    if (other := other_platform(shipped(), value)) is not None:
        raise ValueError(
            f"torchsmith builds for linux-x86_64 and linux-aarch64 only. {other.exists}"
        )
    return platform_named(value)


PlatformText = Annotated[
    Literal["host", "linux-x86_64", "linux-aarch64"], BeforeValidator(_platform)
]
