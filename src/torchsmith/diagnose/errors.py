"""The one thing that can go wrong with a diagnosis: there is none."""

from __future__ import annotations

from torchsmith.errors import TorchsmithError


class UnknownFailureError(TorchsmithError):
    """Nothing known explains the log."""

    exit_code = 10
