"""What would be started, and what is refused before anything is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from draftproof.errors import ConfigError, InputError
from draftproof.serving.identity import launch_digest
from draftproof.serving.plan import Plan, flag_arguments, make_plan, server_environment

CHAIN = {"speculative-num-steps": 3, "speculative-eagle-topk": 1, "speculative-num-draft-tokens": 4}


@pytest.fixture
def models(tmp_path: Path) -> Path:
    for name in ("target", "draft"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
        (tmp_path / name / "model.safetensors").write_bytes(name.encode())
    return tmp_path


def plan(models: Path, **changes: Any) -> Plan:
    asked = {
        "server": "spec",
        "arm": "spec",
        "engine": "sglang==0.5.23",
        "device": "cuda",
        "target": models / "target",
        "draft": models / "draft",
        "flags": CHAIN,
        "environment": {},
    }
    return make_plan(**asked | changes)  # type: ignore[arg-type]


def test_spec_arm_names_algorithm_and_draft(models: Path) -> None:
    command = plan(models).command("python", 1234)
    assert command[:3] == ["python", "-m", "sglang.launch_server"]
    text = " ".join(command)
    assert (
        f"--speculative-algorithm EAGLE3 --speculative-draft-model-path {models / 'draft'}" in text
    )
    assert (
        "--speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4"
        in text
    )
    assert text.endswith("--host 127.0.0.1 --port 1234")


def test_baseline_ignores_the_draft(models: Path) -> None:
    found = plan(models, arm="baseline", flags={}, draft=Path("/nowhere"))
    assert found.draft is None
    assert "speculative" not in " ".join(found.command("python", 1))


def test_cpu_device_brings_its_flags_and_environment(models: Path) -> None:
    found = plan(models, device="cpu", flags=CHAIN | {"dtype": "bfloat16"})
    text = " ".join(found.command("python", 1))
    assert "--device cpu" in text
    assert text.count("--device") == 1
    assert "--attention-backend torch_native" in text
    assert "--dtype bfloat16" in text, "the experiment's own flag wins"
    assert "--dtype float32" not in text
    _, changed = server_environment(found)
    assert changed["SGLANG_USE_CPU_ENGINE"] == "1"


def test_bare_flags_and_strings_with_spaces() -> None:
    flags = {"trust-remote-code": True, "enable-metrics": False, "json": '{"a": 1}', "x": 0.5}
    assert flag_arguments(flags) == ["--trust-remote-code", "--json", '{"a": 1}', "--x", "0.5"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"flags": {"speculative-num-steps": 3}},
            "missing: speculative-eagle-topk, speculative-num-draft-tokens",
        ),
        (
            {"flags": CHAIN | {"speculative-num-draft-tokens": 5}},
            "must be speculative-num-steps + 1 = 4, not 5",
        ),
        (
            {"flags": CHAIN | {"speculative-num-steps": 0}},
            "must be a whole number of at least 1, not 0",
        ),
        ({"flags": CHAIN | {"speculative-num-steps": 2.5}}, "must be a whole number"),
        ({"arm": "baseline"}, "arm baseline does not take speculative-num-steps"),
        (
            {"flags": CHAIN | {"model-path": "x"}},
            "model-path is set by the arm and the command line",
        ),
        ({"flags": {"--dtype": "x"}}, "Write it as 'dtype'"),
        ({"flags": {"max_total_tokens": 1}}, "Write it as 'max-total-tokens'"),
        ({"draft": None}, "arm spec needs a draft"),
        (
            {"environment": {"SGLANG_SIMULATE_ACC_LEN": "3"}},
            "would force the accept length of arm spec",
        ),
        ({"arm": "spec_synthetic"}, "arm spec_synthetic needs SGLANG_SIMULATE_ACC_LEN"),
        ({"engine": "sglang==0.4"}, "no facts for sglang version '0.4'"),
    ],
)
def test_what_cannot_work_is_refused(models: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        plan(models, **changes)
    assert message in str(error.value)


def test_forced_acceptance_is_seen_in_our_own_environment(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SGLANG_SIMULATE_ACC_LEN", "3")
    with pytest.raises(ConfigError, match="would force the accept length"):
        plan(models)


def test_tree_is_free_in_its_draft_tokens(models: Path) -> None:
    plan(models, flags=CHAIN | {"speculative-eagle-topk": 4, "speculative-num-draft-tokens": 8})


@pytest.mark.parametrize("which", ["target", "draft"])
def test_missing_model_is_an_input_error(models: Path, which: str) -> None:
    with pytest.raises(InputError, match=f"the {which} directory does not exist"):
        plan(models, **{which: models / "nowhere"})


def test_digest_follows_what_shapes_the_numbers(models: Path) -> None:
    versions = {"sglang": "0.5.23"}
    first = launch_digest(plan(models), versions)
    assert launch_digest(plan(models), versions) == first
    assert launch_digest(plan(models, server="other"), versions) == first, "a name shapes nothing"
    assert launch_digest(plan(models, flags=CHAIN | {"dtype": "float32"}), versions) != first
    assert launch_digest(plan(models, environment={"A": "1"}), versions) != first
    assert launch_digest(plan(models), {"sglang": "0.5.24"}) != first
    (models / "draft").rename(models / "moved")
    assert launch_digest(plan(models, draft=models / "moved"), versions) == first, (
        "contents count, not paths"
    )
    (models / "moved" / "model.safetensors").write_bytes(b"other")
    assert launch_digest(plan(models, draft=models / "moved"), versions) != first


def test_the_arm_capture_hands_out_hidden_states_without_a_draft(models: Path) -> None:
    made = plan(models, arm="capture", flags={"tp": 2}, draft=None, layer_ids=[3, 1])
    text = " ".join(made.command("python", 1234))
    assert "--speculative-algorithm EAGLE3 --enable-return-aux-hidden-states" in text
    assert "--return-aux-hidden-state-layer-ids 3 1" in text
    assert "--disable-radix-cache" in text
    assert "draft" not in text
    assert made.asked["speculative_algorithm"] is None
    assert made.asked["aux_hidden_state_capture"] == "eagle3"
    assert made.asked["return_aux_hidden_state_layer_ids"] == [3, 1]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"disable-radix-cache": False}, "arm capture needs disable-radix-cache True, not False"),
        ({"enable-return-aux-hidden-states": True}, "is set by the arm"),
        (CHAIN, "arm capture does not take speculative-num-steps"),
    ],
)
def test_the_arm_capture_refuses_flags_that_would_spoil_it(
    models: Path, flags: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        plan(models, arm="capture", flags=flags, layer_ids=[1])
