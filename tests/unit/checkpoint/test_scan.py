"""One pass over a tensor says what numpy says of it read whole."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftproof.checkpoint.safetensors_header import read_header
from draftproof.checkpoint.scan import Scan, scan
from tests.builders.checkpoints import write_safetensors

ACROSS_PIECES = (9 << 20) // 2  # more 16-bit values than one piece of 8 MiB holds
NUMPY = {"F64": np.float64, "F32": np.float32, "F16": np.float16}


def scanned(path: Path, dtype: str, values: Any) -> Scan:
    if dtype == "BF16":
        raw = (np.asarray(values, dtype=np.float32).view(np.uint32) >> 16).astype(np.uint16)
    else:
        raw = np.asarray(values).astype(NUMPY[dtype])
    file = write_safetensors(path / "m.safetensors", {"a": (dtype, [len(raw)], raw.tobytes())})
    return scan(read_header(file)["a"])


@pytest.mark.parametrize("dtype", [*NUMPY, "BF16"])
def test_what_a_pass_finds(tmp_path: Path, dtype: str) -> None:
    values = np.random.default_rng(0).standard_normal(ACROSS_PIECES) * 0.02
    values[7], values[-1] = -32.0, np.nan
    found = scanned(tmp_path, dtype, values)
    assert (found.not_finite, found.count, found.largest) == (1, ACROSS_PIECES, 32.0)
    assert found.rms == pytest.approx(0.02, rel=0.01)
    assert not found.constant
    assert not found.all_zero


@pytest.mark.parametrize("dtype", [*NUMPY, "BF16"])
@pytest.mark.parametrize(
    ("values", "constant", "all_zero", "largest"),
    [
        ([0.0, -0.0], True, True, 0.0),
        ([-0.5] * 70, True, False, 0.5),
        ([0.5] * 69 + [0.25], False, False, 0.5),
        ([np.inf, -np.inf], False, False, 0.0),
        ([np.nan] * 3, False, False, 0.0),
        ([], False, False, 0.0),
        ([3.0], True, False, 3.0),
    ],
)
def test_corner_cases(
    tmp_path: Path, dtype: str, values: list[float], constant: bool, all_zero: bool, largest: float
) -> None:
    found = scanned(tmp_path, dtype, values)
    assert (found.all_zero, found.largest) == (all_zero, largest)
    assert found.constant == constant or all_zero


def test_a_number_in_the_last_piece_alone_keeps_a_tensor_from_being_constant(
    tmp_path: Path,
) -> None:
    values = np.full(ACROSS_PIECES, 0.5)
    assert scanned(tmp_path, "BF16", values).constant
    values[-1] = 0.25
    assert not scanned(tmp_path, "BF16", values).constant


@pytest.mark.filterwarnings("error")
def test_numbers_whose_squares_are_too_large(tmp_path: Path) -> None:
    assert scanned(tmp_path, "F64", np.full(3, 1e200)).rms == np.inf
