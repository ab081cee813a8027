import pytest
import torch

from draftproof.accuracy.load import deepseek_yarn
from draftproof.accuracy.rotary import rotary_of
from draftproof.errors import InputError

SIZES = {"hidden_size": 64, "heads": 4, "head_dim": 32, "positions": 4096}
SCALED = {
    "linear": {"factor": 4.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 1024,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 1024},
}


def test_default_frequencies_follow_head_dim_not_hidden_size() -> None:
    table = rotary_of({"type": "default", "theta": 100.0, "scaling": None}, **SIZES)
    expected = 100.0 ** (-torch.arange(0, 32, 2) / 32)
    torch.testing.assert_close(table.inverse, expected)
    assert table.scale == 1.0


@pytest.mark.parametrize("kind", SCALED)
def test_scaled_tables_rotate_like_transformers(kind: str) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    table = rotary_of({"type": kind, "theta": 10000.0, "scaling": SCALED[kind]}, **SIZES)
    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        head_dim=32,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": kind, "rope_theta": 10000.0, **SCALED[kind]},
    )
    x = torch.randn(6, 4, 32, generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([0, 1, 7, 900, 2000, 4000])
    cos, sin = LlamaRotaryEmbedding(config)(x, positions[None])
    expected, _ = apply_rotary_pos_emb(x.transpose(0, 1)[None], x.transpose(0, 1)[None], cos, sin)
    torch.testing.assert_close(table.rotate(x, positions), expected[0].transpose(0, 1))
    plain = rotary_of({"type": "default", "theta": 10000.0, "scaling": None}, **SIZES)
    assert not torch.allclose(plain.rotate(x, positions), expected[0].transpose(0, 1), atol=1e-3)


def test_deepseeks_yarn_is_that_of_transformers() -> None:
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import (
        DeepseekV3Attention,
        DeepseekV3RotaryEmbedding,
        apply_rotary_pos_emb_interleave,
    )

    scaling = SCALED["yarn"] | {"mscale": 0.7, "mscale_all_dim": 1.2}
    rope = {"rope_type": "yarn", "rope_theta": 10000.0, **scaling}
    config = DeepseekV3Config(
        hidden_size=64, num_attention_heads=4, qk_rope_head_dim=32, rope_parameters=rope
    )
    read, all_dimensions = deepseek_yarn(scaling)
    table = rotary_of(
        {"type": "yarn", "theta": 10000.0, "scaling": read}, **SIZES, interleaved=True
    )
    attention = DeepseekV3Attention(config, layer_idx=0)
    assert attention.scaling == pytest.approx(attention.qk_head_dim**-0.5 * all_dimensions**2)
    x = torch.randn(4, 6, 32, generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([0, 1, 7, 900, 2000, 4000])
    cos, sin = DeepseekV3RotaryEmbedding(config)(x, positions[None])
    expected, other = apply_rotary_pos_emb_interleave(x[None], x[None].flip(2), cos, sin)
    query = table.rotate(x.transpose(0, 1), positions)
    key = table.rotate(x.flip(1).transpose(0, 1), positions)
    # transformers leaves the dimensions in another order, the same for queries and keys: the scores are equal.
    torch.testing.assert_close(
        torch.einsum("rhd,shd->hrs", query, key), expected[0] @ other[0].transpose(1, 2)
    )


@pytest.mark.parametrize("kind", ["dynamic", "deepseek_yarn", "nonsense"])
def test_other_types_are_refused(kind: str) -> None:
    with pytest.raises(InputError, match="not supported"):
        rotary_of({"type": kind, "theta": 1e4, "scaling": None}, **SIZES)


def test_a_scaling_without_its_factor_is_refused() -> None:
    with pytest.raises(InputError, match="cannot build"):
        rotary_of({"type": "linear", "theta": 1e4, "scaling": None}, **SIZES)
