"""Recipes: a form that answers while one types, with reasons or with what stands against it."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

from torchsmith.engine.door import RefusedError, Wanted, plan_recipe
from torchsmith.engine.store import Store
from torchsmith.errors import RecipeError, TorchsmithError
from torchsmith.facts.cuda import toolkits
from torchsmith.facts.files import shipped
from torchsmith.facts.torch import releases
from torchsmith.host import Host, read_host
from torchsmith.plan.models import Plan
from torchsmith.recipe.compose import compose
from torchsmith.recipe.load import parse_recipe
from torchsmith.resolve.models import Refusal
from torchsmith.web.pages import page, part
from torchsmith.web.portal import portal_of, posted, shared

LISTS = ("python", "gpus", "features", "companions")
FIELDS = (
    ("torch", "torch", "2.6.0"),
    ("python", "Python", "3.11, 3.12"),
    ("cuda", "CUDA", "12.6, none or host"),
    ("gpus", "GPUs", "RTX 3090, V100"),
    ("platform", "Platform", "linux-x86_64"),
    ("system", "System to build in", "ubuntu-22.04"),
    ("features", "Features", "nccl=system, mkldnn=off"),
    ("companions", "Companions", "vision, audio"),
)
_FRESH_S = 60.0
_MOST_VARIANTS = 8
# What nobody typed yet.
_BEGIN = {"torch": "2.6.0", "python": "3.11", "cuda": "none"}


class Answer(Struct, frozen=True):
    """What a recipe leads to: a plan, refusals, or problems."""

    toml: str
    plan: Plan | None = None
    refusals: tuple[Refusal, ...] = ()
    problems: tuple[str, ...] = ()
    cores: int = 1


class Machine:
    """This machine, looked at once a minute at most."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._turn = threading.Lock()
        self._at = -_FRESH_S
        self._host: Host | None = None

    def host(self, *, fresh: bool = False) -> Host:
        """What it has."""
        with self._turn:
            if self._host is None or fresh or time.monotonic() - self._at > _FRESH_S:
                self._host = read_host(self._place)
                self._at = time.monotonic()
            return self._host


def machine(request: Request) -> Machine:
    """The machine the portal runs on."""
    return shared(request, Machine, lambda: Machine(portal_of(request).recipes))


def answer(fields: Mapping[str, str], host: Host, root: Path) -> Answer:
    """Check what a form holds: its text where there is one, else its fields."""
    text = fields.get("toml", "").replace("\r\n", "\n")
    if not text.strip():
        try:
            text = compose(_wishes(fields))
        except TorchsmithError as error:
            return Answer("", problems=(error.message,))
    try:
        loaded = parse_recipe(text, "the recipe", None)
        # Nothing is looked up, nothing written: another machine may be meant.
        wanted = Wanted(elsewhere=True, must=False)
        plan = plan_recipe(loaded, host, Store(root), wanted)
    except RecipeError as error:
        return Answer(text, problems=tuple(map(str, error.problems)) or (error.message,))
    except RefusedError as error:
        return Answer(text, refusals=error.refusals)
    except TorchsmithError as error:
        return Answer(text, problems=(error.message,))
    return Answer(text, plan, cores=host.cores)


def _wishes(fields: Mapping[str, str]) -> dict[str, object]:
    wishes: dict[str, object] = {}
    for name, _, _ in FIELDS:
        typed = fields.get(name, "").strip()
        if typed:
            words = [word.strip() for word in typed.split(",") if word.strip()]
            wishes[name] = words if name in LISTS else typed
    return wishes


def form(request: Request) -> Response:
    """The form, empty or as an address fills it."""
    typed = {name: request.query_params.get(name, "")[:400] for name, _, _ in FIELDS}
    fields = typed if any(typed.values()) else {**typed, **_BEGIN}
    made = answer(fields, machine(request).host(), portal_of(request).root)
    facts = shipped()
    known = {
        "torch": [item.version for item in reversed(releases(facts))],
        "cuda": ["none", "host", *(item.version for item in reversed(toolkits(facts)))],
        "gpus": [item.name for item in facts.gpus.gpu],
    }
    return page(request, "recipes.html", fields=fields, names=FIELDS, known=known, **_shown(made))


async def check(request: Request) -> Response:
    """The answer alone, to what is typed."""
    fields = await posted(request)
    host = await run_in_threadpool(machine(request).host)
    made = await run_in_threadpool(answer, fields, host, portal_of(request).root)
    return HTMLResponse(part("recipe_answer.html", **_shown(made)))


def _shown(made: Answer) -> dict[str, Any]:
    plan = made.plan
    return {
        "made": made,
        "variants": plan.variants[:_MOST_VARIANTS] if plan else (),
        "core_seconds": plan.core_seconds if plan else 0.0,
        "disk": sum(step.cost.disk_mb for step in plan.steps) << 20 if plan else 0,
    }


ROUTES = [Route("/recipes", form), Route("/recipes/check", check, methods=["POST"])]
