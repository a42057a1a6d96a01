"""What a comparison found, as a document that can be kept, read again and drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct

from torchsmith.errors import UsageError
from torchsmith.foreign import decode
from torchsmith.inputs import check_file

FORMAT = 1
Document = TypeVar("Document", bound=Struct)

Verdict = Literal["faster", "slower", "same", "unclear"]


class Facts(Struct, frozen=True):
    """What a torch says of itself, and which libraries it loaded."""

    torch: str = ""
    python: str = ""
    config: str = ""
    parallel: str = ""
    capability: str = ""
    git: str = ""
    debug: bool = False
    cuda: str = ""
    cudnn: int = 0
    gpu: str = ""
    threads: int = 0
    mkldnn: bool = False
    mkl: bool = False
    libraries: tuple[str, ...] = ()
    openblas_core: str = ""


class Contender(Struct, frozen=True):
    """One side of the comparison; `shown` is its target as a person wrote it."""

    name: str
    shown: str
    environ: dict[str, str] = {}
    settings: dict[str, str] = {}
    facts: Facts = Facts()


class Method(Struct, frozen=True):
    """How it was measured."""

    suite: str
    rounds: int
    lives: int
    block: float
    blocks: int
    seed: int
    threads: int
    cpus: tuple[int, ...]
    control: bool
    alpha: float

    @property
    def width(self) -> str:
        """How many threads, in words."""
        return f"{self.threads} thread{'' if self.threads == 1 else 's'}"


class Machine(Struct, frozen=True):
    """Where it was measured; `load` is how many processes wanted a core, before and after."""

    cpu: str
    cores: int
    platform: str
    load: tuple[float, float] = (0.0, 0.0)


class Measured(Struct, frozen=True):
    """A case: seconds of one call in each round, by side; or why a side has none.

    A side may be `missing` what the case is about, or have `failed` in it. `lives` is how many
    of the rounds each life of the workers had.
    """

    name: str
    group: str
    device: str
    times: dict[str, tuple[float, ...]] = {}
    lives: tuple[int, ...] = ()
    missing: dict[str, str] = {}
    failed: dict[str, str] = {}


class Compared(Struct, frozen=True):
    """A case, or a whole group, of the first side against another.

    `speedup` is how many times as quick the first is, `low` and `high` its interval, `chance`
    how likely chance alone makes it, corrected for all cases together; `floor` is what two
    copies of the first differ by.
    """

    against: str
    case: str
    group: str
    device: str
    speedup: float
    low: float
    high: float
    chance: float
    floor: float
    verdict: Verdict
    rounds: int


class Noise(Struct, frozen=True):
    """What the first side against itself gave, on one device."""

    device: str
    cases: int
    middle: float
    floor: float
    called: int


class Reason(Struct, frozen=True):
    """Why a group is slower, as far as what torch says of itself tells."""

    against: str
    device: str
    group: str
    speedup: float
    because: tuple[str, ...]


class Result(Struct, frozen=True, kw_only=True):
    """A whole comparison; `stopped` says why, if it ended before it was done."""

    format: int = FORMAT
    made: str
    torchsmith: str
    seconds: float
    stopped: str = ""
    method: Method
    machine: Machine
    sides: tuple[Contender, ...]
    cases: tuple[Measured, ...]
    compared: tuple[Compared, ...] = ()
    groups: tuple[Compared, ...] = ()
    noise: tuple[Noise, ...] = ()
    reasons: tuple[Reason, ...] = ()


def as_json(document: Struct) -> bytes:
    """The document, in one line: most of it is numbers."""
    return msgspec.json.encode(document) + b"\n"


def read_result(path: Path) -> Result:
    """Read the result of `torchsmith bench`."""
    return read_document(path, Result, "bench")


def read_document(path: Path, kind: type[Document], command: str) -> Document:
    """Read a document that `as_json` wrote, the result of a command."""
    hint = f"`torchsmith {command} A B --output FILE` writes such a file."
    check_file(path, hint)
    try:
        content = path.read_bytes()
        head = decode(content, dict[str, object])
        if head.get("format") != FORMAT:
            raise UsageError(
                f"{path} has format {head.get('format')}, and {FORMAT} is read here", hint
            )
        return decode(content, kind)
    except msgspec.MsgspecError as error:
        message = f"{path} is not a result of `torchsmith {command}`: {error}"
        raise UsageError(message, hint) from None
