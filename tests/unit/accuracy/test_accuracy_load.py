import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftproof.accuracy.load import boundaries_of
from draftproof.checkpoint.pair import read_pair
from draftproof.errors import InputError
from tests.unit.accuracy.conftest import ENGINE


def without(path, *names: str):
    tensors = load_file(path / "model.safetensors")
    for name in names:
        del tensors[name]
    save_file(tensors, path / "model.safetensors")
    return path


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"num_hidden_layers": 2}, r"layers\.1\.self_attn\.\w+\.weight is missing"),
        ({"hidden_act": "gelu"}, "silu only"),
        ({"intermediate_size": 96}, "config asks for"),
        ({"head_dim": 8}, "config asks for"),
        ({"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "dynamic"),
    ],
    ids=str,
)
def test_drafts_that_cannot_be_computed_are_refused(make_draft, load, config, said) -> None:
    with pytest.raises(InputError, match=said):
        load(make_draft(config))


def test_a_missing_matrix_is_refused_and_a_missing_norm_is_ones(make_draft, load) -> None:
    path = without(make_draft(), "midlayer.hidden_norm.weight")
    assert torch.equal(load(path).layers[0].weights["hidden_norm.weight"], torch.ones(64))
    with pytest.raises(InputError, match=r"mlp\.up_proj\.weight is missing"):
        load(without(path, "midlayer.mlp.up_proj.weight"))


def test_a_missing_head_is_refused(make_draft, load) -> None:
    with pytest.raises(InputError, match="lm_head"):
        load(without(make_draft(), "lm_head.weight"))


def test_nan_weights_are_refused(make_draft, load) -> None:
    with pytest.raises(InputError, match="NaN"):
        load(make_draft(**{"norm.weight": torch.full((64,), float("nan"))}))


def test_a_map_that_leaves_the_vocabulary_is_refused(make_draft, load) -> None:
    with pytest.raises(InputError, match="d2t leads to ids"):
        load(make_draft(d2t=torch.arange(224)))


def test_boundaries_are_those_the_engine_feeds(make_draft, target) -> None:
    path = make_draft()
    assert boundaries_of(read_pair(path, target, ENGINE)) == (2, 4, 5)
    config = json.loads((path / "config.json").read_text())
    config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] = [1, 1, 4]
    (path / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="captures 2 boundaries"):
        boundaries_of(read_pair(path, target, ENGINE))
