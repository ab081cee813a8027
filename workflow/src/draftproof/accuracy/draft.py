"""An EAGLE-3 draft straight from safetensors, and its forward pass as SGLang 0.5.23 runs it, in float32.

At row i the draft sees the target's boundary states of token i (through `fc`) and the embedding of token i + 1, at
position i, and predicts token i + 2. A further step sees the draft's own output in place of `fc`'s, and the embedding of
the token it has just drafted, one position on. Sources: models/llama_eagle3.py, models/kimi_k25_eagle3.py;
speculative/eagle_worker_v2.py (draft_forward, positions.add_(1) per step).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from draftproof.accuracy.layer import Layer, norm


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Layers, and the weights around them by the engine's names.

    embedding [V, H] in its stored dtype; head [Vd, H]; to_target int64 [Vd] maps draft ids to target ids.
    """

    weights: Mapping[str, Tensor]
    layers: tuple[Layer, ...]
    embedding: Tensor
    head: Tensor
    to_target: Tensor
    hidden_size: int
    eps: float
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool

    def fuse(self, states: Tensor) -> Tensor:
        """Return what the draft's layers see of the target, [T, H], of boundary states [T, A, Ht]."""
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

    def choose(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Return the most probable target ids [R], and the hidden state that the next step is fed, [R, H]."""
        logits, fed = self.judge(output)
        return self.to_target[logits.argmax(-1)], fed

    def judge(self, output: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits over the draft's vocabulary [R, Vd], and the hidden state that the next step is fed, [R, H]."""
        normed = self._norm("norm", output)
        return functional.linear(normed, self.head), normed if self.norm_output else output

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return norm(x, self.weights[f"{name}.weight"], self.eps)
