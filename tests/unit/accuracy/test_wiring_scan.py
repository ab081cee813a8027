"""Every wiring fault is named by evaluation: a text spoken by the draft as it was trained, scanned as it is configured."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftproof.cli import main
from draftproof.files import read_result
from tests.unit.accuracy.naive import NaiveDraft
from tests.unit.accuracy.spoken import spoken_capture

BOUNDARIES = (2, 3, 5)
IDS = "eagle_aux_hidden_state_layer_ids"


def ids(*numbers: int) -> dict[str, Any]:
    return {"eagle_config": {IDS: list(numbers)}}


def nothing(speaker: NaiveDraft) -> None:
    """The draft was trained as its config says."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """How a draft was `trained` (config lines, a change of the speaker), how it is `served`, and what must be said."""

    kinds: list[str]
    label: str
    setting: str
    trained: dict[str, Any] = field(default_factory=dict)
    served: dict[str, Any] = field(default_factory=dict)
    speaker: Callable[[NaiveDraft], object] = nothing
    boundaries: tuple[int, ...] = BOUNDARIES
    pairing: str = "engine"


def wider_rotary(speaker: NaiveDraft) -> None:
    speaker.rotary_width = 2 * speaker.size


def residual_behind_norm(speaker: NaiveDraft) -> None:
    speaker.residual_behind_norm = True


OWN = 1.5 * torch.randn(256, 64, generator=torch.Generator().manual_seed(9))


def own_embedding(speaker: NaiveDraft) -> None:
    speaker.embedding = OWN


FAULTS = {
    "the founding case": Fault(
        boundaries=(0, 2, 3),
        trained=ids(-1, 1, 2),
        served=ids(1, 2, 4),
        kinds=["boundaries"],
        label="boundaries (0, 2, 3), embedding included, the last left out",
        setting='"eagle_config": {"eagle_aux_hidden_state_layer_ids": [-1, 1, 2]}',
    ),
    "ids one too low": Fault(
        trained=ids(1, 2, 4),
        served=ids(0, 1, 3),
        kinds=["boundaries"],
        label="boundaries (2, 3, 5), one higher",
        setting='"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 4]}',
    ),
    "order": Fault(
        boundaries=(5, 2, 3),
        trained=ids(1, 2, 4),
        kinds=["order"],
        label="boundaries in the order (5, 2, 3)",
        setting="none: the engine feeds boundaries in ascending order",
    ),
    "a norm before fc": Fault(
        trained=ids(1, 2, 4) | {"norm_before_fc": True},
        served={"norm_before_fc": False},
        kinds=["norms"],
        label="norm before fc",
        setting='"norm_before_fc": true',
    ),
    "no norm before fc": Fault(
        trained=ids(1, 2, 4) | {"norm_before_fc": False},
        served={"eagle_config": {IDS: [1, 2, 4], "norm_before_fc": True}},
        kinds=["norms"],
        label="no norm before fc",
        setting='"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 4], "norm_before_fc": false}',
    ),
    "norms of each boundary": Fault(
        trained=ids(1, 2, 4) | {"fc_norm": True},
        served={"fc_norm": False},
        kinds=["norms"],
        label="norm of each boundary before fc",
        setting='"fc_norm": true',
    ),
    "norm_before_residual": Fault(
        trained=ids(1, 2, 4),
        speaker=residual_behind_norm,
        kinds=["norms"],
        label="residual taken behind the norm (norm_before_residual)",
        setting="none: the engine takes the residual before the norm",
    ),
    "post-norm feedback": Fault(
        trained=ids(1, 2, 4) | {"norm_output": True},
        served={"norm_output": False},
        kinds=["feedback"],
        label="feedback behind the final norm",
        setting='"norm_output": true',
    ),
    "theta": Fault(
        trained=ids(1, 2, 4) | {"rope_theta": 10000.0},
        served={"rope_theta": 500.0},
        kinds=["rope"],
        label="the target's rope theta 10000",
        setting='"rope_theta": 10000.0',
    ),
    "rotary table of a doubled hidden size": Fault(
        trained=ids(1, 2, 4) | {"rope_theta": 10000.0},
        speaker=wider_rotary,
        kinds=["rope"],
        label="rope frequencies of a head twice as wide, theta 100",
        setting='"rope_theta": 100.0',
    ),
    "each token with its own state": Fault(
        trained=ids(1, 2, 4),
        pairing="own state",
        kinds=["pairing"],
        label="each token's own state in one row",
        setting="none: the engine pairs each state with the token after it",
    ),
    "each state with its own token": Fault(
        trained=ids(1, 2, 4),
        pairing="earlier token",
        kinds=["pairing"],
        label="each state's own token in one row",
        setting="none: the engine pairs each state with the token after it",
    ),
    "the draft's own embedding": Fault(
        trained=ids(1, 2, 4),
        speaker=own_embedding,
        kinds=["embedding"],
        label="the draft's own embedding",
        setting="none: the engine puts the target's embedding in its place",
    ),
    "boundaries and feedback": Fault(
        boundaries=(0, 2, 3),
        trained=ids(-1, 1, 2) | {"norm_output": True},
        served=ids(1, 2, 4) | {"norm_output": False},
        kinds=["boundaries", "feedback"],
        label="boundaries (0, 2, 3), embedding included, the last left out; feedback behind the final norm",
        setting='"eagle_config": {"eagle_aux_hidden_state_layer_ids": [-1, 1, 2]}, "norm_output": true',
    ),
}


@pytest.fixture(autouse=True, scope="module")
def _one_thread() -> Iterator[None]:
    """Several threads on such small tensors wait for one another."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def scanned(make_draft, target, tmp_path) -> Callable[[Fault], tuple[dict, float]]:
    """Write the draft as trained, let it speak, change its config to what is served; return the scan and the truth."""

    def scan(fault: Fault) -> tuple[dict, float]:
        draft = make_draft(fault.trained, **{"embed_tokens.weight": OWN})
        speaker = NaiveDraft(draft, target)
        fault.speaker(speaker)
        truth = spoken_capture(
            tmp_path / "capture", speaker, fault.boundaries, pairing=fault.pairing
        )
        config = json.loads((draft / "config.json").read_text())
        (draft / "config.json").write_text(json.dumps(config | fault.served))
        assert accuracy(draft, target, tmp_path) == 0
        return read_result(tmp_path / "wiring.json", "wiring"), truth

    return scan


