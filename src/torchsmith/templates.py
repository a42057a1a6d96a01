"""HTML and SVG from the templates of a room; whatever strangers wrote is shown as text."""

from __future__ import annotations

from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from torchsmith.printable import printable_lines


def _shown(value: object) -> object:
    """A value on its way into a page: text without control characters."""
    text = isinstance(value, str) and not isinstance(value, Markup)
    return printable_lines(str(value)) if text else value


@cache
def templates(package: str) -> Environment:
    """The templates that lie beside the modules of a package."""
    return Environment(
        loader=PackageLoader(package),
        autoescape=True,
        finalize=_shown,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
