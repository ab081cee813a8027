"""What exactly would be started? Flags, environment and the settings to read back, decided before anything runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from draftproof.engines import facts
from draftproof.errors import ConfigError
from draftproof.files import require_directory
from draftproof.serving.port import HOST

Flag = str | int | float | bool
Value = Flag | list[int]
SPECULATIVE = ("spec", "spec_synthetic")
ARMS = ("baseline", *SPECULATIVE, "capture")
DEVICES = ("cpu", "cuda")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One launch of a server, before it is started."""

    server: str
    arm: str
    engine: str
    device: str
    target: Path
    draft: Path | None
    flags: dict[str, Value]
    """All flags but host and port, in the order of the command line."""
    environment: dict[str, str]
    """Variables set for the server, on top of ours."""
    asked: dict[str, Value | None]
    """Settings to read back from the server, by the engine's own names; None where it has none."""

    def command(self, python: str, port: int) -> list[str]:
        """Return the server's command line."""
        module = facts(self.engine, "serving")["module"]
        arguments = {**self.flags, "host": HOST, "port": port}
        return [python, "-m", module, *flag_arguments(arguments)]


def flag_arguments(flags: Mapping[str, Value]) -> list[str]:
    """Return flags as arguments: ``true`` stands bare, ``false`` is left out, a list's numbers follow one by one.

    A string with spaces stays one argument.
    """
    arguments = []
    for name, value in flags.items():
        if value is True:
            arguments.append(f"--{name}")
        elif isinstance(value, list):
            arguments += [f"--{name}", *map(str, value)]
        elif value is not False:
            arguments += [f"--{name}", str(value)]
    return arguments


def make_plan(
    *,
    server: str,
    arm: str,
    engine: str,
    device: str,
    target: Path,
    draft: Path | None,
    flags: Mapping[str, Flag],
    environment: Mapping[str, str],
    layer_ids: Sequence[int] = (),
) -> Plan:
    """Return the plan of a launch; raises ConfigError or InputError for what could not work.

    `layer_ids`: whose hidden states the arm capture hands out, in the engine's own numbers.
    """
    known = facts(engine, "serving")
    require_directory(target, "target")
    if arm in SPECULATIVE:
        if draft is None:
            raise ConfigError(f"arm {arm} needs a draft", f"server {server}", "Give --draft DIR.")
        require_directory(
            draft, "draft", "Run the convert stage, or give the draft's own directory."
        )
    check_flags(server, arm, flags, known)
    check_synthetic(server, arm, environment, known["synthetic_variable"])

    own: dict[str, Value] = {"model-path": str(target), "device": device}
    if arm in SPECULATIVE:
        own |= known["spec_flags"] | {"speculative-draft-model-path": str(draft)}
    if arm == "capture":
        own |= known["capture"]["flags"] | {known["capture"]["ids_flag"]: list(layer_ids)}
    # The experiment's flags win over those that a device needs by default.
    every = (
        own
        | {name: value for name, value in device_flags(device).items() if name not in flags}
        | dict(flags)
    )
    names = known["setting_names"]
    asked: dict[str, Value | None] = {
        names.get(name, name.replace("-", "_")): value for name, value in every.items()
    }
    if arm == "capture":
        asked |= known["capture"]["settings"]
    return Plan(
        server=server,
        arm=arm,
        engine=engine,
        device=device,
        target=target,
        draft=draft if arm in SPECULATIVE else None,
        flags=every,
        environment=dict(environment),
        asked=asked,
    )


def device_flags(device: str) -> dict[str, Flag]:
    """Return the flags that every server on this device needs."""
    if device != "cpu":
        return {}
    from draftproof import cpu_engine

    names, values = cpu_engine.SERVER_FLAGS[::2], cpu_engine.SERVER_FLAGS[1::2]
    return {name.removeprefix("--"): value for name, value in zip(names, values, strict=True)}


