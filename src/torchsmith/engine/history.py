"""What the journal knows of the steps behind one that writes down how things were made."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from torchsmith.engine.recorder import Recorder
from torchsmith.plan.attest import History, Made
from torchsmith.plan.models import Step


def history(step: Step, steps: Mapping[str, Step], recorder: Recorder) -> str:
    """The steps a step needs: their keys, and when each was last done, as JSON."""
    made = {need: _made(steps[need], recorder) for need in step.needs}
    return msgspec.json.encode(History(recorder.run, made)).decode()


def _made(step: Step, recorder: Recorder) -> Made:
    done = recorder.done(step)
    if done is None:
        return Made(step.key)
    return Made(step.key, done.run, done.started, done.ended, recorder.network(done))
