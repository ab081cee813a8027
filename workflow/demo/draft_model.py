"""A one-layer EAGLE-3 draft in plain PyTorch, for training: the forward pass as SGLang 0.5.23 runs it.

At row i the draft sees the target's boundary states of token i (through `fc`) and the embedding of token
i + 1, and predicts token i + 2. A further step feeds back the layer's output before the final norm in
place of `fc`'s output; its query sees the first step's keys up to row i and the row's own later keys. The
residual is taken before `hidden_norm`, and neither `fc`'s input nor the feedback is normalised: the only
reading that SGLang has for a Llama-type draft without further flags.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes of a draft; the layer's are those of one layer of the target."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    states: int  # boundary states per token
    draft_vocab: int
    rope_theta: float
    rms_norm_eps: float


@dataclass(slots=True)
class Rows:
    """The rows that a step computes, out of a batch of N padded sequences of T rows.

    sequence and position are int64 [M], sorted by sequence, then position. `context` holds the first
    step's keys and values [N, kv, T, d] of every row; `own` those of the later steps, [M, kv, d] each.
    """

    sequence: Tensor
    position: Tensor
    context: tuple[Tensor, Tensor]
    own: list[tuple[Tensor, Tensor]] = field(default_factory=list)

    def keep(self, kept: Tensor) -> Rows:
        """Return the rows where kept (bool [M]) is true."""
        own = [(key[kept], value[kept]) for key, value in self.own]
        return Rows(self.sequence[kept], self.position[kept], self.context, own)


class _Product(torch.autograd.Function):
    """x [..., K] times the transpose of weight [N, K], through numpy.

    numpy's OpenBLAS took two thirds of the time of torch's MKL on an AMD EPYC.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        flat = x.detach().reshape(-1, x.shape[-1]).numpy()
        return torch.from_numpy(flat @ weight.detach().numpy().T).view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        gradient = gradients[0].reshape(-1, weight.shape[0]).numpy()
        flat = x.detach().reshape(-1, x.shape[-1]).numpy()
        back = torch.from_numpy(gradient @ weight.detach().numpy()).view(x.shape)
        return back, torch.from_numpy(gradient.T @ flat)


class Linear(nn.Module):
    """A linear map without bias."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(outputs, inputs))

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., inputs] to [..., outputs]."""
        result: Tensor = _Product.apply(x, self.weight)
        return result


class Norm(nn.Module):
    """RMSNorm."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimension."""
        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


