"""What validation has to say: findings, and the registry of rules that make them.

A rule is a function over a `Pair` with an id that never changes, one severity, and the source of the fact behind it. Its
docstring is its meaning. It yields a `Fault` per place where it fires.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from draftproof.checkpoint.pair import Pair

Severity = Literal["error", "warning", "info"]
SEVERITIES: tuple[Severity, ...] = ("error", "warning", "info")
DEEPEST = 5
LONGEST_TEXT, LONGEST_LIST, MOST = 600, 100, 2**63


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One place where a rule fires: what it is about, what is wrong, the figures behind it, what to do."""

    subject: str
    message: str
    fix: str
    evidence: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """``layout``: the rule reads tensors by the engine's names, so it is asked of EAGLE-3 drafts alone."""

    id: str
    severity: Severity
    source: str
    layout: bool
    check: Callable[[Pair], Iterable[Fault]]

    @property
    def meaning(self) -> str:
        """Return what the rule says, for the page that lists all rules."""
        return (self.check.__doc__ or "").strip()


RULES: dict[str, Rule] = {}


def rule(
    id: str, severity: Severity, source: str, *, layout: bool = False
) -> Callable[[Callable[[Pair], Iterable[Fault]]], Callable[[Pair], Iterable[Fault]]]:
    """Register the decorated function as a rule."""

    def register(check: Callable[[Pair], Iterable[Fault]]) -> Callable[[Pair], Iterable[Fault]]:
        if id in RULES:
            raise ValueError(f"two rules are called {id}")
        RULES[id] = Rule(id=id, severity=severity, source=source, layout=layout, check=check)
        return check

    return register


def findings(pair: Pair) -> list[dict[str, Any]]:
    """Return every finding on the pair, worst first, as in validation.json."""
    found = [
        {
            "id": rule.id,
            "severity": rule.severity,
            "subject": printable(fault.subject),
            "message": printable(fault.message),
            "evidence": short(plain(fault.evidence)),
            "fix": printable(fault.fix),
        }
        for rule in RULES.values()
        if pair.dialect.eagle3 or not rule.layout
        for fault in rule.check(pair)
    ]
    return sorted(found, key=lambda finding: SEVERITIES.index(finding["severity"]))


def printable(text: str) -> str:
    """Return text on one line that any terminal and any file can take, cut where nobody would read on."""
    line = " ".join(text.encode("utf-8", "backslashreplace").decode().split())
    return line if len(line) <= LONGEST_TEXT else f"{line[:LONGEST_TEXT]} ..."


def short(value: Any) -> Any:
    """Return JSON with the ends of long lists and the digits of absurd numbers left out."""
    if isinstance(value, dict):
        return {key: short(inner) for key, inner in value.items()}
    if isinstance(value, list):
        kept = [short(item) for item in value[:LONGEST_LIST]]
        return kept if len(kept) == len(value) else [*kept, f"... {len(value)} in all"]
    if type(value) is int and abs(value) >= MOST:
        return f"{str(value)[:20]}... ({len(str(abs(value)))} digits)"
    return value


def plain(value: Any, depth: int = DEEPEST) -> Any:
    """Return value as JSON that every reader takes: no NaN, no infinity, no endless nesting."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): plain(v, depth - 1) for k, v in value.items()} if depth else "..."
    if isinstance(value, list | tuple):
        return [plain(item, depth - 1) for item in value] if depth else "..."
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def page() -> str:
    """Return the page that lists every rule (Markdown), in the order in which rules are asked."""
    lines = [
        "# What `draftproof validate` finds",
        "",
        "Generated from the rules by `python -m draftproof.checkpoint.rules`. An error: the draft cannot be served as it was",
        "trained. A warning: acceptance may be lower than in training. An info: for knowing. Sources are files of sglang",
        "0.5.23 under `sglang/srt`, unless they name something else.",
        "",
        "| id | severity | meaning | source |",
        "|---|---|---|---|",
    ]
    for rule in RULES.values():
        meaning = " ".join(rule.meaning.split()).replace("|", "\\|")
        source = rule.source.replace("|", "\\|").replace("_", "\\_").replace("*", "\\*")
        lines.append(f"| `{rule.id}` | {rule.severity} | {meaning} | {source} |")
    return "\n".join(lines) + "\n"
