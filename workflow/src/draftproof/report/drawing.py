"""Figures as inline SVG whose colours follow the page: light, dark and print."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Stand-ins that matplotlib draws with; each becomes a variable of style.css.
INK, MUTED, GRID = "#010101", "#020202", "#030303"
FIRST, SECOND, THIRD = "#040404", "#050505", "#060606"
VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--line",
    FIRST: "--first",
    SECOND: "--second",
    THIRD: "--third",
}
SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "draftproof",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "grid.color": GRID,
    "hatch.color": INK,
}


def new_figure(panels: int = 1, height: float = 3.2) -> tuple[Figure, list[Axes]]:
    """Return a figure of one row of panels; call inside `matplotlib.rc_context(SETTINGS)`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.6, height), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    return figure, list(axes)


def svg(figure: Figure, name: str, description: str) -> str:
    """Return the figure as an SVG element with a text alternative; ids are made unique to the page by `name`."""
    stream = io.StringIO()
    figure.savefig(stream, format="svg", transparent=True)
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r"\s+xmlns(:xlink)?=\"[^\"]*\"", "", text).replace("xlink:href", "href")
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, f"var({variable})")
    # The viewBox alone: the page decides how wide.
    text = re.sub(r'(<svg[^>]*?)\s+height="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?)\s+width="[^"]*"', r"\1", text, count=1)
    return text.replace("<svg", f'<svg role="img" aria-label="{escape(description)}"', 1)


def whiskers(values: Sequence[float], intervals: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return matplotlib's error lengths [below, above] from [low, high] intervals."""
    return [
        [max(0.0, value - low) for value, (low, _) in zip(values, intervals, strict=True)],
        [max(0.0, high - value) for value, (_, high) in zip(values, intervals, strict=True)],
    ]
