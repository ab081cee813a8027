"""The report's charts: what is drawn, with units and counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from draftproof.report.drawing import (
    FIRST,
    INK,
    SECOND,
    SETTINGS,
    THIRD,
    new_figure,
    svg,
    whiskers,
)

WIDTH = 0.38


def plain(text: str) -> str:
    """Return text in which matplotlib finds no formula."""
    return text.replace("$", r"\$")


def acceptance(diagnosis: Mapping[str, Any]) -> str:
    """Return the histogram of accepted drafts per verify step, offline against served."""
    import matplotlib as mpl

    part = diagnosis["acceptance"]
    with mpl.rc_context(SETTINGS):
        figure, (axes,) = new_figure()
        for side, (name, colour) in enumerate((("offline", FIRST), ("served", SECOND))):
            total = part[name]["verify_steps"] or 1
            shares = [row[name] / total * 100 for row in part["bins"]]
            at = [row["accepted"] + (side - 0.5) * WIDTH for row in part["bins"]]
            label = f"{name}: accept length {part[name]['accept_length']:.3f} ({part[name]['verify_steps']} verify steps)"
            bars = axes.bar(at, shares, WIDTH, color=colour, label=label)
            axes.bar_label(bars, fmt="%.1f", fontsize=8, color=INK)
        axes.set_title(plain(f"Accepted drafts per verify step, {part['requests']} requests"))
        axes.set_xlabel("accepted drafts in a verify step")
        axes.set_ylabel("verify steps (%)")
        axes.margins(y=0.12)
        axes.set_xticks([row["accepted"] for row in part["bins"]])
        axes.grid(axis="y")
        axes.legend()
        return svg(
            figure,
            "acceptance",
            f"Bar chart: share of verify steps by number of accepted drafts. Offline accept length "
            f"{part['offline']['accept_length']:.3f}, served {part['served']['accept_length']:.3f}.",
        )


def by_step(accuracy: Mapping[str, Any]) -> str:
    """Return marginal and cumulative acceptance by draft step, with 95 % intervals."""
    import matplotlib as mpl

    rows = [row for row in accuracy["steps"] if row["count"]]
    with mpl.rc_context(SETTINGS):
        figure, (axes,) = new_figure()
        for kind, colour, mark in (("marginal", THIRD, "s--"), ("cumulative", FIRST, "o-")):
            values = [row[kind] for row in rows]
            intervals = [
                row["ci95"][kind] if "ci95" in row else (row[kind], row[kind]) for row in rows
            ]
            axes.errorbar(
                [row["k"] for row in rows],
                values,
                yerr=whiskers(values, intervals),
                fmt=mark,
                capsize=3,
                color=colour,
                label=kind,
            )
        axes.set_title(
            f"Offline acceptance by draft step, {accuracy['samples']} samples, {accuracy['positions']} positions"
        )
        axes.set_xlabel("draft step k")
        axes.set_ylabel("share of positions")
        axes.set_xticks([row["k"] for row in rows])
        axes.set_ylim(0, 1)
        axes.grid(axis="y")
        axes.legend()
        last = rows[-1]
        return svg(
            figure,
            "by-step",
            f"Line chart: cumulative acceptance falls from {rows[0]['cumulative']:.3f} at step {rows[0]['k']} to "
            f"{last['cumulative']:.3f} at step {last['k']}.",
        )


def speed(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return tokens per second per user by load, and accept length against break-even beside it."""
    import matplotlib as mpl

    server = rows[0]["server"]
    shown = [row for row in rows if row["server"] == server]
    at = list(range(len(shown)))
    loads = [f"{row['concurrency']}\n(n={row['requests']})" for row in shown]
    with mpl.rc_context(SETTINGS):
        figure, (left, right) = new_figure(panels=2)
        for side, (key, label, colour) in enumerate(
            (
                ("baseline_tokens_per_s", "without draft", THIRD),
                ("spec_tokens_per_s", "with draft", SECOND),
            )
        ):
            bars = left.bar(
                [i + (side - 0.5) * WIDTH for i in at],
                [row[key] for row in shown],
                WIDTH,
                color=colour,
                label=label,
            )
            left.bar_label(bars, fmt="%.1f", fontsize=8, color=INK)
        left.set_title("Decode speed per user")
        left.set_ylabel("tokens/s")
        left.margins(y=0.25)
        left.grid(axis="y")
        left.legend(ncols=2, loc="upper center")
        lengths = [row["accept_length"] for row in shown]
        edges = [row["break_even_accept_length"] for row in shown]
        right.plot(at, lengths, "o-", color=SECOND, label="accept length, served")
        right.plot(at, edges, "_--", color=INK, markersize=18, label="break-even")
        right.set_title("It pays above break-even")
        right.set_ylabel("tokens per verify step")
        right.set_ylim(1, max(lengths + edges) * 1.25)
        right.set_xlim(-0.5, len(shown) - 0.5)
        right.grid(axis="y")
        right.legend(loc="upper center", ncols=2, fontsize=8)
        for axes in (left, right):
            axes.set_xticks(at, loads)
            axes.set_xlabel("concurrency (requests)")
        words = "; ".join(
            f"concurrency {row['concurrency']}: {row['baseline_tokens_per_s']:.1f} without, "
            f"{row['spec_tokens_per_s']:.1f} with, break-even {row['break_even_accept_length']:.2f}"
            for row in shown
        )
        return svg(figure, "speed", f"Bar chart of decode tokens per second per user. {words}.")


def wiring(scan: Mapping[str, Any]) -> str:
    """Return the accept length of every wiring tried, with 95 % intervals; the configured one is marked."""
    import matplotlib as mpl

    entries = sorted(scan["candidates"], key=lambda each: float(each["accept_length"]))
    with mpl.rc_context(SETTINGS):
        figure, (axes,) = new_figure(height=1.3 + 0.34 * len(entries))
        for y, each in enumerate(entries):
            axes.errorbar(
                [each["accept_length"]],
                [y],
                xerr=whiskers([each["accept_length"]], [each["ci95"]]),
                fmt="o" if each["kinds"] else "D",
                capsize=3,
                color=FIRST if each["kinds"] else SECOND,
            )
        axes.set_yticks(
            range(len(entries)),
            [plain(each["label"]) for each in entries],
        )
        axes.set_ylim(-0.6, len(entries) - 0.4)
        axes.set_title(f"Wirings tried offline, {scan['samples']} samples")
        axes.set_xlabel(f"accept length at {scan['steps']} steps (tokens per verify step)")
        axes.grid(axis="x")
        return svg(
            figure,
            "wiring",
            f"Dot chart of {len(entries)} wirings. "
            + "; ".join(f"{each['label']}: {each['accept_length']:.3f}" for each in entries[::-1])
            + ".",
        )
