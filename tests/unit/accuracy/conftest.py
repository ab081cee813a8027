"""Tiny targets and drafts, and texts with random states."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from draftproof.accuracy.load import load_draft
from draftproof.checkpoint.pair import read_pair
from tests.builders.tiny_models import tiny_draft, tiny_llama_target

ENGINE = "sglang==0.5.23"


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama_target(tmp_path_factory.mktemp("tiny") / "target")


@pytest.fixture
def make_draft(target: Path, tmp_path: Path) -> Callable[..., Path]:
    """Write a draft whose matrices are random, so that every part of the forward pass matters."""

    def make(config: Mapping[str, Any] | None = None, **tensors: torch.Tensor) -> Path:
        torch.manual_seed(3)
        noise = {
            "midlayer.self_attn.q_proj.weight": torch.randn(64, 128) * 0.2,
            "midlayer.self_attn.k_proj.weight": torch.randn(32, 128) * 0.2,
            "midlayer.self_attn.v_proj.weight": torch.randn(32, 128) * 0.2,
            "midlayer.self_attn.o_proj.weight": torch.randn(64, 64) * 0.2,
            "midlayer.mlp.down_proj.weight": torch.randn(64, 128) * 0.2,
            "midlayer.hidden_norm.weight": torch.rand(64) + 0.5,
            "midlayer.input_layernorm.weight": torch.rand(64) + 0.5,
            "midlayer.post_attention_layernorm.weight": torch.rand(64) + 0.5,
            "norm.weight": torch.rand(64) + 0.5,
            "input_norm.weight": torch.rand(192) + 0.5,
            **{f"fc_norm.{n}.weight": torch.rand(64) + 0.5 for n in range(3)},
        }
        sizes = {"head_dim": 16, "rope_theta": 500.0}
        return tiny_draft(
            tmp_path / "draft",
            target,
            fit=False,
            config=sizes | dict(config or {}),
            tensors=noise | tensors,
        )

    return make


@pytest.fixture
def load(target: Path) -> Callable[[Path], Any]:
    return lambda draft: load_draft(read_pair(draft, target, ENGINE))


@pytest.fixture
def text() -> tuple[torch.Tensor, torch.Tensor]:
    """States [14, 3, 64] and token ids [14]."""
    generator = torch.Generator().manual_seed(5)
    states = torch.randn(14, 3, 64, generator=generator)
    return states, torch.randint(3, 256, (14,), generator=generator)
