"""Does the server run with what was asked for? Settings read back from it, against the plan."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftproof.engines import facts
from draftproof.errors import EngineError
from draftproof.serving.plan import Plan

log = logging.getLogger(__name__)


def compare_settings(plan: Plan, info: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return {setting: {asked, found}}; raises EngineError when one that must match does not.

    A server without a draft has no speculative algorithm; that is checked like the rest. Settings nobody asked for are
    listed (asked null) only where later stages need them: the speculative ones of a speculative arm.
    """
    known = facts(plan.engine, "serving")
    asked: dict[str, Any] = (
        dict.fromkeys(known["spec_settings"]) | plan.asked
        if plan.draft is not None
        else {"speculative_algorithm": None} | plan.asked
    )
    compared = {name: {"asked": value, "found": info.get(name)} for name, value in asked.items()}
    wrong = []
    for name, pair in compared.items():
        free = pair["asked"] is None and plan.draft is not None
        if free or same(pair["asked"], pair["found"]):
            continue
        if name in known["must_match"]:
            wrong.append(f"{name} is {pair['found']!r}, asked for {pair['asked']!r}")
        else:
            log.warning(
                "the server reports %s = %r, asked for %r", name, pair["found"], pair["asked"]
            )
    if wrong:
        raise EngineError(
            f"runs with other settings than asked: {'; '.join(wrong)}",
            f"server {plan.server}",
            "Ask for what the engine can do, or let it choose by leaving the flag out.",
        )
    return compared


def same(asked: object, found: object) -> bool:
    """Return whether two values mean the same: numbers by value, paths by where they lead, the rest as text."""
    if asked is None or found is None:
        return asked is found
    if isinstance(asked, bool) or isinstance(found, bool):
        return str(asked).lower() == str(found).lower()
    try:
        return float(str(asked)) == float(str(found))
    except ValueError:
        pass
    return str(asked) == str(found) or Path(str(asked)).resolve() == Path(str(found)).resolve()
