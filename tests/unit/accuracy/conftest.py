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
HEADS = {"q_proj": (64, 128), "k_proj": (32, 128), "v_proj": (32, 128)}
LATENT = {
    "q_a_proj": (64, 128),
    "q_b_proj": (96, 64),
    "kv_a_proj_with_mqa": (136, 128),
    "kv_b_proj": (128, 128),
}


@pytest.fixture(scope="session")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama_target(tmp_path_factory.mktemp("tiny") / "target")


@pytest.fixture
def make_draft(target: Path, tmp_path: Path) -> Callable[..., Path]:
    """Write a draft whose matrices are random, so that every part of the forward pass matters."""

    def make(
        config: Mapping[str, Any] | None = None,
        *,
        layers: int = 1,
        latent: bool = False,
        **tensors: torch.Tensor,
    ) -> Path:
        torch.manual_seed(3)
        attention = "midlayer.self_attn"
        noise = {
            f"{attention}.o_proj.weight": torch.randn(64, 64) * 0.2,
            "midlayer.mlp.down_proj.weight": torch.randn(64, 128) * 0.2,
            "midlayer.hidden_norm.weight": torch.rand(64) + 0.5,
            "midlayer.input_layernorm.weight": torch.rand(64) + 0.5,
            "midlayer.post_attention_layernorm.weight": torch.rand(64) + 0.5,
            "norm.weight": torch.rand(64) + 0.5,
            "input_norm.weight": torch.rand(192) + 0.5,
            **{f"fc_norm.{n}.weight": torch.rand(64) + 0.5 for n in range(3)},
        }
        shapes = LATENT if latent else HEADS
        noise |= {f"{attention}.{k}.weight": torch.randn(*v) * 0.2 for k, v in shapes.items()}
        # Without scaling of positions: the naive draft has none.
        sizes = {"rope_theta": 500.0} | ({"rope_scaling": None} if latent else {"head_dim": 16})
        if layers > 1:
            later = "layers.1.self_attn"
            narrow = {name: (rows, 64) for name, (rows, _) in HEADS.items()} | {"o_proj": (64, 64)}
            noise |= {f"{later}.{k}.weight": torch.randn(*v) * 0.2 for k, v in narrow.items()}
        return tiny_draft(
            tmp_path / "draft",
            target,
            layers=layers,
            latent=latent,
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
