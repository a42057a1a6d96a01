"""Proving the torch of an image where it is: the probe of `torchsmith verify`, run inside."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from torchsmith import __version__
from torchsmith.foreign import MalformedError, decode
from torchsmith.images.tools import ContainerTool
from torchsmith.plan.expects import Expects
from torchsmith.verify.compare import compare, matching
from torchsmith.verify.probe import script
from torchsmith.verify.probing import read_document
from torchsmith.verify.report import Report

_THERE = "/run/torchsmith-probe"
_VERSIONS = (
    "import importlib.metadata as m, json, re; print(json.dumps({re.sub('[-_.]+', '-', "
    "d.metadata['Name']).lower(): d.version for d in m.distributions() if d.metadata['Name']}))"
)


def verify_image(tool: ContainerTool, image: str, asked: Sequence[Expects]) -> Report:
    """Use the torch of an image as its own user does, and hold it against what was asked for."""
    request = json.dumps({"imports": [], "timeout": 120.0, "only": [], "check": ""})
    answer = _python(tool, image, 1 << 30, f"{_THERE}/script.py", request)
    probed = read_document(answer[0], answer[1], answer[2])
    facts = probed.facts
    python = str(probed.python.get("version", ""))
    checks = list(probed.checks)
    expects = matching(asked, facts.version, python)
    if expects is not None and facts.version:
        checks += compare(expects, facts, python, (), _versions(tool, image))
    return Report(
        subjects=(image,),
        torchsmith=__version__,
        checks=tuple(checks),
        torch=facts.version,
        python=python,
        variant=expects.variant if expects else "",
        features={name: facts.has(name) for name in facts.features},
        archs=facts.compiled_for,
    )


def _versions(tool: ContainerTool, image: str) -> Mapping[str, str]:
    out, _, code = _python(tool, image, 64 << 20, "-c", _VERSIONS)
    try:
        return decode(out, dict[str, str]) if code == 0 else {}
    except MalformedError:
        return {}


def _python(tool: ContainerTool, image: str, shm: int, *words: str) -> tuple[str, str, int]:
    """Run the image's own Python, whatever else the image would start."""
    folder = Path(script.__file__).parent
    answer = tool.run(
        *("--rm", "--pull=never", "--network=none", f"--shm-size={shm}b"),
        # Where SELinux is on, a folder of this machine cannot be read otherwise.
        *("--security-opt", "label=disable", "--volume", f"{folder}:{_THERE}:ro"),
        *("--entrypoint", "python", image, "-I", *words),
    )
    return answer.out, answer.err, answer.code
