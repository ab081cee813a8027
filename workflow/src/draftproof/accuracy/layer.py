"""One layer of an EAGLE-3 draft in pieces, so that many chains can share the rows that they have in common.

Sources: models/llama_eagle3.py, models/llama.py, models/kimi_k25_eagle3.py and models/deepseek_v2.py of sglang 0.5.23.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from draftproof.accuracy.rotary import Rotary

Weights = Mapping[str, Tensor]


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return x [.., n] divided by its root mean square, times weight [n]."""
    return functional.rms_norm(x, x.shape[-1:], weight, eps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Grouped-query attention. Weights: q_proj, k_proj, v_proj, o_proj and, where the engine has it, o_proj.bias."""

    weights: Weights
    rotary: Rotary
    heads: int
    kv_heads: int
    head_dim: int

    @property
    def scale(self) -> float:
        """Factor of the scores."""
        return float(self.head_dim**-0.5)

    def query(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return queries [R, heads, head_dim], rotated."""
        return self.rotary.rotate(self._project("q_proj", x, self.heads), positions)

    def key_value(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys (rotated) and values, [R, kv_heads, head_dim] each."""
        key = self.rotary.rotate(self._project("k_proj", x, self.kv_heads), positions)
        return key, self._project("v_proj", x, self.kv_heads)

    def _project(self, name: str, x: Tensor, heads: int) -> Tensor:
        return functional.linear(x, self.weights[f"{name}.weight"]).view(
            len(x), heads, self.head_dim
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Latent:
    """Multi-head latent attention (MLA), computed unabsorbed. The rotated key part is one for all heads."""

    weights: Weights
    rotary: Rotary
    heads: int
    nope: int
    rope: int
    eps: float
    scale: float

    def query(self, x: Tensor, positions: Tensor) -> Tensor:
        """Return queries [R, heads, nope + rope], the second part rotated."""
        low = functional.linear(x, self.weights["q_a_proj.weight"])
        low = norm(low, self.weights["q_a_layernorm.weight"], self.eps)
        query = functional.linear(low, self.weights["q_b_proj.weight"])
        query = query.view(len(x), self.heads, -1)
        turned = self.rotary.rotate(query[..., self.nope :], positions)
        return torch.cat([query[..., : self.nope], turned], dim=-1)

    def key_value(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys [R, heads, nope + rope] and values [R, heads, width of a value]."""
        both = functional.linear(x, self.weights["kv_a_proj_with_mqa.weight"])
        low, turned = both[:, : -self.rope], both[:, -self.rope :]
        low = norm(low, self.weights["kv_a_layernorm.weight"], self.eps)
        wide = functional.linear(low, self.weights["kv_b_proj.weight"]).view(len(x), self.heads, -1)
        shared = self.rotary.rotate(turned[:, None], positions).expand(-1, self.heads, -1)
        return torch.cat([wide[..., : self.nope], shared], dim=-1), wide[..., self.nope :]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """Attention and MLP around one residual stream [R, H]; the `first` layer's attention sees the embedding too."""

    weights: Weights
    attention: Heads | Latent
    eps: float
    first: bool

    def attention_input(self, embedding: Tensor, hidden: Tensor) -> Tensor:
        """Return what queries, keys and values are made of: [R, 2H], the embedding first, or [R, H]."""
        state = norm(hidden, self.weights["hidden_norm.weight"], self.eps)
        if not self.first:
            return state
        first = norm(embedding, self.weights["input_layernorm.weight"], self.eps)
        return torch.cat([first, state], dim=-1)

    def output(self, residual: Tensor, attended: Tensor) -> Tensor:
        """Return the residual stream behind the layer, [R, H]; attended is [R, heads * width of a value]."""
        w = self.weights
        middle = residual + functional.linear(
            attended, w["self_attn.o_proj.weight"], w.get("self_attn.o_proj.bias")
        )
        normed = norm(middle, w["post_attention_layernorm.weight"], self.eps)
        gate = functional.silu(functional.linear(normed, w["mlp.gate_proj.weight"]))
        inner = gate * functional.linear(normed, w["mlp.up_proj.weight"])
        return middle + functional.linear(inner, w["mlp.down_proj.weight"])
