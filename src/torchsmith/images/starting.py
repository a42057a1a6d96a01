"""From what a person asks of `torchsmith run` to the words of an engine, and what to tell them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from torchsmith.errors import UsageError
from torchsmith.host.limits import read_memory, read_shm
from torchsmith.images.engine import Engine
from torchsmith.images.gpus import chosen_gpus, withheld
from torchsmith.images.limits import ulimit_words
from torchsmith.images.names import one_image
from torchsmith.images.reference import reference
from torchsmith.images.running import Start, parse_mount, run_words
from torchsmith.images.shared_memory import (
    DEFAULT_SHM,
    USUAL_BATCH,
    Loading,
    Room,
    parse_size,
    shm_bytes,
    shortages,
    shown,
)
from torchsmith.plan.render.dockerfile import SHM_LABEL
from torchsmith.recipe.models import Recipe
from torchsmith.recipe.outcome import TimeZone
from torchsmith.recipe.values import SIZE, size_bytes


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for, as it was written."""

    what: str
    command: tuple[str, ...] = ()
    shm_size: str | None = None
    ipc: str | None = None
    gpus: str | None = None
    user: str = ""
    mounts: tuple[str, ...] = ()
    env: tuple[str, ...] = ()
    workers: int = 0
    batch: str | None = None
    memory: str | None = None
    timezone: str = ""
    network: str = ""


@dataclass(frozen=True, slots=True)
class Ready:
    """The engine's words; `shm` is the size of the /dev/shm the program will see."""

    words: tuple[str, ...]
    notes: tuple[str, ...]
    shm: int | None
    terminal: bool


def prepared(
    engine: Engine,
    wish: Wish,
    recipe: Recipe | None,
    *,
    terminal: bool,
    piped: bool,
    dry_run: bool = False,
) -> Ready:
    """Check every wish, and choose what none was uttered about.

    The image has to be there, unless the words are only to be shown.
    """
    memory = parse_size("--memory", wish.memory) if wish.memory is not None else None
    machine, _ = read_memory()
    room = min((amount for amount in (memory, machine) if amount is not None), default=None)
    image = one_image(recipe).name if recipe is not None else str(reference(wish.what))
    labels: Mapping[str, str] = {} if dry_run else engine.inspect(image).labels
    asked = recipe.image.shm_size if recipe is not None and recipe.image else labels.get(SHM_LABEL)
    usual = asked if asked and re.fullmatch(SIZE.pattern, asked) else DEFAULT_SHM
    shm = _shared(wish, usual, room)
    loading = Loading(
        wish.workers,
        USUAL_BATCH if wish.batch is None else parse_size("--batch", wish.batch),
    )
    start = Start(
        image=image,
        command=wish.command,
        shm=shm,
        gpus=chosen_gpus(engine.name, wish.gpus),
        user=wish.user,
        mounts=tuple(map(parse_mount, wish.mounts)),
        env=(*_zone(wish.timezone), *map(_variable, wish.env)),
        memory=memory,
        ulimits=tuple(ulimit_words(engine.name, engine.environ)),
        network=wish.network,
        stdin="terminal" if terminal else "pipe" if piped else "nothing",
    )
    words = run_words(engine.name, start)
    seen = read_shm() if shm is None else shm
    notes = [*_notes(wish, usual, shm), *shortages(loading, Room(seen, room))]
    if note := withheld(engine.name, wish.gpus):
        notes.append(note)
    return Ready(tuple(words), tuple(notes), seen, terminal)


def _shared(wish: Wish, usual: str, room: int | None) -> int | None:
    if wish.ipc is None:
        return shm_bytes(wish.shm_size, usual, room)
    if wish.ipc != "host":
        raise UsageError(f"--ipc: {wish.ipc!r} is not known", "Write --ipc host, or leave it out.")
    if wish.shm_size is not None:
        raise UsageError(
            "--ipc host and --shm-size were both given",
            "The machine's own /dev/shm has the size it has: name one of the two.",
        )
    return None


def _notes(wish: Wish, usual: str, shm: int | None) -> Iterator[str]:
    if wish.shm_size is None and shm is not None and shm < size_bytes(usual):
        yield f"/dev/shm has {shown(shm)}, not {usual}: that is half of the memory there is"


def _zone(name: str) -> tuple[str, ...]:
    if not name:
        return ()
    try:
        TypeAdapter(TimeZone).validate_python(name)
    except ValidationError:
        raise UsageError(
            f"--timezone: {name!r} is no time zone", "Write an IANA name, such as Asia/Seoul."
        ) from None
    return (f"TZ={name}",)


def _variable(text: str) -> str:
    if not re.match(r"[A-Za-z_][A-Za-z0-9_]*(?:=|$)", text, re.ASCII):
        raise UsageError(
            f"--env: {text!r} sets no variable",
            "Write NAME=VALUE; NAME alone takes the value it has here.",
        )
    return text
