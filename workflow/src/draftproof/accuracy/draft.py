"""A Llama-type EAGLE-3 draft straight from safetensors, and its forward pass as SGLang 0.5.23 runs it, in float32.

At row i the draft sees the target's boundary states of token i (through `fc`) and the embedding of token i + 1, at
position i, and predicts token i + 2. A further step sees the draft's own output in place of `fc`'s, and the embedding of
the token it has just drafted, one position on. Sources: models/llama_eagle3.py; speculative/eagle_worker_v2.py
(draft_forward, positions.add_(1) per step).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from draftproof.accuracy.rotary import Rotary

LAYER = "layers.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Weights by the engine's names, and how the engine uses them.

    embedding [V, H] in its stored dtype; head [Vd, H]; to_target int64 [Vd] maps draft ids to target ids.
    """

    weights: Mapping[str, Tensor]
    embedding: Tensor
    head: Tensor
    to_target: Tensor
    rotary: Rotary
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool

    def fuse(self, states: Tensor) -> Tensor:
        """Return what the draft's layer sees of the target, [T, H], of boundary states [T, A, Ht]."""
        joined = states.flatten(1)
        if joined.shape[-1] == self.hidden_size:
            return joined  # the engine skips fc where the width is right already
        if self.norm_before_fc:
            joined = self._norm("input_norm", joined)
        if self.fc_norm:
            chunks = joined.chunk(states.shape[1], dim=-1)
            normed = [self._norm(f"fc_norm.{n}", chunk) for n, chunk in enumerate(chunks)]
            joined = torch.cat(normed, dim=-1)
        return functional.linear(joined, self.weights["fc.weight"], self.weights.get("fc.bias"))

    def embed(self, token_ids: Tensor) -> Tensor:
        """Return embeddings [R, H] of target ids [R]."""
        return self.embedding[token_ids].float()

    def attention_input(self, embedding: Tensor, hidden: Tensor) -> Tensor:
        """Return what queries, keys and values are made of, [R, 2H]: the embedding first."""
        first = self._norm(f"{LAYER}.input_layernorm", embedding)
        return torch.cat([first, self._norm(f"{LAYER}.hidden_norm", hidden)], dim=-1)

    def query(self, joined: Tensor, positions: Tensor) -> Tensor:
        """Return queries [R, heads, head_dim], rotated."""
        return self.rotary.rotate(self._project("q_proj", joined, self.heads), positions)

    def key_value(self, joined: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys (rotated) and values, [R, kv_heads, head_dim] each."""
        key = self.rotary.rotate(self._project("k_proj", joined, self.kv_heads), positions)
        return key, self._project("v_proj", joined, self.kv_heads)

    def output(self, residual: Tensor, attended: Tensor) -> Tensor:
        """Return the layer's output before the final norm, [R, H]; attended is [R, heads * head_dim]."""
        mixed = functional.linear(
            attended,
            self.weights[f"{LAYER}.self_attn.o_proj.weight"],
            self.weights.get(f"{LAYER}.self_attn.o_proj.bias"),
        )
        middle = residual + mixed
        normed = self._norm(f"{LAYER}.post_attention_layernorm", middle)
        gate, up, down = (
            self.weights[f"{LAYER}.mlp.{n}_proj.weight"] for n in ("gate", "up", "down")
        )
        inner = functional.silu(functional.linear(normed, gate)) * functional.linear(normed, up)
        return middle + functional.linear(inner, down)

    def choose(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Return the most probable target ids [R], and the hidden state that the next step is fed, [R, H]."""
        normed = self._norm("norm", output)
        ids = self.to_target[functional.linear(normed, self.head).argmax(-1)]
        return ids, normed if self.norm_output else output

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], self.weights[f"{name}.weight"], self.eps)

    def _project(self, name: str, x: Tensor, heads: int) -> Tensor:
        weight = self.weights[f"{LAYER}.self_attn.{name}.weight"]
        return functional.linear(x, weight).view(-1, heads, self.head_dim)
