"""Checkpoints that the trainers themselves wrote: recognised, judged truly, converted, and computed as they compute.

What each trainer's own forward pass gave for one input stands beside its checkpoint (tests/fixtures/checkpoints).
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from draftproof.accuracy.acceptance import matches
from draftproof.accuracy.draft import Draft
from draftproof.accuracy.layer import norm
from draftproof.accuracy.load import load_draft
from draftproof.checkpoint.pair import read_pair
from draftproof.checkpoint.safetensors_header import read_header
from draftproof.checkpoint.validate import validation
from draftproof.cli import main
from draftproof.engines import facts
from draftproof.files import read_result

ENGINE = "sglang==0.5.23"
FIXTURES = Path(__file__).parents[2] / "fixtures" / "checkpoints"
TARGET = FIXTURES / "target"
DEFAULTS, OTHERS = [2, 4, 5], [0, 3, 6]
LARGEST_ERROR = 2e-5  # float32 through another order of operations


@dataclass(frozen=True)
class Written:
    """What must be said of a checkpoint; ``same``: the engine computes with it as its trainer did."""

    dialect: str
    findings: frozenset[str]
    boundaries: list[int]
    same: bool = True


def written(
    dialect: str, *findings: str, boundaries: list[int] = DEFAULTS, same: bool = True
) -> Written:
    return Written(dialect, frozenset(findings), boundaries, same)


FIRST, EMBEDDING, WINDOW = "draft.convert-first", "embedding.overwritten", "meaning.sliding-window"
RESIDUAL, ROPE, UNNAMED = "norms.before-residual", "rope.differs", "boundaries.default"
DTYPE, TWICE = "config.dtype-differs", "meaning.modelopt-first-norm"
CHECKPOINTS = {
    "speculators-0.3.0": written("speculators", FIRST, EMBEDDING),
    "speculators-0.3.0-before-residual": written(
        "speculators", FIRST, EMBEDDING, RESIDUAL, same=False
    ),
    # The package's converter left the scaling behind, and nothing in the checkpoint tells.
    "speculators-0.3.0-converted": written("speculators", FIRST, ROPE, DTYPE, same=False),
    "speculators-0.5.0": written("speculators", FIRST, EMBEDDING),
    "speculators-0.9.0": written("speculators", FIRST, EMBEDDING, WINDOW),
    "speculators-0.9.0-converted": written("speculators", FIRST, DTYPE),
    "speculators-0.9.0-defaults": written(
        "speculators", FIRST, EMBEDDING, WINDOW, RESIDUAL, same=False
    ),
    "speculators-0.9.0-fc-norm": written(
        "speculators", FIRST, EMBEDDING, WINDOW, boundaries=OTHERS
    ),
    "speculators-0.9.0-qwen3": written(
        "speculators", FIRST, EMBEDDING, WINDOW, "tensors.dropped", same=False
    ),
    "speculators-0.9.0-two-layers": written("speculators", FIRST, EMBEDDING, WINDOW),
    "speculators-0.9.0-whole-vocabulary": written("speculators", FIRST, EMBEDDING),
    "specforge-0.2.0": written("specforge", UNNAMED),
    "specforge-0.2.0-3.1": written("specforge", UNNAMED, "norms.output-specforge"),
    "specforge-0.2.0-bare-head": written("specforge", UNNAMED, "norms.bare-head", same=False),
    "specforge-0.2.0-hf": written("specforge", EMBEDDING, boundaries=[1, 4, 7]),
    "specforge-0.2.0-p-eagle": written("p-eagle", "draft.not-eagle3", same=False),
    "specforge-0.2.0-yarn": written("specforge", UNNAMED, ROPE),
    "modelopt-0.37.0": written("modelopt", ROPE),
    "modelopt-0.47.0": written("modelopt", ROPE, TWICE, same=False),
    "modelopt-0.47.0-even": written("modelopt", ROPE),
    "modelopt-0.47.0-even-yarn": written("modelopt", ROPE, same=False),
}
REFUSED = [
    name
    for name, found in CHECKPOINTS.items()
    if found.findings & {RESIDUAL, "tensors.dropped", "draft.not-eagle3", "norms.bare-head"}
]
SERVED = [name for name in CHECKPOINTS if name not in REFUSED]
# What a converted checkpoint computes was recorded where it came from.
REFERENCES = {name: name for name in CHECKPOINTS if name != "specforge-0.2.0-p-eagle"} | {
    "speculators-0.3.0-converted": "specforge-0.2.0",
    "speculators-0.9.0-converted": "specforge-0.2.0",
}
# What the engine computes otherwise and no converter can mend, though the draft drafts.
WARNED = {"modelopt-0.47.0": TWICE, "modelopt-0.47.0-even-yarn": ROPE}


def validate(draft: Path) -> dict[str, Any]:
    return validation(read_pair(draft, TARGET, ENGINE))


def convert(draft: Path, place: Path) -> tuple[int, Path]:
    """Return convert's exit code and what it was told to write."""
    file, out = place / "validation.json", place / "out"
    pair = ["--draft", str(draft), "--target", str(TARGET)]
    main(["validate", *pair, "--json", str(file)])
    return main(["convert", *pair, "--validation", str(file), "--out", str(out)]), out


