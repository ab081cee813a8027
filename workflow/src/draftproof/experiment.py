"""Is this experiment file right? Every fault at once, one line each, naming the key and what is allowed."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from draftproof.engines import facts
from draftproof.errors import ConfigError
from draftproof.files import schema
from draftproof.track.address import parse

RESERVED = {"mlflow", "models"}


def faults(config: Mapping[str, Any]) -> list[str]:
    """Return one line per fault of an experiment (the parsed YAML); empty when it is right."""
    import jsonschema

    validator = jsonschema.Draft202012Validator(schema("config"))
    found = sorted(validator.iter_errors(config), key=lambda fault: list(map(str, fault.path)))
    lines = [line for fault in found for line in describe(fault)]
    return lines or list(contradictions(config))


def describe(fault: Any) -> Iterator[str]:
    """Yield readable lines for one jsonschema ValidationError."""
    where = ".".join(map(str, fault.absolute_path)) or "top level"
    if fault.validator == "additionalProperties" and fault.schema["additionalProperties"] is False:
        known = list(fault.schema["properties"])
        for key in sorted(set(fault.instance) - set(known)):
            close = difflib.get_close_matches(str(key), known, n=1)
            hint = f"Did you mean {close[0]!r}?" if close else f"Known keys: {', '.join(known)}."
            yield f"{where}: unknown key {key!r}. {hint}"
    elif fault.validator == "required":
        for key in sorted(set(fault.validator_value) - set(fault.instance)):
            meaning = fault.schema["properties"].get(key, {}).get("description", "")
            yield f"{where}: key {key!r} is missing" + (f" ({meaning})." if meaning else ".")
    elif fault.validator == "enum":
        allowed = ", ".join(map(repr, fault.validator_value))
        yield f"{where}: found {fault.instance!r}, allowed: {allowed}."
    elif fault.validator == "type":
        yield f"{where}: found {fault.instance!r}, expected {fault.validator_value}."
    elif fault.validator in {"minimum", "maximum"}:
        bound = f"at {'least' if fault.validator == 'minimum' else 'most'} {fault.validator_value}"
        yield f"{where}: found {fault.instance!r}, expected {bound}."
    elif fault.validator == "minLength":
        yield f"{where}: is empty."
    elif fault.validator == "anyOf":
        kinds = ", ".join(option.get("type", "?") for option in fault.validator_value)
        yield f"{where}: found {fault.instance!r}, expected one of {kinds}."
    else:
        yield f"{where}: {fault.message[:200]}."


def contradictions(config: Mapping[str, Any]) -> Iterator[str]:
    """Yield faults that no schema can see: an unknown engine or tracking address, an arm without its counterpart."""
    for ask in (
        lambda: facts(config["engine"]["version"], "serving"),
        lambda: parse(config["tracking"]["uri"]),
    ):
        try:
            ask()
        except ConfigError as error:
            yield str(error)
    if config["experiment"] in RESERVED:
        yield f"experiment: {config['experiment']!r} is a folder of its own in results/. Choose another name."
    arms = [server["arm"] for server in config["servers"].values()]
    if arms.count("baseline") != 1:
        yield f"servers: found {arms.count('baseline')} servers with arm 'baseline', expected exactly one."
    if "spec" not in arms:
        yield "servers: no server with arm 'spec'; there is nothing to compare with the baseline."


def check(config: Mapping[str, Any], where: str = "config.yaml") -> None:
    """Raise ConfigError with every fault of the experiment, one per line."""
    if lines := faults(config):
        raise ConfigError("\n".join(f"{where}: {line}" for line in lines))


def trees(config: Mapping[str, Any]) -> list[str]:
    """Return the trees that the experiment's speculative servers draft, as ``STEPS,TOPK,TOKENS``; chains are left out."""
    names = [f"speculative-{name}" for name in ("num-steps", "eagle-topk", "num-draft-tokens")]
    servers = [server for server in config["servers"].values() if server["arm"] == "spec"]
    flags = [config["engine"]["flags"] | server["flags"] for server in servers]
    shapes = [[each[name] for name in names] for each in flags if set(names) <= set(each)]
    return sorted({",".join(map(str, shape)) for shape in shapes if int(shape[1]) > 1})
