"""What can go wrong while proving something, beyond a check that fails."""

from __future__ import annotations

from torchsmith.errors import TorchsmithError


class VerificationError(TorchsmithError):
    """A check failed: what was verified is not what it should be."""

    exit_code = 9
