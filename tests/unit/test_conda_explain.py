"""What other solvers say when there is no answer is read, too."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.conftest import Run

from torchsmith.errors import UsageError
from torchsmith.package.conda.explain import explain, read_channels

pytestmark = pytest.mark.unit

CONDA_BUILD = 'Unsatisfiable dependencies for platform linux-64: {MatchSpec("magma-cuda110")}'
LIBMAMBA = """\
LibMambaUnsatisfiableError: Encountered problems while solving:
  - nothing provides __cuda >=12.0 needed by pytorch-2.6.0-py3.11_cuda12.6_0

Could not solve for environment specs
The following package could not be installed
└─ pytorch 2.6.0** is not installable because it requires
   └─ __cuda >=12.0 , which is missing on the system.
"""
NOT_FOUND = """\
PackagesNotFoundError: The following packages are not available from current channels:

  - magma-cuda110
  - somewhere=1.0

Current channels:
"""


def test_conda_builds_words_are_read() -> None:
    (told,) = explain(CONDA_BUILD)
    assert told.name == "magma-cuda110"
    assert "-c CHANNEL" in told.cure
    assert "packages.magma = true" in told.cure


def test_libmambas_words_are_read() -> None:
    (told,) = explain(LIBMAMBA, {"pytorch": ["2.6.0 cpu_py311_0"]})
    assert told.name == "__cuda"
    assert told.wanted_by == "pytorch-2.6.0-py3.11_cuda12.6_0"
    assert "pytorch=2.6.0=cpu_py311_0" in told.cure


def test_condas_list_of_what_it_did_not_find_is_read() -> None:
    assert [item.name for item in explain(NOT_FOUND)] == ["magma-cuda110", "somewhere"]


def test_other_text_is_no_reason() -> None:
    assert explain("all is well\n\n") == ()


def test_a_folder_that_is_no_channel_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a conda channel"):
        read_channels([tmp_path])
    (tmp_path / "noarch").mkdir()
    (tmp_path / "noarch/repodata.json").write_text("[]")
    with pytest.raises(UsageError, match="cannot be read"):
        read_channels([tmp_path])


def test_the_command_explains_a_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "error.txt").write_text(CONDA_BUILD)
    code, out, _ = run("conda", "--explain", "error.txt")
    assert code == 0
    assert out.startswith("magma-cuda110: none of the channels has magma-cuda110\n")
    assert run("conda", "--explain", "nowhere.txt")[0] == 2
    assert run("conda")[0] == 2
