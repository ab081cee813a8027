"""Each result file as params and metrics. Metrics are grouped by what stands before the slash."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Result = Mapping[str, Any]
Metric = tuple[str, float | None, int]
SHORT_DIGEST = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What is told of one result: params, metrics as (name, value, step), and when it began (ISO 8601) if it says so."""

    params: dict[str, str] = field(default_factory=dict)
    metrics: list[Metric] = field(default_factory=list)
    started_at: str | None = None


def text(value: object) -> str:
    """Return a value as a param: text as it is, anything else as compact JSON."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def flat(prefix: str, values: Result) -> dict[str, str]:
    """Return {prefix/key: value as text}."""
    return {f"{prefix}/{key}": text(value) for key, value in values.items()}


def counts(prefix: str, values: list[str]) -> list[Metric]:
    """Return how often each value occurs, as metrics."""
    return [(f"{prefix}/{name}", float(n), 0) for name, n in sorted(Counter(values).items())]


def pair(data: Result) -> dict[str, str]:
    """Return what identifies the experiment: engine, target and draft."""
    params = {"engine": data["engine"], "dialect": data["dialect"]}
    for model in ("target", "draft"):
        params[f"{model}/path"] = data[model]["path"]
        if "sha256" in data[model]:
            params[f"{model}/sha256"] = data[model]["sha256"][:SHORT_DIGEST]
    return params


def preflight(data: Result) -> Described:
    """Tell of preflight.json."""
    return Described(
        params={key: data[key] for key in ("status", "device", "engine")}
        | {f"check/{check['id']}": check["status"] for check in data["checks"]},
        metrics=counts("checks", [check["status"] for check in data["checks"]]),
    )


def validation(data: Result) -> Described:
    """Tell of validation.json."""
    effective = {key: each["value"] for key, each in data["effective"].items()}
    findings = dict.fromkeys(("error", "warning", "info"), 0) | Counter(
        each["severity"] for each in data["findings"]
    )
    return Described(
        params={"status": data["status"], **pair(data), **flat("effective", effective)},
        metrics=[(f"findings/{name}", float(n), 0) for name, n in findings.items()],
    )


def capture(data: Result) -> Described:
    """Tell of the capture's manifest."""
    keys = ("source", "dtype", "max_new_tokens", "num_layers", "hidden_size", "boundaries")
    samples = data["samples"]
    return Described(
        params={key: text(data[key]) for key in keys}
        | flat("prompts", data["prompts"])
        | flat("version", data["versions"]),
        metrics=[
            ("capture/samples", len(samples), 0),
            ("capture/prompt_tokens", sum(each["prompt_tokens"] for each in samples), 0),
            ("capture/output_tokens", sum(each["output_tokens"] for each in samples), 0),
        ],
    )


def accuracy(data: Result, wiring: Result | None) -> Described:
    """Tell of accuracy.json and wiring.json; the step of a series is the draft step, or the number of steps walked."""
    params = {key: text(data[key]) for key in ("semantics", "feeding", "boundaries")}
    metrics: list[Metric] = [
        ("accuracy/samples", data["samples"], 0),
        ("accuracy/positions", data["positions"], 0),
        ("accuracy/coverage", data["coverage"], 0),
    ]
    for row in data["steps"]:
        metrics += [
            (f"acceptance/{kind}", row[kind], row["k"])
            for kind in ("marginal", "conditional", "cumulative", "teacher_forced")
        ]
    metrics += [
        ("walk/accept_length", walk["accept_length"], int(k)) for k, walk in data["walk"].items()
    ]
    metrics += [
        (f"tree/accept_length/{shape.replace(',', '-')}", tree["accept_length"], 0)
        for shape, tree in data["trees"].items()
    ]
    if wiring:
        best = wiring["best"]
        params |= {
            "wiring/best": best["label"],
            "wiring/significant": text(wiring["significant"]),
        }
        metrics.append(("wiring/best_accept_length", best["accept_length"], 0))
        if own := wiring["configured"]:
            metrics.append(("wiring/configured_accept_length", own["accept_length"], 0))
    return Described(params=params, metrics=metrics)


