"""Every fault of an experiment file is named: the key, what was found and what is allowed."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from draftproof.errors import ConfigError
from draftproof.experiment import check, faults, trees

ROOT = Path(__file__).parents[2]
DEFAULT = yaml.safe_load((ROOT / "config.yaml").read_text())


@pytest.mark.parametrize(
    "path",
    [ROOT / "config.yaml", *sorted((ROOT / "workflow/presets").glob("*.yaml"))],
    ids=lambda path: path.name,
)
def test_shipped_experiments_are_right(path: Path) -> None:
    assert faults(yaml.safe_load(path.read_text())) == []


@pytest.mark.parametrize(
    ("keys", "value", "says"),
    [
        (
            ("benchmark", "concurency"),
            [1],
            "benchmark: unknown key 'concurency'. Did you mean 'concurrency'?",
        ),
        (("nonsense",), 1, "top level: unknown key 'nonsense'. Known keys: experiment, target,"),
        (("engine", "device"), "tpu", "engine.device: found 'tpu', allowed: 'cpu', 'cuda'."),
        (
            ("benchmark", "concurrency"),
            "four",
            "benchmark.concurrency: found 'four', expected array.",
        ),
        (("experiment",), "models", "experiment: 'models' is a folder of its own in results/."),
        (("experiment",), "../up", "experiment: '../up' does not match"),
        (
            ("servers", "spec", "arm"),
            "baseline",
            "servers: found 2 servers with arm 'baseline', expected exactly one.",
        ),
        (
            ("engine", "flags", "dtype"),
            [1],
            "engine.flags.dtype: found [1], expected one of string, number, boolean.",
        ),
        (("engine", "flags", "--dtype"), "bfloat16", "engine.flags: '--dtype' does not match"),
        (("servers", "spec", "flags", 3), 1, "servers.spec.flags: found 3, expected string."),
        (("target", "path"), "", "target.path: is empty."),
        (("engine", "version"), "sglang==9.9.9", "engine: no facts for sglang version '9.9.9'"),
        (("tracking", "uri"), "mlruns", "tracking.uri: no tracking address: 'mlruns'."),
        (
            ("draft", "claimed"),
            {"value": 74.7, "kind": "marginal"},
            "draft.claimed.value: found 74.7, expected at most 1.",
        ),
        (
            ("draft", "claimed"),
            {"value": 0.7, "kind": "accept_length"},
            "draft.claimed.value: found 0.7, expected at least 1.",
        ),
    ],
)
def test_a_fault_names_key_and_allowed_values(
    keys: tuple[str, ...], value: object, says: str
) -> None:
    config: Any = copy.deepcopy(DEFAULT)
    place = config
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    assert any(line.startswith(says) for line in faults(config)), faults(config)


def test_a_missing_key_is_named_with_its_meaning() -> None:
    config = copy.deepcopy(DEFAULT)
    del config["target"]["path"]
    with pytest.raises(
        ConfigError,
        match=r"my.yaml: target: key 'path' is missing \(directory of the target checkpoint\).",
    ):
        check(config, "my.yaml")


def test_all_faults_are_told_at_once() -> None:
    config = DEFAULT | {"a": 1, "b": 2}
    assert len(faults(config)) == 2


def test_the_trees_of_the_servers_are_scored_and_their_chains_are_not() -> None:
    config = copy.deepcopy(DEFAULT)
    assert trees(config) == []
    flags = {
        "speculative-num-steps": 5,
        "speculative-eagle-topk": 4,
        "speculative-num-draft-tokens": 8,
    }
    config["engine"]["flags"] = {"dtype": "float32", "speculative-num-steps": 3}
    config["servers"]["tree"] = {"arm": "spec", "flags": flags}
    config["servers"]["same"] = {"arm": "spec", "flags": flags | {"mem-fraction-static": 0.8}}
    config["servers"]["other"] = {"arm": "spec", "flags": {**flags, "speculative-eagle-topk": 2}}
    config["servers"]["forced"] = {"arm": "spec_synthetic", "flags": flags | {"tp": 2}}
    del config["servers"]["other"]["flags"]["speculative-num-steps"]
    assert trees(config) == ["3,2,8", "5,4,8"]
