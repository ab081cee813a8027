"""Where the line lies between values that training leaves and values that only a broken export does."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftproof.checkpoint.pair import read_pair
from draftproof.checkpoint.validate import validation
from tests.builders.checkpoints import HIDDEN, INTERMEDIATE, VOCAB, tiny_draft, weight

ENGINE = "sglang==0.5.23"
DOWN = "midlayer.mlp.down_proj.weight"
SHAPE = (HIDDEN, INTERMEDIATE)


def ids(path: Path, **arguments: Any) -> set[str]:
    found = validation(read_pair(*tiny_draft(path, **arguments), ENGINE))["findings"]
    return {finding["id"] for finding in found}


def uniform(bound: float) -> Any:
    return np.random.default_rng(0).uniform(-bound, bound, SHAPE).astype(np.float32)


@pytest.mark.parametrize(
    "values",
    [
        uniform(INTERMEDIATE**-0.5),  # torch.nn.Linear
        uniform((6 / sum(SHAPE)) ** 0.5),  # Xavier
        weight(*SHAPE) * 0.02,  # transformers, initializer_range
        weight(*SHAPE) * 0.02 / 8,  # the same, less for the depth of 32 layers
        np.eye(*SHAPE, dtype=np.float32),
        weight(*SHAPE) * 10,
    ],
)
def test_initialised_and_trained_matrices_pass(tmp_path: Path, values: Any) -> None:
    assert ids(tmp_path, tensors={DOWN: values}) == set()


@pytest.mark.parametrize("factor", [1e-6, 1 / 65536, 448, 65536 / 8])
def test_matrices_without_their_scales_are_told(tmp_path: Path, factor: float) -> None:
    values = (weight(*SHAPE) / INTERMEDIATE**0.5 * factor).astype(np.float32)
    assert ids(tmp_path, tensors={DOWN: values}) == {"values.scale"}


@pytest.mark.parametrize("value", [1.0, 0.25, -0.25])
def test_a_norm_may_be_constant_a_matrix_not(tmp_path: Path, value: float) -> None:
    norm, matrix = np.full(HIDDEN, value, np.float32), np.full(SHAPE, value, np.float32)
    assert ids(tmp_path / "norm", tensors={"norm.weight": norm}) == set()
    assert ids(tmp_path / "matrix", tensors={DOWN: matrix}) == {"values.constant"}


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_an_embedding_that_is_replaced_may_hold_anything(tmp_path: Path, value: float) -> None:
    embedding = {"embed_tokens.weight": np.full((VOCAB, HIDDEN), value, np.float32)}
    assert ids(tmp_path, tensors=embedding) == {"embedding.overwritten"}


def test_an_embedding_that_is_used_may_not(tmp_path: Path) -> None:
    found = ids(
        tmp_path,
        config={"target_hidden_size": 64},
        target={"hidden_size": 64},
        tensors={
            "fc.weight": weight(HIDDEN, 192),
            "embed_tokens.weight": np.zeros((VOCAB, HIDDEN), np.float32),
        },
    )
    assert found == {"values.all-zero"}


@pytest.mark.parametrize(
    ("dtype", "value", "infinite"),
    [
        ("float16", 65504.0, False),
        ("float16", 65519.0, False),  # rounds to 65504
        ("float16", 65520.0, True),
        ("float32", 1e5, True),  # served as float16
        ("bfloat16", 1e5, False),
        ("bfloat16", 3.3895e38, False),
        ("bfloat16", 3.4e38, True),
    ],
)
def test_values_that_the_served_dtype_lacks(
    tmp_path: Path, dtype: str, value: float, infinite: bool
) -> None:
    norm = np.ones(HIDDEN, np.float32)
    norm[3] = value
    found = ids(tmp_path, config={"torch_dtype": dtype}, tensors={"norm.weight": norm})
    assert found == ({"values.range"} if infinite else set())