def accuracy(draft: Path, target: Path, folder: Path) -> int:
    pair = ["--draft", str(draft), "--target", str(target), "--samples", str(folder / "capture")]
    return main(["accuracy", *pair, "--steps", "3", "--wiring", str(folder / "wiring.json")])


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_wiring_is_named_with_its_setting(scanned, name: str) -> None:
    fault = FAULTS[name]
    found, truth = scanned(fault)
    best = found["best"]
    assert found["significant"], found["message"]
    assert (best["kinds"], best["label"]) == (fault.kinds, fault.label)
    assert best["setting"].startswith(fault.setting)
    assert best["accept_length"] == pytest.approx(truth, abs=0.02)
    assert best["difference_adjusted"][0] > 0
    assert found["configured"]["accept_length"] < best["accept_length"] - 0.1
    assert fault.label in found["message"]


def broken(draft: Path, **config: Any) -> None:
    """Change config lines of a draft; None leaves a key out."""
    own = json.loads((draft / "config.json").read_text()) | config
    kept = {key: value for key, value in own.items() if value is not None}
    (draft / "config.json").write_text(json.dumps(kept))


def absolute(draft: Path) -> None:
    tensors = load_file(draft / "model.safetensors")
    tensors["d2t"] = tensors["d2t"] + torch.arange(len(tensors["d2t"]))
    save_file(tensors, draft / "model.safetensors")


def doubled(draft: Path) -> None:
    broken(draft, hidden_size=128, head_dim=None)


