"""What stands in the report: the result files, turned into tables."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from draftproof.benchmark.acceptance import Counters, pool
from draftproof.diagnosis.acceptance import offline_counters
from draftproof.diagnosis.claimed import sentence
from draftproof.diagnosis.results import SINGLE_FILES, launches, listed_cells, optional
from draftproof.files import sha256
from draftproof.report import charts

CHAIN = {
    "preflight": "preflight.json",
    "validation": "checkpoint/validation.json",
    "capture": "capture/manifest.json",
    "accuracy": "accuracy/accuracy.json",
    "wiring": "accuracy/wiring.json",
    "diagnosis": "diagnosis.json",
}
HASHED_SUFFIXES = {".json", ".md", ".parquet"}


def content(folder: Path) -> dict[str, Any]:
    """Return the variables of the template; what has not been run yet is None and listed in `missing`."""
    found = {kind: optional(folder, kind) for kind in SINGLE_FILES}
    servers, cells = launches(folder), listed_cells(folder)
    missing = [name for kind, name in CHAIN.items() if found[kind] is None]
    if not cells:
        missing.append("benchmark/<server>.json")
    accuracy, diagnosis = found["accuracy"], found["diagnosis"]
    return {
        **found,
        "experiment": folder.resolve().name,
        "folder": str(folder),
        "missing": missing,
        "servers": servers,
        "cells": cells,
        "tested": tested(found, servers),
        "settings": settings(servers),
        "categories": categories(folder, accuracy, diagnosis) if accuracy else [],
        "files": files(folder),
        "claim": claim(accuracy, diagnosis),
        "chart": drawn(found),
        "text": text,
    }


def drawn(found: Mapping[str, dict[str, Any] | None]) -> dict[str, str]:
    """Return the charts that can be drawn."""
    result = {}
    if diagnosis := found["diagnosis"]:
        result["acceptance"] = charts.acceptance(diagnosis)
        if diagnosis["speed"]:
            result["speed"] = charts.speed(diagnosis["speed"])
    if (accuracy := found["accuracy"]) and accuracy["steps"]:
        result["by_step"] = charts.by_step(accuracy)
    if wiring := found["wiring"]:
        result["wiring"] = charts.wiring(wiring)
    return result


def text(value: object) -> str:
    """Return a value for a person: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def tested(
    found: Mapping[str, dict[str, Any] | None], servers: Mapping[str, dict[str, Any]]
) -> list[tuple[str, str]]:
    """Return what was tested: (name, value)."""
    rows: list[tuple[str, str]] = []
    for source in (found["validation"], found["accuracy"]):
        if source:
            rows += [("engine", source["engine"])] if "engine" in source else []
            for model in ("target", "draft"):
                architecture = source[model].get("architecture")
                sha = source[model].get("sha256", "")[:12]
                details = ", ".join(filter(None, [architecture, sha and f"sha256 {sha}"]))
                rows.append((model, source[model]["path"] + (f" ({details})" if details else "")))
            break
    if capture := found["capture"]:
        prompts = capture["prompts"]
        rows.append(
            (
                "prompts",
                f"{len(capture['samples'])} samples of {prompts['source']}, split {prompts['split']}",
            )
        )
        rows.append(
            (
                "answers",
                f"greedy, at most {capture['max_new_tokens']} tokens, {capture['dtype']}, by {capture['source']}",
            )
        )
    versions: dict[str, str] = {}
    for source in (capture, *servers.values()):
        versions |= source["versions"] if source else {}
    if versions:
        rows.append(("versions", ", ".join(f"{k} {v}" for k, v in sorted(versions.items()))))
    if preflight := found["preflight"]:
        rows.append(("device", f"{preflight['device']}, preflight {preflight['status']}"))
    return rows


def settings(servers: Mapping[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row per setting: its name and per server what was found, and what was asked when that differs."""
    names = sorted({name for launch in servers.values() for name in launch["settings"]})
    rows = []
    for name in names:
        pairs = [launch["settings"].get(name) for launch in servers.values()]
        rows.append({"name": name, "pairs": pairs})
    return rows


def categories(
    folder: Path, accuracy: Mapping[str, Any], diagnosis: Mapping[str, Any] | None
) -> list[dict[str, Any]]:
    """Return accept length by category, offline and served, with counts."""
    steps = diagnosis["acceptance"]["walk"] if diagnosis else max(accuracy["walk"], key=int)
    walked = offline_counters(accuracy, steps)
    served: dict[str, Counters] = {}
    if diagnosis:
        name = diagnosis["acceptance"]["cell"]
        for cell in listed_cells(folder):
            if cell.name == name:
                served = {each.id: each.counters for each in cell.records().values()}
    members: dict[str, list[str]] = {}
    for request in accuracy["requests"]:
        members.setdefault(request["category"], []).append(request["id"])
    rows = []
    for category, identities in sorted(members.items()):
        offline = pool([walked[each] for each in identities if each in walked])
        online = pool([served[each] for each in identities if each in served])
        rows.append(
            {
                "category": category,
                "requests": len(identities),
                "steps": steps,
                "offline": offline,
                "served": online if online.verify_steps else None,
            }
        )
    return rows


def claim(accuracy: Mapping[str, Any] | None, diagnosis: Mapping[str, Any] | None) -> str:
    """Return the sentence on the claimed acceptance, empty when none was given."""
    if not accuracy or not diagnosis or not diagnosis["acceptance"]["claimed"]:
        return ""
    return sentence(diagnosis["acceptance"]["claimed"], accuracy["coverage"])


def files(folder: Path) -> list[tuple[str, int, str]]:
    """Return (name, bytes, first digits of the SHA-256) of the result files, the report and its tracking left out."""
    rows = []
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder).as_posix()
        hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
        if (
            file.is_file()
            and file.suffix in HASHED_SUFFIXES
            and not hidden
            and name != "track.json"
        ):
            rows.append((name, file.stat().st_size, sha256(file)[:16]))
    return rows