def launch(data: Result) -> Described:
    """Tell of launch.json: the settings as the server reported them."""
    found = {name: pair["found"] for name, pair in data["settings"].items()}
    params = {key: text(data[key]) for key in ("server", "arm", "engine", "device", "digest")}
    return Described(
        params=params | flat("setting", found) | flat("version", data["versions"]),
        metrics=[("serving/ready_s", data["ready_s"], 0)],
        started_at=data["started_at"],
    )


def cell(data: Result) -> Described:
    """Tell of cell.json."""
    params = {key: text(data[key]) for key in ("server", "arm", "concurrency", "status", "key")}
    metrics: list[Metric] = [
        ("speed/output_tokens_per_s", data["output_tokens_per_s"], 0),
        ("speed/decode_tokens_per_s_per_user", data["decode_tokens_per_s"], 0),
        ("speed/wall_s", data["wall_s"], 0),
        ("requests/done", data["requests"]["done"], 0),
        ("requests/failed", data["requests"]["failed"], 0),
        ("requests/output_tokens", data["output_tokens"], 0),
    ]
    for name, spread in (
        ("ttft_ms", data["ttft_s"]),
        ("inter_token_ms", data["inter_token_s"]),
    ):
        metrics += [
            (f"latency/{name}_{kind}", spread[kind] * 1000, 0) for kind in ("mean", "median", "p90")
        ]
    if spec := data["spec"]:
        params |= {key: text(spec[key]) for key in ("steps", "topk", "draft_tokens")}
        metrics += [
            ("spec/accept_length", spec["accept_length"], 0),
            ("spec/accept_length_low", spec["ci95"][0], 0),
            ("spec/accept_length_high", spec["ci95"][1], 0),
            ("spec/verify_steps", spec["verify_steps"], 0),
        ]
        metrics += [("spec/histogram", n, m) for m, n in enumerate(spec["histogram"])]
    return Described(params=params, metrics=metrics)


def diagnosis(data: Result) -> Described:
    """Tell of diagnosis.json; the step of a speed series is the concurrency."""
    acceptance, outputs = data["acceptance"], data["outputs"]
    requests = outputs["requests"]
    metrics: list[Metric] = [
        ("accept_length/offline", acceptance["offline"]["accept_length"], 0),
        ("accept_length/served", acceptance["served"]["accept_length"], 0),
        ("accept_length/difference_ratio", acceptance["difference_ratio"], 0),
        ("accept_length/total_variation", acceptance["total_variation"], 0),
        ("accept_length/requests", acceptance["requests"], 0),
        ("outputs/requests", requests, 0),
        ("outputs/identical_to_baseline", outputs["identical_to_baseline"], 0),
        ("outputs/identical_to_capture", outputs["identical_to_capture"], 0),
    ]
    for row in data["speed"]:
        metrics += [
            (f"{row['server']}/{name}", row[name], row["concurrency"])
            for name in ("speedup", "break_even_accept_length", "spec_tokens_per_s")
        ]
    params = {
        "agreement": acceptance["agreement"],
        "compared_cell": acceptance["cell"],
        "steps": text(acceptance["steps"]),
    }
    return Described(
        params=params | {f"finding/{each['id']}": each["severity"] for each in data["findings"]},
        metrics=metrics,
    )


def note(data: Result) -> str:
    """Return the parent's description: the verdict first, then the findings that need a hand."""
    lines = [data["verdict"], ""]
    for each in data["findings"]:
        if each["severity"] != "info":
            one_line = " ".join(f"{each['message']}. {each['fix']}".split())
            lines.append(f"- **{each['severity']}** {each['id']}: {one_line}")
    return "\n".join(lines).strip()
