"""The target's weights: headers against config, families known in full, how they are quantised."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from draftproof.checkpoint.pair import Pair, read_pair
from draftproof.checkpoint.quantisation import packed_group, quantisation
from draftproof.checkpoint.validate import table, validation
from draftproof.files import schema_faults
from tests.builders import tiny_models
from tests.builders.checkpoints import tiny_draft
from tests.builders.checkpoints_targets import (
    INT4,
    KIMI,
    Headers,
    kimi,
    llama,
    write_headers,
    write_shards,
)

ENGINE = "sglang==0.5.23"
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def read(path: Path, config: dict[str, Any], shards: list[Headers]) -> Pair:
    """Read a draft beside a target of this config and these headers."""
    draft, target = tiny_draft(path)
    (target / "model.safetensors").unlink()
    (target / "config.json").write_text(json.dumps(config))
    write_shards(target, shards)
    return read_pair(draft, target, ENGINE)


def about_target(pair: Pair) -> dict[str, dict[str, Any]]:
    """Return the findings on the target itself, not on whether the draft goes with it."""
    answer = validation(pair)
    assert not schema_faults(answer, "validation")
    pairing = {"target.hidden-size", "target.vocab-size", "target.context-length"}
    found = answer["findings"]
    return {f["id"]: f for f in found if f["id"].startswith("target.") and f["id"] not in pairing}


def test_kimi_k25_int4_is_checked_in_full(tmp_path: Path) -> None:
    config, layers = kimi(layers=3, experts=5)
    pair = read(tmp_path, config, list(layers))
    assert about_target(pair) == {}
    answer = validation(pair)
    assert answer["target"]["quantisation"] == (
        "compressed-tensors (pack-quantized, 4 bits, groups of 32)"
    )
    tensors = 3 * 9 + 3 + 2 * (5 + 5 * 9) + 3
    assert answer["target"]["weights"]["tensors"] == tensors
    assert answer["target"]["weights"]["checked"] == tensors
    assert "4 bits, groups of 32)" in table(answer)


KIMI_FAULTS: dict[str, tuple[Callable[[Headers], object], str, str]] = {
    "an expert's scale": (
        lambda h: h.pop("language_model.model.layers.2.mlp.experts.4.up_proj.weight_scale"),
        "target.tensors-missing",
        "experts.4.up_proj.weight_scale",
    ),
    "an expert unpacked": (
        lambda h: h.update(
            {
                "language_model.model.layers.1.mlp.experts.0.up_proj.weight": h.pop(
                    "language_model.model.layers.1.mlp.experts.0.up_proj.weight_packed"
                )
            }
        ),
        "target.tensors-missing",
        "experts.0.up_proj.weight_packed",
    ),
    "attention packed": (
        lambda h: h.update(
            {
                "language_model.model.layers.0.self_attn.o_proj.weight_packed": (
                    "I32",
                    h.pop("language_model.model.layers.0.self_attn.o_proj.weight")[1],
                )
            }
        ),
        "target.tensors-missing",
        "self_attn.o_proj.weight",
    ),
    "groups of 128": (
        lambda h: h.update(
            {
                "language_model.model.layers.1.mlp.experts.3.down_proj.weight_scale": (
                    "BF16",
                    [7168, 16],
                )
            }
        ),
        "target.tensor-shape",
        "has shape [7168, 16], its config asks for [7168, 64]",
    ),
    "the router's bias": (
        lambda h: h.pop("language_model.model.layers.1.mlp.gate.e_score_correction_bias"),
        "target.tensors-missing",
        "e_score_correction_bias",
    ),
    "the head": (
        lambda h: h.pop("language_model.lm_head.weight"),
        "target.tensors-missing",
        "lm_head.weight",
    ),
    "a padded vocabulary": (
        lambda h: h.update({"language_model.model.embed_tokens.weight": ("BF16", [163968, 7168])}),
        "target.tensor-shape",
        "[163968, 7168]",
    ),
}


@pytest.mark.parametrize("name", KIMI_FAULTS)
def test_what_kimi_k25_lacks_is_named(tmp_path: Path, name: str) -> None:
    change, id, message = KIMI_FAULTS[name]
    config, layers = kimi(layers=3, experts=5)
    shards = list(layers)
    whole: Headers = {name: entry for shard in shards for name, entry in shard.items()}
    change(whole)
    found = about_target(read(tmp_path, config, [whole]))
    assert set(found) == {id}
    assert message in found[id]["message"]


def test_a_config_that_promises_endless_experts(tmp_path: Path) -> None:
    config, layers = kimi(layers=3, experts=5)
    config["text_config"]["n_routed_experts"] = 2**31
    found = about_target(read(tmp_path, config, list(layers)))
    assert "lacks at least" in found["target.tensors-missing"]["message"]
    assert len(found["target.tensors-missing"]["evidence"]["missing"]) == 40


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("LlamaForCausalLM", {}),
        ("LlamaForCausalLM", {"head_dim": 16, "tie_word_embeddings": True}),
        ("MistralForCausalLM", {"num_key_value_heads": 1}),
        ("Qwen2ForCausalLM", {"attention_bias": None}),
        ("Qwen3ForCausalLM", {"head_dim": 16}),
    ],
)
def test_families_known_in_full(tmp_path: Path, family: str, more: dict[str, Any]) -> None:
    draft, target = tiny_draft(tmp_path, target={"architectures": [family]} | more)
    pair = read_pair(draft, target, ENGINE)
    assert about_target(pair) == {}
    headers = llama(pair.target)
    assert pair.target_comparison.checked == len(headers)
    for name in headers:
        write_headers(target / "model.safetensors", {k: v for k, v in headers.items() if k != name})
        found = about_target(read_pair(draft, target, ENGINE))
        assert set(found) == {"target.tensors-missing"}, name


def test_a_family_not_known_in_full_is_checked_at_its_ends(tmp_path: Path) -> None:
    draft, target = tiny_draft(tmp_path, target={"architectures": ["Gemma3ForCausalLM"]})
    assert about_target(read_pair(draft, target, ENGINE)) == {}
    write_headers(target / "model.safetensors", {"model.embed_tokens.weight": ("F16", [64, 32])})
    found = about_target(read_pair(draft, target, ENGINE))
    assert set(found) == {"target.tensor-shape", "target.tensors-missing"}
    write_headers(target / "model.safetensors", {"transformer.wte.weight": ("F16", [64, 32])})
    assert about_target(read_pair(draft, target, ENGINE)) == {}


@pytest.mark.parametrize("family", ["llama", "deepseek"])
def test_targets_that_the_engine_serves_pass(tmp_path: Path, family: str) -> None:
    build = {"llama": tiny_models.tiny_llama_target, "deepseek": tiny_models.tiny_deepseek_target}
    target = build[family](tmp_path / "target")
    draft = tiny_models.tiny_draft(tmp_path / "draft", target, fit=False)
    pair = read_pair(draft, target, ENGINE)
    assert about_target(pair) == {}
    assert pair.target_comparison.checked > 40


def test_a_folder_of_the_hub_cache(tmp_path: Path) -> None:
    draft, target = tiny_draft(tmp_path)
    snapshot, blobs = tmp_path / "snapshots" / "abc", tmp_path / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, file in enumerate(sorted(target.iterdir())):
        file.rename(blobs / str(number))
        (snapshot / file.name).symlink_to(os.path.relpath(blobs / str(number), snapshot))
    assert about_target(read_pair(draft, snapshot, ENGINE)) == {}
    (snapshot / "model.safetensors").resolve().unlink()
    found = about_target(read_pair(draft, snapshot, ENGINE))
    assert set(found) == {"target.unreadable"}
    assert "model.safetensors" in found["target.unreadable"]["message"]


def missing_shard(target: Path) -> None:
    write_shards(target, [{"a": ("F16", [1])}, {"b": ("F16", [1])}])
    (target / "model-00002-of-00002.safetensors").unlink()


UNREADABLE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a shard is missing": (missing_shard, "model-00002-of-00002.safetensors, which is missing"),
    "LFS pointer": (
        lambda t: (t / "model.safetensors").write_text(
            "version https://git-lfs.github.com/spec/v1"
        ),
        "model.safetensors: is a Git-LFS pointer",
    ),
    "cut off": (
        lambda t: os.truncate(t / "model.safetensors", 20_000),
        "model.safetensors: is cut off: 20000 bytes of",
    ),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_target_that_is_half_there_is_a_finding(tmp_path: Path, name: str) -> None:
    draft, target = tiny_draft(tmp_path)
    change, message = UNREADABLE[name]
    change(target)
    pair = read_pair(draft, target, ENGINE)
    found = about_target(pair)
    assert set(found) == {"target.unreadable"}
    assert message in found["target.unreadable"]["message"]
    assert validation(pair)["status"] == "fail"


def test_a_target_without_weights_is_no_fault(tmp_path: Path) -> None:
    draft, target = tiny_draft(tmp_path)
    (target / "model.safetensors").unlink()
    (target / "model.safetensors.index.json").touch()
    pair = read_pair(draft, target, ENGINE)
    index_alone = about_target(pair)
    assert set(index_alone) == {"target.not-checked"}
    assert validation(pair)["status"] == "pass"
    assert "weights not checked" in table(validation(pair))
    assert "weights" not in validation(pair)["target"]


MODELOPT = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4"}}


@pytest.mark.parametrize(
    ("config", "file", "method", "place"),
    [
        ({"quantization_config": FP8}, None, "fp8", "config.json: quantization_config"),
        (
            {"text_config": {"quantization_config": INT4}},
            None,
            "compressed-tensors",
            "config.json: text_config.quantization_config",
        ),
        (
            {"compression_config": INT4},
            None,
            "compressed-tensors",
            "config.json: compression_config",
        ),
        (
            {"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}},
            None,
            "modelopt_fp8",
            "config.json: quantization_config",
        ),
        ({}, MODELOPT, "modelopt_fp4", "hf_quant_config.json"),
        ({"quantization_config": FP8}, MODELOPT, "fp8", "config.json: quantization_config"),
        ({"quantization_config": {"bits": 4}}, None, "", "config.json: quantization_config"),
        ({"quantization_config": "int4"}, None, "", "config.json: quantization_config"),
    ],
)
def test_how_a_target_says_it_is_quantised(
    tmp_path: Path, config: dict[str, Any], file: object, method: str, place: str
) -> None:
    if file is not None:
        (tmp_path / "hf_quant_config.json").write_text(json.dumps(file))
    found = quantisation(config, config.get("text_config", config), tmp_path)
    assert found is not None
    assert (found.method, found.place) == (method, place)
    assert quantisation({}, {}, tmp_path / "elsewhere") is None


@pytest.mark.parametrize(
    "changes",
    [
        {"ignore": ["re:(a+)+x"]},
        {"ignore": ["re:.*.*.*.*x"]},
        {"ignore": ["x"] * 30_000},
        {"ignore": "x"},
        {"format": "nvfp4-pack-quantized"},
        {"config_groups": {}},
        {"config_groups": {"a": {"targets": ["Linear"], "weights": {"num_bits": 3}}}},
    ],
)
def test_packing_that_is_not_known_is_not_judged(tmp_path: Path, changes: dict[str, Any]) -> None:
    found = quantisation({"quantization_config": INT4 | changes}, {}, tmp_path)
    assert found is not None
    assert packed_group(found) is None
    assert str(found).startswith("compressed-tensors")


def test_methods_are_those_of_the_engine() -> None:
    """The names in layers/quantization/__init__.py, read there without importing it."""
    import ast
    import importlib.util

    from draftproof.engines import facts

    package = importlib.util.find_spec("sglang")
    if package is None or not package.submodule_search_locations:
        pytest.skip("sglang is not installed")
    source = Path(package.submodule_search_locations[0], "srt/layers/quantization/__init__.py")
    names = {
        key.value
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant)
    }
    assert set(facts(ENGINE, "checkpoint")["quantisation_methods"]) == names


def test_the_real_kimi_k25_has_as_many_tensors_as_published() -> None:
    """208,550 tensors in all; 335 of them are the vision tower and its projector."""
    _, layers = kimi()
    assert sum(map(len, layers)) == 208_550 - 335
    assert KIMI["text_config"]["n_routed_experts"] == 384
