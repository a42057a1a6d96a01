"""Doctor: what this machine and the nodes of the cluster have, and what is odd about them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from torchsmith.checks import worst
from torchsmith.errors import TorchsmithError
from torchsmith.facts.files import shipped
from torchsmith.jobs.nodes import examine as examine_node
from torchsmith.jobs.nodes import nodes
from torchsmith.resolve.verdicts import Needs, examine
from torchsmith.web.pages import page
from torchsmith.web.portal import action, portal_of, shared
from torchsmith.web.recipes import machine

_AT_ONCE = 8


class Round:
    """An examination of nodes: those still pending, and those that could not be examined."""

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self.pending: frozenset[str] = frozenset()
        self.problems: dict[str, str] = {}
        self.finished = 0

    def begin(self, root: Path, names: list[str]) -> None:
        """Examine nodes in the background, several at once."""
        with self._turn:
            new = [name for name in names if name not in self.pending]
            self.pending |= set(new)
            for name in new:
                self.problems.pop(name, None)
        threading.Thread(target=self._go, args=(root, new), daemon=True).start()

    def _go(self, root: Path, names: list[str]) -> None:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            pool.map(lambda name: self._look(root, name), names)

    def _look(self, root: Path, name: str) -> None:
        try:
            examine_node(root, name)
        except (TorchsmithError, OSError) as error:
            self.problems[name] = str(getattr(error, "message", error))
        finally:
            with self._turn:
                self.finished += 1
                self.pending -= {name}


def _round(request: Request) -> Round:
    return shared(request, Round, Round)


def doctor(request: Request) -> Response:
    """The tables; `again` looks anew at this machine."""
    host = machine(request).host(fresh="again" in request.query_params)
    checks = examine(host, shipped(), None, Needs())
    portal = portal_of(request)
    round_ = _round(request)
    # `pending` is read before the nodes: a node that is no longer pending then has its report.
    pending = round_.pending
    listed, silent = portal.moments.get(("nodes", round_.finished), lambda: nodes(portal.root))
    return page(
        request,
        "doctor.html",
        checks=checks,
        rating=worst(checks),
        nodes=listed,
        silent=silent,
        pending=pending,
        problems=round_.problems,
    )


async def visit(request: Request) -> Response:
    """Run the doctor on every node."""
    await action(request)
    root = portal_of(request).root
    listed, _ = await run_in_threadpool(nodes, root)
    _round(request).begin(root, [node.name for node in listed if node.state])
    return RedirectResponse("/doctor#nodes", 303)


ROUTES = [Route("/doctor", doctor), Route("/doctor/nodes", visit, methods=["POST"])]