@pytest.mark.parametrize(
    ("breaks", "kinds", "said", "setting"),
    [
        ([absolute], ["vocabulary-map"], "d2t read as target ids", "none: the engine adds"),
        (
            [doubled],
            ["sizes"],
            "the sizes of its tensors (hidden_size 64 and head_dim 16)",
            '"hidden_size": 64, "head_dim": 16',
        ),
        (
            [lambda draft: broken(draft, head_dim=8)],
            ["sizes"],
            "the sizes of its tensors (head_dim 16)",
            '"head_dim": 16',
        ),
        (
            [absolute, doubled],
            ["sizes", "vocabulary-map"],
            "the sizes of its tensors (hidden_size 64 and head_dim 16); d2t read as target ids",
            "none: the engine adds",
        ),
    ],
    ids=["absolute d2t", "doubled hidden size, no head_dim", "head_dim", "two faults"],
)
def test_a_draft_that_cannot_be_computed_as_configured_is_still_scanned(
    make_draft, target, tmp_path, capsys, breaks, kinds, said, setting
) -> None:
    kept = torch.arange(256)[torch.arange(256) % 8 != 1]
    draft = make_draft(ids(1, 2, 4), d2t=kept - torch.arange(224))
    truth = spoken_capture(tmp_path / "capture", NaiveDraft(draft, target), BOUNDARIES)
    for change in breaks:
        change(draft)
    assert accuracy(draft, target, tmp_path) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "As configured the draft cannot be computed" in line
    assert f"With {said} it reaches accept length" in line
    found = read_result(tmp_path / "wiring.json", "wiring")
    assert found["configured"] is None
    assert found["significant"]
    assert found["best"]["kinds"] == kinds
    assert found["best"]["setting"].startswith(setting)
    assert found["best"]["accept_length"] == pytest.approx(truth, abs=0.02)


def test_a_map_of_target_ids_that_stays_inside_the_vocabulary_is_found_by_evaluation(
    make_draft, target, tmp_path
) -> None:
    draft = make_draft(ids(1, 2, 4), d2t=torch.arange(224) // 100)
    truth = spoken_capture(tmp_path / "capture", NaiveDraft(draft, target), BOUNDARIES)
    tensors = load_file(draft / "model.safetensors")
    kept = tensors["d2t"] + torch.arange(224)
    # Half of the head, so that ids taken as offsets stay inside.
    tensors |= {
        "d2t": kept[:112].clone(),
        "lm_head.weight": tensors["lm_head.weight"][:112].clone(),
    }
    tensors.pop("t2d")
    save_file(tensors, draft / "model.safetensors")
    broken(draft, draft_vocab_size=112)
    assert accuracy(draft, target, tmp_path) == 0
    found = read_result(tmp_path / "wiring.json", "wiring")
    assert found["significant"], found["message"]
    assert found["best"]["kinds"] == ["vocabulary-map"]
    assert 1.1 < found["best"]["accept_length"] < truth


def test_a_draft_beyond_repair_says_what_is_wrong_and_nothing_else(
    make_draft, target, tmp_path, capsys
) -> None:
    draft = make_draft(ids(1, 2, 4))
    spoken_capture(tmp_path / "capture", NaiveDraft(draft, target), BOUNDARIES, samples=1)
    broken(draft, intermediate_size=96)
    assert accuracy(draft, target, tmp_path) == 2
    assert "config asks for" in capsys.readouterr().err
    assert not (tmp_path / "wiring.json").exists()


def test_what_the_capture_does_not_hold_is_said(make_draft, target, tmp_path) -> None:
    draft = make_draft(ids(1, 2, 4))
    speaker = NaiveDraft(draft, target)
    spoken_capture(
        tmp_path / "capture", speaker, BOUNDARIES, stored=(0, 2, 3, 5), samples=2, verify_steps=3
    )
    assert accuracy(draft, target, tmp_path) == 0
    found = read_result(tmp_path / "wiring.json", "wiring")
    assert found["not_tried"] == [
        {"kind": "boundaries", "reason": "the capture holds no boundaries 1, 4"},
        {"kind": "embedding", "reason": "the tensor embed_tokens.weight is missing"},
    ]
    assert not found["significant"]
    tried = {tuple(each["boundaries"]) for each in found["screened"]}
    assert {number for boundaries in tried for number in boundaries} == {0, 2, 3, 5}
