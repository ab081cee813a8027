"""`draftproof bench` against a fake engine: right figures, and no fault that ends as a valid cell."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftproof.benchmark.records import read_records
from draftproof.cli import main
from draftproof.files import read_result
from tests.builders.fake_engine import STOP_TOKEN, Script
from tests.unit.benchmark.conftest import NEW_TOKENS, launch_record

WARMUP = 2
HEALTHY = Script(accepted=(0, 1, 3))
Engine = Callable[..., Path]


def bench(tmp_path: Path, launch: Path, capture: Path, *concurrency: int) -> int:
    return main(
        [
            *("bench", "--launch", str(launch), "--samples", str(capture)),
            *("--concurrency", *map(str, concurrency or (2,)), "--warmup", str(WARMUP)),
            *("--store", str(tmp_path / "store"), "--out", str(tmp_path / "bench.json")),
        ]
    )


def cell(tmp_path: Path, name: str = "spec-c2") -> dict[str, Any]:
    return read_result(tmp_path / "store" / name / "cell.json", "cell")


@pytest.mark.parametrize("incremental", [False, True])
def test_counts_are_exact_in_both_kinds_of_stream(
    tmp_path: Path, engine: Engine, capture: Path, incremental: bool
) -> None:
    launch = engine(Script(accepted=(0, 1, 3), incremental=incremental))
    assert bench(tmp_path, launch, capture) == 0
    found = cell(tmp_path)
    assert (found["status"], found["reasons"]) == ("valid", [])
    assert found["same_text_as_capture"] == 4, (
        "the stop token ends the third answer, as in the capture"
    )
    assert found["output_tokens"] == 3 * NEW_TOKENS + 5
    # 12 tokens: 1 from prefill, then 1, 2, 4, 1, 2 and a last step of 1 + 3 cut to 1; 5 tokens: 1, then 1, 2 and 1 of 4.
    spec = found["spec"]
    assert spec["histogram"] == [2 * 3 + 1, 2 * 3 + 1, 0, 2 * 3 + 1]
    assert spec["verify_steps"] == 6 * 3 + 3
    assert spec["accept_length"] == pytest.approx(1 + (8 * 3 + 4) / 21)
    assert spec["ci95"][0] <= spec["accept_length"] <= spec["ci95"][1]
    records = read_records(tmp_path / "store" / "spec-c2" / "requests.parquet")
    assert [record.id for record in records] == ["a-01", "b-01", "c-01", "d-01"]
    assert records[0].event_tokens == [1, 1, 2, 4, 1, 2, 1]
    assert records[2].output_ids[-1] == STOP_TOKEN
    assert all(record.start_s <= record.event_times_s[0] <= record.end_s for record in records)


def test_baseline_has_no_acceptance(tmp_path: Path, engine: Engine, capture: Path) -> None:
    assert bench(tmp_path, engine(Script(), "baseline"), capture, 1, 4) == 0
    assert cell(tmp_path, "baseline-c1")["spec"] is None
    listed = read_result(tmp_path / "bench.json", "benchmark")["cells"]
    assert [each["cell"] for each in listed] == ["baseline-c1", "baseline-c4"]
    assert [each["accept_length"] for each in listed] == [None, None]


def test_speed_is_that_of_the_engine(tmp_path: Path, engine: Engine, capture: Path) -> None:
    launch = engine(Script(event_s=0.05), "baseline")
    bench(tmp_path, launch, capture, 1, 4)
    one, four = cell(tmp_path, "baseline-c1"), cell(tmp_path, "baseline-c4")
    # The engine waits 50 ms after each token. A busy machine adds to that, and may hand on a first token late.
    assert one["decode_tokens_per_s"] < 25
    assert one["inter_token_s"]["median"] > 0.045
    assert one["wall_s"] > 0.99 * 41 * 0.05
    assert four["output_tokens_per_s"] > one["output_tokens_per_s"]


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (Script(accepted=(1,), flush_status=400), "the prefix cache could not be emptied: 400"),
        (Script(accepted=(1,), cached_tokens=3), "12 prompt tokens came from the prefix cache"),
        (Script(accepted=(1,), refuse_request=WARMUP), "1 of 4 requests failed; a-01: 500"),
        (Script(accepted=(1,), cut_request=WARMUP + 1), "1 of 4 requests failed; b-01: "),
        (
            Script(accepted=(1,), histogram_extra=1),
            "histogram counts 7 verify steps, the counter 6",
        ),
        (Script(accepted=(4,)), "4 drafts accepted in one step of at most 3"),
        (Script(accepted=(1,), draft_tokens=8), "drafts proposed in 6 steps of 3"),
        (Script(), "12 output tokens without one verify step: speculation did not run"),
    ],
)
def test_a_failing_check_makes_the_cell_invalid(
    tmp_path: Path, engine: Engine, capture: Path, script: Script, reason: str
) -> None:
    assert bench(tmp_path, engine(script), capture, 1) == 0
    found = cell(tmp_path, "spec-c1")
    assert found["status"] == "invalid"
    assert any(reason in each for each in found["reasons"]), found["reasons"]
    assert read_result(tmp_path / "bench.json", "benchmark")["cells"][0]["status"] == "invalid"


def test_baseline_that_speculates_is_invalid(tmp_path: Path, engine: Engine, capture: Path) -> None:
    bench(tmp_path, engine(HEALTHY, "baseline"), capture)
    assert (
        "verify steps in a server without speculation"
        in cell(tmp_path, "baseline-c2")["reasons"][0]
    )


def test_finished_cells_are_kept_and_only_missing_ones_measured(
    tmp_path: Path, engine: Engine, capture: Path
) -> None:
    launch = engine(HEALTHY)
    bench(tmp_path, launch, capture, 1)
    first = (tmp_path / "store/spec-c1/requests.parquet").stat().st_mtime_ns
    bench(tmp_path, launch, capture, 1, 2)
    assert (tmp_path / "store/spec-c1/requests.parquet").stat().st_mtime_ns == first
    assert cell(tmp_path)["status"] == "valid"


@pytest.mark.parametrize("damage", ["launch", "prompts", "parquet", "json", "invalid"])
def test_old_unreadable_and_invalid_cells_are_measured_again(
    tmp_path: Path, engine: Engine, capture: Path, damage: str
) -> None:
    launch = engine(HEALTHY)
    bench(tmp_path, launch, capture)
    store = tmp_path / "store" / "spec-c2"
    first = cell(tmp_path)
    if damage == "launch":
        launch.write_text(json.dumps(json.loads(launch.read_text()) | {"digest": "another"}))
    elif damage == "prompts":
        manifest = json.loads((capture / "manifest.json").read_text())
        (capture / "manifest.json").write_text(
            json.dumps(manifest | {"max_new_tokens": NEW_TOKENS + 1})
        )
    elif damage == "parquet":
        (store / "requests.parquet").write_bytes((store / "requests.parquet").read_bytes()[:100])
    elif damage == "json":
        (store / "cell.json").write_text("{")
    else:
        (store / "cell.json").write_text(
            json.dumps(first | {"status": "invalid", "reasons": ["x"]})
        )
    assert bench(tmp_path, launch, capture) == 0
    assert cell(tmp_path)["status"] == "valid"
    assert cell(tmp_path)["wall_s"] != first["wall_s"]


def test_kept_cells_need_no_server(tmp_path: Path, engine: Engine, capture: Path) -> None:
    launch = engine(HEALTHY)
    bench(tmp_path, launch, capture)
    gone = json.loads(launch.read_text()) | {
        "url": "http://127.0.0.1:9",
        "stopped_at": "2026-01-01T00:00:00+00:00",
    }
    launch.write_text(json.dumps(gone))
    assert bench(tmp_path, launch, capture) == 0
    assert bench(tmp_path, launch, capture, 3) == 2


def test_server_that_is_gone_is_one_line(
    tmp_path: Path, capture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launch = tmp_path / "launch.json"
    launch.write_text(json.dumps(launch_record("http://127.0.0.1:9")))
    assert bench(tmp_path, launch, capture) == 2
    assert "no server is ready at http://127.0.0.1:9" in capsys.readouterr().err
    assert not (tmp_path / "bench.json").exists()


def test_server_that_dies_on_the_way_leaves_finished_cells_alone(
    tmp_path: Path, engine: Engine, capture: Path
) -> None:
    launch = engine(Script(accepted=(1,), crash_at_request=WARMUP + 4 + WARMUP + 1))
    assert bench(tmp_path, launch, capture, 1, 2) == 2
    assert cell(tmp_path, "spec-c1")["status"] == "valid"
    assert not (tmp_path / "bench.json").exists()


def test_another_server_at_the_address_is_refused(
    tmp_path: Path, engine: Engine, capture: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(tmp_path, engine(Script(settings={"model_path": "other"})), capture) == 2
    assert "another server answers: it has 'other', not 'target'" in capsys.readouterr().err


@pytest.mark.parametrize("fault", ["missing", "cut", "short"])
def test_unusable_capture_is_one_line(
    tmp_path: Path, capture: Path, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    sample = capture / "b-01.safetensors"
    if fault == "missing":
        sample.unlink()
    elif fault == "cut":
        sample.write_bytes(sample.read_bytes()[:50])
    else:
        sample.write_bytes((capture / "a-01.safetensors").read_bytes())
    launch = tmp_path / "launch.json"
    launch.write_text(json.dumps(launch_record("http://127.0.0.1:9")))
    assert bench(tmp_path, launch, capture) == 2
    assert "b-01.safetensors" in capsys.readouterr().err.strip().splitlines()[-1]
