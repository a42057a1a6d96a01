"""Asking again while an engine has no answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from torchsmith.errors import ClusterError, UnansweredError

T = TypeVar("T")
_ATTEMPTS = 4
# Each pause is twice as long as the one before.
_FIRST_PAUSE_S = 1.0
# Who has to wait longer than this is told so instead.
_LONGEST_WAIT_S = 60.0


class NoAnswerError(UnansweredError):
    """The engine did not answer, or not now.

    `unheard`: nobody can have heard the question. `lasting`: asking again cannot help, as with a
    certificate nobody trusts.
    """

    def __init__(
        self,
        message: str,
        hint: str,
        *,
        wait_s: float = 0.0,
        unheard: bool = False,
        lasting: bool = False,
    ) -> None:
        super().__init__(message, hint)
        self.wait_s = wait_s
        self.unheard = unheard or lasting
        self.lasting = lasting


def patiently(do: Callable[[], T]) -> T:
    """Do what may be done again, as long as there is no answer."""
    for attempt in range(_ATTEMPTS - 1):
        try:
            return do()
        except NoAnswerError as error:
            pause = max(_FIRST_PAUSE_S * 2**attempt, error.wait_s)
            if error.lasting or pause > _LONGEST_WAIT_S:
                raise
            time.sleep(pause)
    return do()


def handed_over(do: Callable[[], T]) -> T:
    """The same for what must not be lost.

    Where nobody can have heard, it was not done; where somebody may have, no later refusal says
    that it was not.
    """
    heard = False

    def attempt() -> T:
        nonlocal heard
        try:
            return do()
        except NoAnswerError as error:
            heard = heard or not error.unheard
            raise

    try:
        return patiently(attempt)
    except ClusterError as error:
        if isinstance(error, UnansweredError) == heard:
            raise
        raise (UnansweredError if heard else ClusterError)(error.message, error.hint) from None
