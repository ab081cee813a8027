"""diagnosis.md: the verdict first, then the tables behind it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from draftproof.diagnosis.claimed import sentence

DIVERGENCES_SHOWN = 10


def markdown(diagnosis: Mapping[str, Any], coverage: float) -> str:
    """Return the diagnosis as Markdown."""
    acceptance = diagnosis["acceptance"]
    blocks = [
        f"# {diagnosis['experiment']}",
        diagnosis["verdict"],
        "## Findings" if diagnosis["findings"] else "",
        *(
            f"- **{each['severity']}** `{each['id']}` "
            + one_line(f"{each['subject']}: {each['message']}. {each['fix']}")
            for each in diagnosis["findings"]
        ),
        "## Accept length",
        acceptance_text(acceptance),
        table(
            ["accepted drafts", "offline steps", "served steps", "offline", "served"],
            acceptance_rows(acceptance),
        ),
        sentence(acceptance["claimed"], coverage) if acceptance["claimed"] else "",
        "## Speed",
        table(
            [
                "server",
                "concurrency",
                "baseline tokens/s",
                "with draft tokens/s",
                "speedup (95 %)",
                "accept length",
                "break-even",
                "requests",
            ],
            speed_rows(diagnosis["speed"]),
        )
        + "\n\nDecode tokens per second per user; paired bootstrap over requests, one launch per server.",
        "## Text",
        table(
            ["cell", "requests", "same as baseline", "same as Hugging Face"],
            (
                [
                    row["cell"],
                    row["requests"],
                    row.get("identical_to_baseline", ""),
                    row["identical_to_capture"],
                ]
                for row in diagnosis["outputs"]["cells"]
            ),
        ),
        divergences(diagnosis["outputs"]["divergences"]),
    ]
    return "\n\n".join(join_list(block for block in blocks if block)) + "\n"


def join_list(blocks: Iterable[str]) -> list[str]:
    """Return the blocks with neighbouring list items put into one."""
    joined: list[str] = []
    for block in blocks:
        if joined and block.startswith("- ") and joined[-1].startswith("- "):
            joined[-1] += f"\n{block}"
        else:
            joined.append(block)
    return joined


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(one_line(cell) for cell in line)} |" for line in lines)


def one_line(value: object) -> str:
    """Return the text of a value so that it cannot end its line or its table cell."""
    return " ".join(str(value).split()).replace("|", "\\|")


def acceptance_text(acceptance: Mapping[str, Any]) -> str:
    """Return both accept lengths with intervals and counts."""
    parts = [
        f"{name} {part['accept_length']:.3f} ({part['ci95'][0]:.3f} to {part['ci95'][1]:.3f}, {part['verify_steps']} verify steps)"
        for name, part in (("offline", acceptance["offline"]), ("served", acceptance["served"]))
    ]
    return (
        f"{acceptance['cell']}, {acceptance['steps']} steps, {acceptance['requests']} requests: {', '.join(parts)}; "
        f"served is {acceptance['difference_ratio']:+.2%}, total variation of the histograms {acceptance['total_variation']:.4f}."
    )


def acceptance_rows(acceptance: Mapping[str, Any]) -> Iterable[list[object]]:
    """Yield one row per histogram bin."""
    totals = [acceptance[name]["verify_steps"] or 1 for name in ("offline", "served")]
    for row in acceptance["bins"]:
        shares = [row["offline"] / totals[0], row["served"] / totals[1]]
        yield [
            row["accepted"],
            row["offline"],
            row["served"],
            *(f"{share:.1%}" for share in shares),
        ]


def speed_rows(speed: Sequence[Mapping[str, Any]]) -> Iterable[list[object]]:
    """Yield one row per server and load."""
    for row in speed:
        low, high = row["speedup_ci95"]
        yield [
            row["server"],
            row["concurrency"],
            f"{row['baseline_tokens_per_s']:.1f}",
            f"{row['spec_tokens_per_s']:.1f}",
            f"{row['speedup']:.3f} ({low:.3f} to {high:.3f})",
            f"{row['accept_length']:.3f}",
            f"{row['break_even_accept_length']:.3f}",
            row["requests"],
        ]


def divergences(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the first divergences as a table, or nothing."""
    if not rows:
        return ""
    shown = [
        [
            row["cell"],
            row["against"],
            row["sample"],
            row["position"],
            row["expected_id"],
            row["found_id"],
        ]
        for row in rows[:DIVERGENCES_SHOWN]
    ]
    head = ["cell", "against", "sample", "first at token", "expected id", "found id"]
    more = len(rows) - len(shown)
    return table(head, shown) + (f"\n\nand {more} more in diagnosis.json" if more else "")
