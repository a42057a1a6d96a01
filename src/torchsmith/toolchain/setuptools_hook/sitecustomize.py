"""Found first by every Python of a build: teaches setuptools to compile files side by side.

Python imports a module of this name when it starts. The one that would be found without this folder
runs, too. Python 3.5 and 3.6 also read this file, and compile one file at a time.
"""

import sys
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import module_from_spec

# setuptools has a copy of distutils, and moved the compiler class within it in 2025.
_ENDS = ("distutils.ccompiler", "distutils.compilers.C.base", "distutils.command.build_ext")
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType


class _AfterImport:
    """Finds the modules that hold distutils' compiler class and command, and changes them."""

    @staticmethod
    def find_spec(
        name: str,
        path: "Sequence[str] | None" = None,
        target: "ModuleType | None" = None,
    ) -> "ModuleSpec | None":
        if not name.endswith(_ENDS):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: "ModuleType") -> None:
            execute(module)
            from torchsmith_side_by_side import teach  # type: ignore[import-not-found]

            teach(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _run_next() -> None:
    """Run the sitecustomize behind this one, if there is one."""
    here = __file__.rpartition("/")[0]
    others = [folder for folder in sys.path if folder.rstrip("/") != here]
    spec = PathFinder.find_spec(__name__, others)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules[__name__] = module
        spec.loader.exec_module(module)


if sys.version_info >= (3, 7):
    sys.meta_path.insert(0, _AfterImport)
_run_next()