def stored(draft: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Return {name: dtype, shape and bytes} of the draft's tensors."""
    content = (draft / "model.safetensors").read_bytes()
    return {
        name: (t.dtype, t.shape, content[t.begin : t.end])
        for name, t in read_header(draft / "model.safetensors").items()
    }


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def compute(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that gives the draft's logits and tokens, fed with the tokens that the trainer's model was fed."""

    def run(draft: Draft, name: str) -> tuple[Tensor, Tensor, Tensor]:
        given = load_file(FIXTURES / "input.safetensors")
        kept = load_file(FIXTURES / f"{REFERENCES[name]}.reference.safetensors")
        rows = len(given["token_ids"]) - 2
        fed, expected = kept["fed"][:, :rows], kept["logits"][:, :rows]
        logits: list[Tensor] = []
        tokens: list[Tensor] = []
        own = Draft.choose

        def choose(self: Draft, output: Tensor) -> tuple[Tensor, Tensor]:
            chosen, feedback = own(self, output)
            tokens.append(chosen)
            normed = norm(output, self.weights["norm.weight"], self.eps)
            logits.append(functional.linear(normed, self.head))
            return fed[min(len(logits), len(fed) - 1)], feedback

        monkeypatch.setattr(Draft, "choose", choose)
        ids = given["token_ids"]
        matches(draft, given["states"], ids, ids, 0, len(fed))
        monkeypatch.undo()
        return torch.stack(logits), torch.stack(tokens), expected

    return run


def test_every_checkpoint_says_who_wrote_it_and_all_of_them_stay_small() -> None:
    folders = {path.name for path in FIXTURES.iterdir() if path.is_dir()}
    assert folders - {"target", "__pycache__"} == set(CHECKPOINTS)
    for name in CHECKPOINTS:
        record = json.loads((FIXTURES / name / "written_by.json").read_text())
        tool = record["tool"].removeprefix("nvidia-")
        assert name.startswith(f"{tool}-{record['version']}")
        assert {"torch", "transformers", "called", "seed"} <= set(record)
        config = json.loads((FIXTURES / name / "config.json").read_text())
        assert config.get("speculators_version", record["version"]) == record["version"]
    files = [path for path in FIXTURES.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 2e6


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_it_is_recognised_and_judged_truly(name: str) -> None:
    answer, expected = validate(FIXTURES / name), CHECKPOINTS[name]
    assert answer["dialect"] == expected.dialect
    assert {finding["id"] for finding in answer["findings"]} == expected.findings
    assert answer["effective"]["boundaries"]["value"] == expected.boundaries


@pytest.mark.parametrize("name", SERVED)
def test_conversion_gives_what_the_engine_reads(tmp_path: Path, name: str) -> None:
    draft = FIXTURES / name
    given = validate(draft)
    code, out = convert(draft, tmp_path)
    assert code == 0
    record = read_result(out / "conversion.json", "conversion")
    renamed, source = record["tensors"]["renamed"], stored(draft)
    assert stored(out) == {renamed.get(tensor, tensor): found for tensor, found in source.items()}
    config = json.loads((out / "config.json").read_text())
    assert config["architectures"][0] in facts(ENGINE, "checkpoint")["draft_architectures"]
    assert config["model_type"] == "llama"
    assert not set(config) & {"transformer_layer_config", "speculators_config"}
    assert set(record["values"]) == set(config)
    assert all(value["origin"] for value in record["values"].values())
    again = validate(out)
    assert again["effective"] == given["effective"]
    assert FIRST not in {finding["id"] for finding in again["findings"]}
    assert (out / "config.json").stat().st_ino != (draft / "config.json").stat().st_ino


@pytest.mark.parametrize(
    "name", [name for name in REFUSED if RESIDUAL in CHECKPOINTS[name].findings]
)
def test_a_residual_behind_the_norm_is_refused_with_the_alternatives(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    code, out = convert(FIXTURES / name, tmp_path)
    assert code == 1
    refusal = capsys.readouterr().out.splitlines()[-1]
    assert refusal.startswith("refused: norms.before-residual: norm_before_residual is true")
    assert "Train" in refusal
    assert "vLLM" in refusal
    assert not out.exists()


@pytest.mark.parametrize("name", [name for name in SERVED if CHECKPOINTS[name].same])
def test_what_is_served_computes_what_its_trainer_computes(
    tmp_path: Path, name: str, compute: Any
) -> None:
    """Logits of three steps to float32 accuracy, and the same tokens drafted."""
    code, out = convert(FIXTURES / name, tmp_path)
    assert code == 0
    draft = load_draft(read_pair(out, TARGET, ENGINE))
    logits, tokens, expected = compute(draft, name)
    assert (logits - expected).abs().max() < LARGEST_ERROR
    assert torch.equal(tokens, draft.to_target[expected.argmax(-1)])


@pytest.mark.parametrize("name", [name for name in REFERENCES if not CHECKPOINTS[name].same])
def test_the_others_differ_from_the_first_step_on(name: str, compute: Any) -> None:
    """So a comparison of logits does tell a wrong reading from a right one."""
    logits, _, expected = compute(load_draft(read_pair(FIXTURES / name, TARGET, ENGINE)), name)
    assert (logits - expected).abs().amax(dim=(1, 2)).min() > 0.1


def test_specforge_feeds_back_the_state_before_the_norm(compute: Any) -> None:
    """With its config as it is, the first step would be right and the others wrong."""
    name = "specforge-0.2.0-3.1"
    draft = load_draft(read_pair(FIXTURES / name, TARGET, ENGINE))
    logits, _, expected = compute(replace(draft, norm_output=True), name)
    wrong = (logits - expected).abs().amax(dim=(1, 2))
    assert wrong[0] < LARGEST_ERROR
    assert wrong[1:].min() > 0.1


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, found in CHECKPOINTS.items()
        if not found.same and name != "speculators-0.3.0-converted"
    ],
)
def test_what_the_engine_computes_otherwise_is_said(name: str) -> None:
    answer = validate(FIXTURES / name)
    if name in WARNED:
        assert WARNED[name] in {finding["id"] for finding in answer["findings"]}
    else:
        assert answer["status"] == "fail"


@pytest.mark.parametrize("version", ["0.3.0", "0.5.0"])
def test_old_speculators_names_another_dtype_than_it_stores(tmp_path: Path, version: str) -> None:
    draft = FIXTURES / f"speculators-{version}"
    assert json.loads((draft / "config.json").read_text())["dtype"] == "float32"
    assert {dtype for dtype, _, _ in stored(draft).values()} == {"BF16", "I64", "BOOL"}
    _, out = convert(draft, tmp_path)
    served = read_result(out / "conversion.json", "conversion")["values"]["dtype"]
    assert served == {"value": "bfloat16", "origin": "how the weights are stored"}
