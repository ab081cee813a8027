"""The verdict on experiments whose truth is known."""

import json
import shutil
from pathlib import Path

import pytest

from draftproof.cli import main
from draftproof.diagnosis import acceptance, claimed
from draftproof.diagnosis.outputs import first_difference
from draftproof.diagnosis.speed import outcome
from draftproof.diagnosis.verdict import two
from draftproof.errors import ConfigError
from draftproof.files import schema_faults
from tests.builders.results import Truth, change_json, write_results


def diagnosed(folder: Path, truth: Truth, *arguments: str) -> dict:
    write_results(folder, truth)
    assert main(["diagnose", "--results", str(folder), *arguments]) == 0
    answer = json.loads((folder / "diagnosis.json").read_text())
    assert not schema_faults(answer, "diagnosis")
    return answer


def ids(answer: dict) -> dict[str, str]:
    return {each["id"]: each["severity"] for each in answer["findings"]}


def test_a_right_draft_that_does_not_pay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = diagnosed(tmp_path / "demo", Truth(cost=2.5))
    offline, served = answer["acceptance"]["offline"], answer["acceptance"]["served"]
    assert offline == served
    assert answer["acceptance"]["difference_ratio"] == answer["acceptance"]["total_variation"] == 0
    length = f"{served['accept_length']:.2f}"
    assert answer["verdict"].startswith(
        f"The draft is wired right: offline {length}, served {length} (12 requests). "
        "On this machine it does not pay at concurrency 1 (break-even 2.5"
    )
    assert [row["concurrency"] for row in answer["speed"]] == [1, 4]
    for row in answer["speed"]:
        assert row["break_even_accept_length"] == pytest.approx(2.5, rel=0.02)
        assert row["speedup"] == pytest.approx(served["accept_length"] / 2.5, rel=0.02)
        assert row["speedup_ci95"][0] < row["speedup"] < row["speedup_ci95"][1] < 1
    assert answer["outputs"]["requests"] == 24
    assert answer["outputs"]["identical_to_baseline"] == 24
    assert answer["outputs"]["identical_to_capture"] == 24
    assert not answer["outputs"]["divergences"]
    assert answer["experiment"] == "demo"
    assert capsys.readouterr().out.splitlines()[0] == answer["verdict"]
    text = (tmp_path / "demo/diagnosis.md").read_text()
    assert text.splitlines()[:3] == ["# demo", "", answer["verdict"]]


def test_a_cheap_iteration_pays(tmp_path: Path) -> None:
    answer = diagnosed(tmp_path / "r", Truth(cost=1.2))
    assert "On this machine it pays at concurrency 1 (break-even 1.2" in answer["verdict"]
    assert {row["outcome"] for row in answer["speed"]} == {"pays"}


def test_noise_leaves_it_undecided(tmp_path: Path) -> None:
    exact = diagnosed(tmp_path / "r", Truth(noise=0))
    length = exact["acceptance"]["served"]["accept_length"]
    answer = diagnosed(tmp_path / "s", Truth(cost=length, noise=0.1))
    assert answer["speed"][0]["outcome"] == "undecided"
    assert "undecided" in answer["verdict"]


def test_a_wrong_wiring_is_named_with_its_setting(tmp_path: Path) -> None:
    answer = diagnosed(tmp_path / "r", Truth(wrong_wiring=True, accept=0.2))
    assert "The draft is wired wrong" in answer["verdict"]
    assert "(0, 15, 27)" in answer["verdict"]
    assert "not the configured boundaries (2, 15, 27)" in answer["verdict"]
    assert '"eagle_aux_hidden_state_layer_ids": [0, 15, 27]' in answer["verdict"]
    assert ids(answer)["wiring.wrong-boundaries"] == "error"


def test_an_engine_that_reads_the_draft_otherwise(tmp_path: Path) -> None:
    answer = diagnosed(tmp_path / "r", Truth(accept=0.6, served_accept=0.2))
    assert answer["verdict"].startswith("The engine does not read the draft as it was evaluated")
    assert answer["acceptance"]["agreement"] == "differ"
    assert answer["acceptance"]["difference_ratio"] < -0.2
    assert answer["acceptance"]["total_variation"] > 0.2
    assert ids(answer)["acceptance.served-differs"] == "error"


