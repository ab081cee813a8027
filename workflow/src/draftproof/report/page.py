"""The page: template and style put together, everything from results escaped."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent


def page(shown: Mapping[str, Any]) -> str:
    """Return the whole report as one HTML document."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    # Our own SVG and CSS; all text in the SVG was escaped when it was drawn.
    trusted = {name: Markup(svg) for name, svg in shown["chart"].items()}
    style = Markup((HERE / "style.css").read_text(encoding="utf-8"))
    template = environment.get_template("report.html.j2")
    return template.render({**shown, "chart": trusted, "style": style})
