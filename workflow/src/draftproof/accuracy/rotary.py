"""Rotary position embedding, from transformers' own tables, as the engine applies it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from draftproof.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotary:
    """`inverse` [d/2] are the frequencies, `scale` multiplies sine and cosine (yarn, longrope).

    `interleaved`: the dimensions 2i and 2i + 1 turn together, as in latent attention, else i and i + d/2.
    """

    inverse: Tensor
    scale: float
    interleaved: bool = False

    def rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate x [R, heads, head_dim] by positions [R]; dimensions beyond the table's stay as they are."""
        angle = (positions[:, None].float() * self.inverse)[:, None, :]
        cos, sin = angle.cos() * self.scale, angle.sin() * self.scale
        half = self.inverse.shape[0]
        turning, rest = x[..., : 2 * half], x[..., 2 * half :]
        if self.interleaved:
            low, high = turning[..., ::2], turning[..., 1::2]
            turned = torch.stack([low * cos - high * sin, high * cos + low * sin], dim=-1).flatten(
                -2
            )
        else:
            low, high = turning[..., :half], turning[..., half:]
            turned = torch.cat([low * cos - high * sin, high * cos + low * sin], dim=-1)
        return torch.cat([turned, rest], dim=-1)


def rotary_of(
    rope: Mapping[str, Any],
    *,
    hidden_size: int,
    heads: int,
    head_dim: int,
    positions: int,
    interleaved: bool = False,
) -> Rotary:
    """Return the table of a validation's ``rope`` value {type, theta, scaling}.

    `head_dim` is given explicitly: it need not be hidden_size / heads. Raises InputError for a type whose table depends on
    the length of the text, or that transformers does not know.
    """
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    kind = rope["type"]
    if kind not in {"default", *ROPE_INIT_FUNCTIONS} or kind in {"dynamic", "longrope"}:
        raise InputError(f"rope type {kind!r} is not supported by accuracy yet", "draft config")
    parameters = {"rope_type": kind, "rope_theta": rope["theta"]} | dict(rope["scaling"] or {})
    try:
        config = LlamaConfig(
            hidden_size=hidden_size,
            num_attention_heads=heads,
            head_dim=head_dim,
            max_position_embeddings=positions,
            rope_parameters=parameters,
        )
        table = LlamaRotaryEmbedding(config)
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise InputError(
            f"transformers cannot build rope {kind!r} ({error!r:.200})",
            "draft config",
            "Correct rope_scaling.",
        ) from None
    return Rotary(
        inverse=table.inv_freq.float(),
        scale=float(table.attention_scaling),
        interleaved=interleaved,
    )