def server_environment(plan: Plan) -> tuple[dict[str, str], dict[str, str]]:
    """Return (the whole environment of the server process, the part of it that differs from ours)."""
    ours = dict(os.environ)
    whole = {**ours, "HF_HUB_OFFLINE": "1", **plan.environment}
    if plan.device == "cpu":
        from draftproof import cpu_engine

        whole = cpu_engine.server_environment(whole)
    return whole, {name: value for name, value in sorted(whole.items()) if ours.get(name) != value}


def check_flags(server: str, arm: str, flags: Mapping[str, Flag], known: Mapping[str, Any]) -> None:
    """Raise ConfigError for flags that the arm owns, that do not fit it, or that break a constraint of the engine."""
    where = f"server {server}"
    for name in flags:
        if name.startswith("-") or "_" in name:
            raise ConfigError(
                f"flag {name!r}", where, f"Write it as {name.lstrip('-').replace('_', '-')!r}."
            )
        if arm not in SPECULATIVE and name.startswith(known["speculative_prefix"]):
            raise ConfigError(
                f"arm {arm} does not take {name}", where, "Remove it, or set the arm to spec."
            )
        if name in known["owned_flags"]:
            raise ConfigError(
                f"{name} is set by the arm and the command line", where, "Remove it from the flags."
            )
    if arm == "capture":
        for name, value in known["capture"]["flags"].items():
            if flags.get(name, value) != value:
                raise ConfigError(
                    f"arm capture needs {name} {value}, not {flags[name]}", where, "Remove it."
                )
    for constraint in known["constraints"]:
        if fault := CONSTRAINTS[constraint["kind"]](flags, constraint):
            raise ConfigError(
                fault, where, f"Because {constraint['why']} ({constraint['source']})."
            )


def check_all_or_none(flags: Mapping[str, Flag], constraint: Mapping[str, Any]) -> str:
    """Return what is missing when some but not all flags of a group are given."""
    missing = [name for name in constraint["flags"] if name not in flags]
    if missing and len(missing) < len(constraint["flags"]):
        return (
            f"give all of {', '.join(constraint['flags'])} or none; missing: {', '.join(missing)}"
        )
    return ""


def check_chain(flags: Mapping[str, Flag], constraint: Mapping[str, Any]) -> str:
    """Return what is wrong when a chain (topk 1) does not verify exactly its drafts and the bonus token."""
    steps, topk, draft_tokens = (
        flags.get(constraint[name]) for name in ("steps", "topk", "draft_tokens")
    )
    if steps is None or topk is None or draft_tokens is None:
        return ""
    for name, value in (
        (constraint["steps"], steps),
        (constraint["topk"], topk),
        (constraint["draft_tokens"], draft_tokens),
    ):
        if isinstance(value, bool) or not str(value).isdigit() or int(value) < 1:
            return f"{name} must be a whole number of at least 1, not {value!r}"
    if int(topk) == 1 and int(draft_tokens) != int(steps) + 1:
        return (
            f"with {constraint['topk']} 1, {constraint['draft_tokens']} must be {constraint['steps']} + 1 = "
            f"{int(steps) + 1}, not {draft_tokens}"
        )
    return ""


CONSTRAINTS = {"all-or-none": check_all_or_none, "chain-draft-tokens": check_chain}


def check_synthetic(server: str, arm: str, environment: Mapping[str, str], variable: str) -> None:
    """Raise ConfigError when acceptance is forced in an arm that claims to measure it, or not forced in the synthetic arm."""
    value = environment.get(variable, os.environ.get(variable))
    if arm == "spec_synthetic" and not environment.get(variable):
        raise ConfigError(
            f"arm spec_synthetic needs {variable}", f"server {server}", "Set it in its environment."
        )
    if arm != "spec_synthetic" and value:
        raise ConfigError(
            f"{variable}={value} would force the accept length of arm {arm}",
            f"server {server}",
            "Unset it, or set the arm to spec_synthetic.",
        )
