"""One small draft in every writer's hand: recognised, judged without untrue findings, and converted to one thing."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from draftproof.checkpoint.findings import RULES
from draftproof.checkpoint.pair import read_pair
from draftproof.checkpoint.validate import validation
from draftproof.cli import main
from draftproof.files import read_result
from tests.builders.checkpoints import IDS_KEY, shard, tiny_draft
from tests.builders.checkpoints_dialects import DIALECTS, OTHERS, modelopt, speculators

ENGINE = "sglang==0.5.23"


def validate(paths: tuple[Path, Path]) -> dict[str, Any]:
    return validation(read_pair(*paths, ENGINE))


def ids(answer: dict[str, Any]) -> set[str]:
    return {finding["id"] for finding in answer["findings"]}


def convert(draft: Path, target: Path, out: Path) -> int:
    file = out.with_suffix(".json")
    pair = ["--draft", str(draft), "--target", str(target)]
    main(["validate", *pair, "--json", str(file)])
    return main(["convert", *pair, "--validation", str(file), "--out", str(out)])


@pytest.mark.parametrize("name", DIALECTS)
def test_a_healthy_draft_is_recognised_and_judged_truly(tmp_path: Path, name: str) -> None:
    healthy = DIALECTS[name]
    answer = validate(tiny_draft(tmp_path, change=healthy.build))
    assert answer["dialect"] == healthy.dialect
    assert ids(answer) == healthy.findings
    assert answer["status"] != "fail"
    assert answer["effective"]["boundaries"]["value"] == [2, 6, 9]


@pytest.mark.parametrize("name", OTHERS)
def test_other_checkpoints_are_told_apart(tmp_path: Path, name: str) -> None:
    build, word = OTHERS[name]
    answer = validate(tiny_draft(tmp_path, change=build))
    assert answer["dialect"] == name
    assert ids(answer) == {"draft.not-eagle3"}
    assert word in answer["findings"][0]["fix"]
    algorithm = answer["effective"]["algorithm"]["value"]
    assert algorithm is None or algorithm in answer["findings"][0]["fix"]


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("name", DIALECTS)
def test_conversion_gives_what_the_engine_reads(tmp_path: Path, name: str, sharded: bool) -> None:
    draft, target = tiny_draft(tmp_path, change=DIALECTS[name].build)
    source = load_file(draft / "model.safetensors")
    if sharded:
        shard(draft)
    given, out = validate((draft, target)), tmp_path / "out"
    assert convert(draft, target, out) == 0
    record = read_result(out / "conversion.json", "conversion")
    served: dict[str, Any] = {}
    for file in out.glob("*.safetensors"):
        served |= load_file(file)
    renamed = record["tensors"]["renamed"]
    assert set(served) == {renamed.get(tensor, tensor) for tensor in source}
    for tensor, values in source.items():
        assert np.array_equal(served[renamed.get(tensor, tensor)], values)
    config = json.loads((out / "config.json").read_text())
    assert set(record["values"]) == set(config)
    # What is served needs no conversion, and is what validation said it would be.
    again = validate((out, target))
    needs = {"draft.convert-first", "config.architecture", "norms.output-specforge"}
    assert not ids(again) & needs
    assert again["effective"] == given["effective"]
    assert convert(out, target, tmp_path / "twice") == 0
    assert (tmp_path / "twice" / "config.json").read_text() == (out / "config.json").read_text()
    assert not read_result(tmp_path / "twice" / "conversion.json", "conversion")["tensors"][
        "renamed"
    ]


def test_one_wiring_in_every_hand(tmp_path: Path) -> None:
    """The same tensors mean the same model, whoever wrote them."""
    same = ("boundaries", "rope", "head_dim", "norm_output", "norm_before_fc", "draft_vocab_size")
    found = [
        {
            key: validate(tiny_draft(tmp_path / name, change=DIALECTS[name].build))["effective"][
                key
            ]["value"]
            for key in same
        }
        for name in ("eagle", "specforge", "speculators 0.3", "speculators flat", "modelopt")
    ]
    assert all(one == found[0] for one in found)


@pytest.mark.parametrize(
    ("architecture", "build", "written", "served", "boundaries"),
    [
        ("LlamaForCausalLM", speculators, [3, 6, 10], [2, 5, 9], [3, 6, 10]),
        ("LlamaForCausalLM", speculators, [0, 3, 6], [-1, 2, 5], [0, 3, 6]),
        ("DeepseekV3ForCausalLM", speculators, [3, 6, 10], [3, 6, 10], [3, 6, 10]),
        ("DeepseekV3ForCausalLM", speculators, [1, 6, 10], [6, 10, 1], [1, 6, 10]),
        ("GptOssForCausalLM", speculators, [3, 6, 12], [2, 5, 11], [3, 6, 12]),
        ("LlamaForCausalLM", modelopt, [2, 5, 9], [2, 5, 9], [3, 6, 10]),
        ("DeepseekV3ForCausalLM", modelopt, [2, 5, 9], [3, 6, 10], [3, 6, 10]),
        ("LlamaForCausalLM", modelopt, [], [1, 5, 8], [2, 6, 9]),
    ],
)
def test_ids_are_translated_for_the_target(
    tmp_path: Path,
    architecture: str,
    build: Any,
    written: list[int],
    served: list[int],
    boundaries: list[int],
) -> None:
    def change(parts: Any) -> None:
        build(parts)
        place = parts.config if build is speculators else parts.config["eagle_config"]
        place[IDS_KEY] = written
        parts.target["architectures"] = [architecture]

    draft, target = tiny_draft(tmp_path, change=change)
    assert validate((draft, target))["effective"]["boundaries"]["value"] == boundaries
    assert convert(draft, target, tmp_path / "out") == 0
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["eagle_config"][IDS_KEY] == served


def test_norm_before_residual_is_refused_with_the_alternatives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def change(parts: Any) -> None:
        speculators(parts)
        parts.config["norm_before_residual"] = True

    draft, target = tiny_draft(tmp_path, change=change)
    assert convert(draft, target, tmp_path / "out") == 1
    refusal = capsys.readouterr().out.splitlines()[-1]
    assert refusal.startswith("refused: norms.before-residual: norm_before_residual is true")
    assert "vLLM" in refusal
    assert "Train" in refusal
    assert not (tmp_path / "out").exists()


def test_conversion_says_where_each_value_is_from(tmp_path: Path) -> None:
    draft, target = tiny_draft(tmp_path, change=speculators)
    assert convert(draft, target, tmp_path / "out") == 0
    record = read_result(tmp_path / "out" / "conversion.json", "conversion")
    origins = {key: value["origin"] for key, value in record["values"].items()}
    assert origins["hidden_size"] == "transformer_layer_config of the draft's config.json"
    assert origins["draft_vocab_size"] == "draft's config.json"
    assert origins["architectures"] == "the tensors' layout"
    assert origins["tie_word_embeddings"] == "draft's config.json"
    assert origins["eagle_config"] == (
        "default of speculators, boundaries [2, 6, 9] of this target"
    )
    assert "target_hidden_size" in record["left_out"]


def test_the_page_of_rules_is_current() -> None:
    from draftproof.checkpoint.findings import page

    committed = Path(__file__).parents[3] / "workflow" / "checkpoint-rules.md"
    assert committed.read_text() == page()
    assert all(f"`{id}`" in page() for id in RULES)
