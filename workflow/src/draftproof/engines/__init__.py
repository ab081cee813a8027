"""What depends on the engine's version, as data: one folder per engine, one YAML file per part."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import yaml

from draftproof.errors import ConfigError

ROOT = Path(__file__).parent
DEFAULT_ENGINE = "sglang==0.5.23"


@cache
def facts(engine: str, part: str) -> dict[str, Any]:
    """Return the facts of one part (``checkpoint``, ``serving``) for an engine such as ``sglang==0.5.23``.

    The file holds ``versions: {"0.5.23": {...}}``; every fact in it names its source. Raises ConfigError for an
    engine or version without facts.
    """
    name, _, version = engine.partition("==")
    path = ROOT / name / f"{part}.yaml"
    if not path.is_file():
        known = sorted(p.name for p in ROOT.iterdir() if p.is_dir() and not p.name.startswith("_"))
        raise ConfigError(
            f"unknown engine {name!r}", "engine", f"Known engines: {', '.join(known)}."
        )
    versions: dict[str, Any] = yaml.safe_load(path.read_text())["versions"]
    if version not in versions:
        raise ConfigError(
            f"no facts for {name} version {version or '(none given)'!r}",
            "engine",
            f"Known versions: {', '.join(versions)}. Write it as {name}=={next(iter(versions))}.",
        )
    found: dict[str, Any] = versions[version]
    return found
