"""Asked and found are compared by meaning."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftproof.serving.identity import file_digest
from draftproof.serving.settings import same


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (3, 3),
        (3, "3"),
        ("4", 4),
        (0.5, "0.50"),
        (True, True),
        ("true", True),
        ("float32", "float32"),
        ("a/../b", "b"),
    ],
)
def test_same(asked: object, found: object) -> None:
    assert same(asked, found)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        (3, 4),
        (3, None),
        (None, "EAGLE3"),
        (True, False),
        ("float32", "bfloat16"),
        ("draft", "target"),
        (1, True),
    ],
)
def test_not_same(asked: object, found: object) -> None:
    assert not same(asked, found)


def test_a_sampled_digest_sees_other_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("draftproof.serving.identity.SAMPLED_ABOVE_BYTES", 2**20)
    file = tmp_path / "model.safetensors"
    digests = set()
    for fill in (b"a", b"b"):
        for size in (3 * 2**20, 3 * 2**20 + 1):
            file.write_bytes(fill * size)
            digests.add(file_digest(file))
    assert len(digests) == 4