def test_a_tree_is_compared_with_the_same_tree(tmp_path: Path) -> None:
    answer = diagnosed(tmp_path / "r", Truth(accept=0.4, topk=4))
    assert (answer["acceptance"]["walk"], answer["acceptance"]["agreement"]) == ("3,4,4", "agree")
    assert answer["acceptance"]["total_variation"] == 0
    assert [other["total_variation"] for other in answer["acceptance"]["others"]] == [0]
    assert answer["verdict"].startswith("The draft is wired right")
    other = diagnosed(tmp_path / "s", Truth(accept=0.6, served_accept=0.2, topk=4))
    assert other["acceptance"]["agreement"] == "differ"


def test_a_tree_is_not_compared_with_a_chain(tmp_path: Path) -> None:
    truth = Truth(accept=0.2, served_accept=0.6, topk=4, tree_scored=False)
    answer = diagnosed(tmp_path / "r", truth)
    assert answer["acceptance"]["walk"] == "3"
    assert answer["acceptance"]["agreement"] == "not-comparable"
    assert ids(answer)["acceptance.tree"] == "info"
    assert "wired" not in answer["verdict"]


@pytest.mark.parametrize(("dtype", "severity"), [("float32", "error"), ("bfloat16", "warning")])
def test_changed_text_is_an_error_in_float32(tmp_path: Path, dtype: str, severity: str) -> None:
    answer = diagnosed(tmp_path / "r", Truth(changed_by_spec=[1, 5], dtype=dtype))
    outputs = answer["outputs"]
    assert (outputs["requests"], outputs["identical_to_baseline"]) == (24, 20)
    assert ids(answer)["outputs.not-lossless"] == severity
    assert ("not lossless: 4 of 24 outputs" in answer["verdict"]) == (severity == "error")
    first = outputs["divergences"][0]
    assert (first["sample"], first["position"], first["against"]) == ("math-01", 7, "capture")
    assert first["found_id"] == first["expected_id"] + 1


def test_an_engine_that_differs_from_hugging_face_is_lossless_all_the_same(tmp_path: Path) -> None:
    answer = diagnosed(tmp_path / "r", Truth(changed_by_engine=[2]))
    outputs = answer["outputs"]
    assert (outputs["identical_to_baseline"], outputs["identical_to_capture"]) == (24, 22)
    assert ids(answer)["outputs.engine-differs"] == "error"
    assert "outputs.not-lossless" not in ids(answer)


def test_a_baseline_slower_than_possible_is_found(tmp_path: Path) -> None:
    answer = diagnosed(tmp_path / "r", Truth(cost=0.5))
    assert ids(answer)["speed.impossible"] == "error"
    assert "The speed is not believable at concurrency 1" in answer["verdict"]
    assert "pays" not in answer["verdict"]


def test_an_invalid_cell_is_left_out(tmp_path: Path) -> None:
    folder = write_results(tmp_path / "r")
    change_json(
        folder / "benchmark/spec-c1/cell.json", status="invalid", reasons=["3 requests failed"]
    )
    assert main(["diagnose", "--results", str(folder)]) == 0
    answer = json.loads((folder / "diagnosis.json").read_text())
    assert answer["acceptance"]["cell"] == "spec-c4"
    assert answer["outputs"]["requests"] == 12
    assert ids(answer)["benchmark.invalid-cell"] == "warning"


