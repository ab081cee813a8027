"""How a target's weights are quantised: what its config says, read as the engine reads it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftproof.checkpoint.configuration import Config, is_size, read_object
from draftproof.checkpoint.layout import Shape

MODELOPT_FILE = "hf_quant_config.json"
PACKED_BITS = 32  # pack-quantized: as many values as fit go into one 32-bit number
# Patterns of others are matched only if they cannot take long.
REPEATED, REPEATED_GROUP = re.compile(r"[*+{]"), re.compile(r"\)\s*[*+{?]")
MOST_REPEATED, MOST_IGNORED = 3, 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantisation:
    """``method`` as the engine names it, ``settings`` as written, ``place`` where they stand."""

    method: str
    settings: Config
    place: str

    def __str__(self) -> str:
        known = self.settings.get("format") or self.settings.get("quant_algo")
        details = [known] if isinstance(known, str) and known.lower() != self.method else []
        if (group := packed_group(self)) is not None:
            bits, size = group
            details += [f"{bits} bits", f"groups of {size}" if size else "one scale per channel"]
        return self.method + (f" ({', '.join(details)})" if details else "")


def quantisation(config: Config, text: Config, folder: Path) -> Quantisation | None:
    """Return how a checkpoint says it is quantised; None: it says nothing, so the engine takes its weights as they are.

    The order is the engine's (configs/model_config.py, _parse_quant_hf_config; configs/kimi_k25.py for a text model's
    own): config.json, then ModelOpt's own file.
    """
    for block, key, where in (
        (config, "quantization_config", "config.json: "),
        (text, "quantization_config", "config.json: text_config."),
        (config, "compression_config", "config.json: "),
    ):
        found = block.get(key)
        if found is not None:
            settings = found if isinstance(found, Mapping) else {}
            return Quantisation(method=_method(settings), settings=settings, place=where + key)
    file = folder / MODELOPT_FILE
    if not file.is_file():
        return None
    settings = read_object(file, "quantisation config")
    return Quantisation(method=_method(settings), settings=_inner(settings), place=MODELOPT_FILE)


def _inner(settings: Mapping[str, Any]) -> Mapping[str, Any]:
    nested = settings.get("quantization")
    return nested if isinstance(nested, Mapping) else settings


def _method(settings: Mapping[str, Any]) -> str:
    """Return the engine's name of a method; ModelOpt names an algorithm instead (_parse_modelopt_quant_config)."""
    named = settings.get("quant_method")
    method = named.lower() if isinstance(named, str) else ""
    algorithm = str(_inner(settings).get("quant_algo") or "").upper()
    if method not in {"", "modelopt"} or not algorithm:
        return method
    if "FP4" in algorithm:
        return "modelopt_fp4"
    return {
        "FP8": "modelopt_fp8",
        "MXFP8": "mxfp8",
        "MIXED_PRECISION": "modelopt_mixed",
    }.get(algorithm, method)


def stored(
    found: Quantisation | None, module: str, rows: int | None, columns: int | None
) -> dict[str, Shape] | None:
    """Return {ending of a name: shape} of a matrix [rows, columns] as a checkpoint holds it; None: not known."""
    whole: dict[str, Shape] = {".weight": (rows, columns)}
    if found is None or found.method == "fp8":
        return whole
    group = packed_group(found)
    if group is None:
        return None
    if ignored(found, module):
        return whole
    bits, size = group
    scales = None if columns is None else -(-columns // size) if size else 1
    packed = None if columns is None else -(-columns // (PACKED_BITS // bits))
    return {
        ".weight_packed": (rows, packed),
        ".weight_scale": (rows, scales),
        ".weight_shape": (2,),
    }


def packed_group(found: Quantisation) -> tuple[int, int | None] | None:
    """Return (bits, columns per scale) when all quantised matrices are packed one way; None columns: a scale per row.

    Source: layers/quantization/compressed_tensors/schemes/compressed_tensors_wNa16.py, create_weights.
    """
    groups = found.settings.get("config_groups")
    if found.method != "compressed-tensors" or not isinstance(groups, Mapping) or len(groups) != 1:
        return None
    group = next(iter(groups.values()))
    weights = group.get("weights") if isinstance(group, Mapping) else None
    if not isinstance(weights, Mapping) or group.get("targets") != ["Linear"]:
        return None
    if (group.get("format") or found.settings.get("format")) != "pack-quantized":
        return None
    bits, size, strategy = (weights.get(key) for key in ("num_bits", "group_size", "strategy"))
    if bits not in (4, 8) or weights.get("symmetric") is not True or not _simple(found):
        return None
    if strategy == "channel":
        return bits, None
    return (bits, size) if strategy == "group" and type(size) is int and is_size(size) else None


def _simple(found: Quantisation) -> bool:
    """Return whether the patterns of `ignore` can be matched in little time, whoever wrote them."""
    entries = found.settings.get("ignore") or []
    return (
        isinstance(entries, list)
        and len(entries) <= MOST_IGNORED
        and all(
            not REPEATED_GROUP.search(entry) and len(REPEATED.findall(entry)) <= MOST_REPEATED
            for entry in entries
            if isinstance(entry, str) and entry.startswith("re:")
        )
    )


def ignored(found: Quantisation, module: str) -> bool:
    """Return whether compressed-tensors leaves a module alone: named whole, by its end, or by a pattern after `re:`.

    Source: layers/quantization/compressed_tensors/utils.py, check_equal_or_regex_match.
    """
    entries = found.settings.get("ignore")
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, str):
            continue
        if entry.startswith("re:"):
            try:
                if re.match(entry[3:], module):
                    return True
            except re.error:
                continue
        elif module == entry or module.endswith(f".{entry}"):
            return True
    return False