class Draft(nn.Module):
    """The draft's parameters, named as in the checkpoint (`midlayer.` for the layer)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        hidden, attention = shape.hidden, shape.heads * shape.head_dim
        kv = shape.kv_heads * shape.head_dim

        def norm() -> Norm:
            return Norm(hidden, shape.rms_norm_eps)

        self.fc = Linear(shape.states * hidden, hidden)
        self.midlayer = nn.ModuleDict(
            {
                "self_attn": nn.ModuleDict(
                    {
                        "q_proj": Linear(2 * hidden, attention),
                        "k_proj": Linear(2 * hidden, kv),
                        "v_proj": Linear(2 * hidden, kv),
                        "o_proj": Linear(attention, hidden),
                    }
                ),
                "mlp": nn.ModuleDict(
                    {
                        "gate_proj": Linear(hidden, shape.intermediate),
                        "up_proj": Linear(hidden, shape.intermediate),
                        "down_proj": Linear(shape.intermediate, hidden),
                    }
                ),
                "input_layernorm": norm(),
                "hidden_norm": norm(),
                "post_attention_layernorm": norm(),
            }
        )
        self.norm = norm()
        self.lm_head = Linear(hidden, shape.draft_vocab)

    def _part(self, *names: str) -> Any:
        module: Any = self.midlayer
        for name in names:
            module = module[name]
        return module

    def _rotate(self, x: Tensor, position: Tensor) -> Tensor:
        """Apply rotary embedding to [..., R, heads, d] at position [..., R]."""
        half = self.shape.head_dim // 2
        inverse = self.shape.rope_theta ** (-torch.arange(half) / half)
        angle = (position[..., None] * inverse)[..., None, :]
        cos, sin = angle.cos(), angle.sin()
        low, high = x.chunk(2, -1)
        return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)

    def context(self, states: Tensor, following: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Return fc's output [N, T, H] and the first step's keys and values [N, kv, T, d] of all rows.

        states [N, T, A, H]; following [N, T, H] is the embedding of the token after each row.
        """
        fused = self.fc(states.flatten(2))
        key, value = self._keys(following, fused, torch.arange(states.shape[1]))
        return fused, (key.transpose(1, 2), value.transpose(1, 2))

    def _join(self, embedding: Tensor, hidden: Tensor) -> Tensor:
        first = self._part("input_layernorm")(embedding)
        return torch.cat([first, self._part("hidden_norm")(hidden)], -1)

    def _keys(self, embedding: Tensor, hidden: Tensor, position: Tensor) -> tuple[Tensor, Tensor]:
        joined = self._join(embedding, hidden)
        form = (*joined.shape[:-1], self.shape.kv_heads, self.shape.head_dim)
        key = self._part("self_attn", "k_proj")(joined).view(form)
        return self._rotate(key, position), self._part("self_attn", "v_proj")(joined).view(form)

    def step(self, rows: Rows, hidden: Tensor, embedding: Tensor, number: int) -> Tensor:
        """Run step `number` (from 0) on the rows; returns the output before the final norm, [M, H].

        hidden [M, H] is fc's output, or the last step's output; embedding [M, H] that of the token fed. A
        later step appends its keys and values to rows.own.
        """
        position = rows.position + number
        joined = self._join(embedding, hidden)
        form = (len(hidden), self.shape.heads, self.shape.head_dim)
        query = self._rotate(self._part("self_attn", "q_proj")(joined).view(form), position)
        if number > 0:
            rows.own.append(self._keys(embedding, hidden, position))
        mixed = self._attend(query, rows)
        middle = hidden + self._part("self_attn", "o_proj")(mixed)
        normed = self._part("post_attention_layernorm")(middle)
        gate = functional.silu(self._part("mlp", "gate_proj")(normed))
        result: Tensor = middle + self._part("mlp", "down_proj")(
            gate * self._part("mlp", "up_proj")(normed)
        )
        return result

    def logits(self, output: Tensor) -> Tensor:
        """Return the logits over the draft vocabulary, [M, draft_vocab]."""
        scores: Tensor = self.lm_head(self.norm(output))
        return scores

    def _attend(self, query: Tensor, rows: Rows) -> Tensor:
        """Return the attention output [M, heads * d] for query [M, heads, d]."""
        keys, values = rows.context
        count, kv, length, width = keys.shape
        group = self.shape.heads // kv
        sizes = torch.bincount(rows.sequence, minlength=count)
        longest = int(sizes.max())
        rank = torch.arange(len(query)) - (sizes.cumsum(0) - sizes)[rows.sequence]
        slot = rows.sequence * longest + rank

        # Rows of one sequence are laid side by side, so that its keys are multiplied in one go.
        padded = query.new_zeros(count * longest, kv, group, width).index_copy(
            0, slot, query.view(-1, kv, group, width)
        )
        padded = padded.view(count, longest, kv, group, width).transpose(1, 2)
        scores = padded.reshape(count, kv, longest * group, width) @ keys.transpose(2, 3)
        scores = scores.view(count, kv, longest, group, length).transpose(1, 2)
        scores = scores.reshape(-1, kv, group, length)[slot]
        later = torch.arange(length) > rows.position[:, None]
        scores = scores.masked_fill(later[:, None, None], float("-inf"))
        grouped = query.view(-1, kv, group, width)
        own = [(grouped * key[:, :, None]).sum(-1, keepdim=True) for key, _ in rows.own]
        weights = (torch.cat([scores, *own], -1) * width**-0.5).softmax(-1)

        spread = weights.new_zeros(count * longest, kv, group, length).index_copy(
            0, slot, weights[..., :length]
        )
        spread = spread.view(count, longest, kv, group, length).transpose(1, 2)
        mixed = spread.reshape(count, kv, longest * group, length) @ values
        mixed = mixed.view(count, kv, longest, group, width).transpose(1, 2)
        mixed = mixed.reshape(-1, kv, group, width)[slot]
        for index, (_, value) in enumerate(rows.own):
            mixed = mixed + weights[..., length + index, None] * value[:, :, None]
        flat: Tensor = mixed.flatten(1)
        return flat


def shape_for(config: Any, states: int, draft_vocab: int) -> Shape:
    """Return the shape of a draft whose layer is like one of the target's (a transformers config)."""
    return Shape(
        hidden=config.hidden_size,
        intermediate=config.intermediate_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        states=states,
        draft_vocab=draft_vocab,
        rope_theta=float(config.rope_parameters["rope_theta"]),
        rms_norm_eps=config.rms_norm_eps,
    )


@torch.no_grad()
def initialise_from_target(draft: Draft, target: Any, token_ids: Sequence[int]) -> None:
    """Start from the target's last layer, final norm and the head's rows of the draft vocabulary.

    The draft is then the target's last layer applied to its last boundary state: `fc` passes that state
    on, and the embedding half of q, k and v is zero.
    """
    hidden = draft.shape.hidden
    last = target.model.layers[-1]
    nn.init.zeros_(draft.fc.weight)
    draft.fc.weight[:, -hidden:] = torch.eye(hidden)
    own = dict(draft.midlayer.named_parameters())
    for name, weight in last.named_parameters():
        if name.startswith("input_layernorm"):
            own["hidden_norm.weight"].copy_(weight)
        elif name.split(".")[1] in ("q_proj", "k_proj", "v_proj"):
            own[name].zero_()
            own[name][:, hidden:] = weight
        else:
            own[name].copy_(weight)
    draft.norm.weight.copy_(target.model.norm.weight)
    draft.lm_head.weight.copy_(target.lm_head.weight[torch.tensor(token_ids)])