def test_forced_acceptance_never_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_results(tmp_path / "r")
    for name in ("spec-c1", "spec-c4"):
        change_json(folder / f"benchmark/{name}/cell.json", arm="spec_synthetic")
    assert main(["diagnose", "--results", str(folder)]) == 2
    assert "no valid cell of a speculative server" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("missing", "stage"),
    [
        ("accuracy/accuracy.json", "accuracy"),
        ("accuracy/wiring.json", "accuracy"),
        ("capture/manifest.json", "capture"),
        ("benchmark", "benchmark"),
        ("benchmark/spec-c1/cell.json", "benchmark"),
        ("benchmark/spec-c1/requests.parquet", "benchmark"),
    ],
)
def test_what_is_missing_names_its_stage(
    tmp_path: Path, missing: str, stage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_results(tmp_path / "r")
    path = folder / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert main(["diagnose", "--results", str(folder)]) == 2
    line = capsys.readouterr().err
    assert "Run" in line
    assert stage in line
    assert line.count("\n") == 1
    assert not (folder / "diagnosis.json").exists()


def test_too_short_a_walk_says_what_to_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_results(tmp_path / "r")
    file = folder / "accuracy/accuracy.json"
    walk = json.loads(file.read_text())["walk"]
    change_json(file, walk={"1": walk["1"]})
    assert main(["diagnose", "--results", str(folder)]) == 2
    assert "--steps 3" in capsys.readouterr().err


def test_a_claim_is_put_beside_the_measurement(tmp_path: Path) -> None:
    claim = '{"value": 0.747, "kind": "marginal", "step": 1}'
    answer = diagnosed(tmp_path / "r", Truth(accept=0.3), "--claimed", claim)
    found = answer["acceptance"]["claimed"]
    assert found["implied_accept_length"] == pytest.approx(1 + 0.747 + 0.747**2 + 0.747**3)
    assert found["implied_in_vocabulary"] < found["implied_accept_length"]
    assert found["measured_offline"] == 0.3
    assert ids(answer)["claimed.not-reached"] == "warning"
    text = (tmp_path / "r/diagnosis.md").read_text()
    assert "Claimed: marginal acceptance 0.747 at step 1" in text
    assert "fed the target's own tokens as in training: 0.300" in text
    assert "and 0.309 over the target's tokens in the draft's vocabulary" in text


@pytest.mark.parametrize(
    ("kind", "measured"), [("marginal", 0.3 * 0.97), ("conditional", 0.3), ("cumulative", 0.09)]
)
def test_a_claim_is_measured_by_its_own_kind(tmp_path: Path, kind: str, measured: float) -> None:
    """A marginal one teacher-forced: the trainer fed the target's tokens."""
    claim = json.dumps({"value": 0.2, "kind": kind, "step": 2})
    answer = diagnosed(tmp_path / "r", Truth(accept=0.3), "--claimed", claim)
    found = answer["acceptance"]["claimed"]
    assert found["measured_offline"] == pytest.approx(measured)
    assert found["measured_in_vocabulary"] > found["measured_offline"]


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"value": 74.7, "kind": "marginal"}',
        '{"value": 0.5, "kind": "top1"}',
        '{"value": "x", "kind": "marginal"}',
        '{"value": 0.5, "kind": "marginal", "step": 0}',
        '{"value": NaN, "kind": "marginal"}',
        '{"value": 0.9, "kind": "accept_length"}',
    ],
)
def test_a_claim_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        claimed.parse(text)


@pytest.mark.parametrize("text", [None, "null", ""])
def test_no_claim(text: str | None) -> None:
    assert claimed.parse(text) is None


def test_decimals_tell_two_figures_apart() -> None:
    assert two(1.874, 1.874) == ("1.87", "1.87")
    assert two(1.871, 1.874) == ("1.871", "1.874")
    assert two(1.87, 1.91) == ("1.87", "1.91")


def test_total_variation() -> None:
    assert acceptance.total_variation([5, 5], [50, 50]) == 0
    assert acceptance.total_variation([1], [0, 1]) == 1
    assert acceptance.total_variation([6, 4], [5, 5]) == pytest.approx(0.1)


def test_first_difference() -> None:
    assert first_difference([1, 2], [1, 2]) is None
    assert first_difference([1, 2], [1, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2


def test_outcome() -> None:
    assert [outcome(each) for each in ((1.01, 1.2), (0.8, 0.99), (0.9, 1.1))] == [
        "pays",
        "does-not-pay",
        "undecided",
    ]


def test_without_a_baseline_nothing_is_said_of_losses(tmp_path: Path) -> None:
    answer = diagnosed(tmp_path / "r", Truth())
    for path in (tmp_path / "r/benchmark").glob("baseline*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    assert main(["diagnose", "--results", str(tmp_path / "r")]) == 0
    answer = json.loads((tmp_path / "r/diagnosis.json").read_text())
    assert "lossless" not in answer["verdict"]
    assert "outputs.not-lossless" not in {each["id"] for each in answer["findings"]}


def test_another_wrong_wiring_is_named_by_its_kind(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    write_results(folder, Truth(wrong_wiring=True, accept=0.2))
    file = folder / "accuracy/wiring.json"
    found = json.loads(file.read_text())
    found["best"] |= {
        "kinds": ["vocabulary-map"],
        "label": "d2t read as target ids",
        "setting": "none: the engine adds the draft id to every entry of d2t",
    }
    file.write_text(json.dumps(found))
    assert main(["diagnose", "--results", str(folder)]) == 0
    answer = json.loads((folder / "diagnosis.json").read_text())
    assert ids(answer)["wiring.wrong-vocabulary-map"] == "error"
    assert "its weights fit d2t read as target ids, accept length" in answer["verdict"]
    assert "the engine cannot be told so (the engine adds the draft id" in answer["verdict"]
