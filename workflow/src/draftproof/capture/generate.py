"""The target's greedy text and the hidden states behind it.

Text is made in batches with a key-value cache, prompts padded on the left. Then each text goes through the target once
more, alone and whole: that pass gives the hidden states, and its own choices must repeat the text. Where they do not, the
text is made again alone, so that batching cannot change a token.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Where a text ends: `max_new_tokens`, or one of `stop_token_ids`; `lookahead` tokens are made beyond the end."""

    max_new_tokens: int
    stop_token_ids: frozenset[int]
    lookahead: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A text (its stop token included), what the target would say after it, and its states [T, A, H] on the CPU.

    `last_hidden_state` [T, H] is behind the final norm; None where nobody shows it. `mismatches`: of `checked` tokens,
    those that a whole pass over the text does not repeat.
    """

    prompt_ids: list[int]
    output_ids: list[int]
    continuation_ids: list[int]
    finish: str
    hidden_states: Tensor
    last_hidden_state: Tensor | None
    checked: int
    mismatches: int


def answers(
    model: Any, prompts: Sequence[Sequence[int]], boundaries: Sequence[int], limits: Limits
) -> Iterator[Answer]:
    """Yield the answer to each prompt (token ids) of a batch, in their order."""
    for prompt_ids, text in zip(prompts, greedy(model, prompts, limits), strict=True):
        answer = with_states(model, list(prompt_ids), text, boundaries, limits)
        if answer.mismatches and len(prompts) > 1:
            (alone,) = greedy(model, [prompt_ids], limits)
            answer = with_states(model, list(prompt_ids), alone, boundaries, limits)
        yield answer


def greedy(model: Any, prompts: Sequence[Sequence[int]], limits: Limits) -> list[list[int]]:
    """Return each prompt's most probable next tokens: up to its end, and `lookahead` tokens beyond."""
    import torch

    longest = max(map(len, prompts))
    padding = [longest - len(prompt) for prompt in prompts]
    device = model.device
    ids = torch.tensor(
        [[0] * pad + list(prompt) for pad, prompt in zip(padding, prompts, strict=True)],
        device=device,
    )
    mask = torch.tensor([[0] * pad + [1] * (longest - pad) for pad in padding], device=device)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    cache: Any = None
    texts: list[list[int]] = [[] for _ in prompts]
    with torch.inference_mode():
        while not all(len(text) >= end(text, limits) + limits.lookahead for text in texts):
            step = model(
                input_ids=ids,
                attention_mask=mask if any(padding) else None,
                position_ids=positions,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            cache = step.past_key_values
            ids = step.logits[:, -1].argmax(-1, keepdim=True)
            mask = torch.cat([mask, mask.new_ones(len(prompts), 1)], dim=1)
            positions = positions[:, -1:] + 1
            for text, token in zip(texts, ids[:, 0].tolist(), strict=True):
                text.append(token)
    return [text[: end(text, limits) + limits.lookahead] for text in texts]


def end(text: Sequence[int], limits: Limits) -> int:
    """Return how many tokens of a text are the output: through its first stop token, or the limit."""
    head = text[: limits.max_new_tokens]
    stops = (i for i, token in enumerate(head) if token in limits.stop_token_ids)
    return next(stops, limits.max_new_tokens - 1) + 1


def with_states(
    model: Any,
    prompt_ids: list[int],
    text: Sequence[int],
    boundaries: Sequence[int],
    limits: Limits,
) -> Answer:
    """Run the target once over prompt and text; return the answer with its states and the check of its tokens."""
    import torch

    size = end(text, limits)
    tokens = len(prompt_ids) + size
    ids = torch.tensor([[*prompt_ids, *text]], device=model.device)
    with torch.inference_mode():
        result = model(
            input_ids=ids, output_hidden_states=True, use_cache=False, logits_to_keep=len(text) + 1
        )
        chosen = result.logits[0, :-1].argmax(-1).tolist()
        # Each from its own device: a large target is spread over several.
        states = [result.hidden_states[b][0, :tokens].cpu() for b in (*boundaries, -1)]
    return Answer(
        prompt_ids=prompt_ids,
        output_ids=list(text[:size]),
        continuation_ids=list(text[size:]),
        finish="stop" if text[size - 1] in limits.stop_token_ids else "length",
        hidden_states=torch.stack(states[:-1], dim=1),
        last_hidden_state=states[-1],
        checked=len(text),
        mismatches=sum(map(operator.ne, chosen, text)),
    )
