"""Which engines jobs can be submitted to, and the client of each."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, cast

from torchsmith.errors import UsageError

if TYPE_CHECKING:
    from torchsmith.jobs.client import Client

# Loaded when asked for: nobody pays for the libraries of an engine they do not use.
_CLIENTS = {
    "local": "torchsmith.jobs.engines.local:Local",
    "slurm": "torchsmith.jobs.engines.slurm:Slurm",
}


def client_for(engine: str, place: str = "") -> Client:
    """The client of an engine; `place` is which one of its kind, by default the one set up."""
    if engine not in _CLIENTS:
        raise UsageError(
            f"jobs cannot be submitted to {engine!r}", f"Known are: {', '.join(_CLIENTS)}."
        )
    module, _, name = _CLIENTS[engine].partition(":")
    return cast("Client", getattr(import_module(module), name)(place))
