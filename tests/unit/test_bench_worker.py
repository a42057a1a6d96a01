"""What runs in the Pythons that are compared: old ones must be able to read it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from torchsmith.bench import worker
from torchsmith.bench.worker import dense, elements, whole
from torchsmith.bench.worker.script import LACKS, SETTINGS, apply, truth

pytestmark = pytest.mark.unit

FILES = sorted(Path(worker.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_it_is_the_python_of_3_8_and_needs_only_that(file: Path) -> None:
    tree = ast.parse(file.read_text(encoding="utf-8"), str(file), feature_version=(3, 8))
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        assert not [name for name in names if name.split(".")[0] in ("torchsmith", "numpy")]
        # A subscripted type is an error there as soon as it is evaluated.
        if isinstance(node, ast.FunctionDef):
            hints = [item.annotation for item in node.args.args] + [node.returns]
            assert not [hint for hint in hints if isinstance(hint, ast.Subscript | ast.BinOp)]


def test_no_two_cases_have_one_name_and_each_has_a_suite_and_a_device() -> None:
    cases = [case for file in (dense, elements, whole) for case in file.listed()]
    names = [name for _, name, _, _, _ in cases]
    assert len(set(names)) == len(names)
    assert {suite for _, _, suite, _, _ in cases} == {"quick", "full"}
    assert {place for _, _, _, devices, _ in cases for place in devices.split()} == {"cpu", "cuda"}


class Refusing:
    """A torch whose every part may be asked for and set."""

    def __getattr__(self, name: str) -> Refusing:
        return self

    def __call__(self, *arguments: object) -> None:
        return None


def test_every_setting_that_is_offered_is_known() -> None:
    for name in SETTINGS:
        apply(Refusing(), name, "1")
    with pytest.raises(ValueError, match="no setting"):
        apply(Refusing(), "speed", "1")
    assert truth("On")
    assert not truth("0")
    with pytest.raises(ValueError, match="neither"):
        truth("maybe")


def test_only_what_torch_itself_lacks_is_called_missing() -> None:
    assert LACKS.search("module 'torch' has no attribute 'compile'")
    assert LACKS.search("module 'torch.nn.functional' has no attribute 'scaled_dot'")
    assert LACKS.search("'Tensor' object has no attribute 'bfloat8'")
    assert not LACKS.search("'NoneType' object has no attribute 'shape'")
    assert not LACKS.search("'Maker' object has no attribute 'whole'")
