"""Is a capture what it says it is? Its last state, through the target's final norm and head, must give its own tokens.

A state behind the final norm, divided by the norm's gain, has root mean square 1 in every row; one before it has not.
That tells the two conventions apart without looking at tokens. The tokens then tell whether states, text, vocabulary and
target belong together: row i must choose token i + 1 of the output.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftproof.capture.samples import LAST, read_tensors, refuse_not_finite, require_rows
from draftproof.checkpoint.target_tensors import Ending, target_ending
from draftproof.errors import InputError
from draftproof.progress import progress

if TYPE_CHECKING:
    from torch import Tensor

log = logging.getLogger(__name__)
MIN_REPRODUCED = 0.99
ENOUGH_TOKENS = 1000  # a capture this far below the limit is not read to its end
SIDES = {"pre_norm": "before", "post_norm": "after"}
# Of the root mean square behind a norm; half precision stays within 1 %.
NORM_TOLERANCE = 0.02
VOCABULARY_ROWS = 16384


class SelfCheck:
    """The check of one capture, sample by sample; `tokens` and `mismatches` count so far."""

    def __init__(self, ending: Ending, last_state: str) -> None:
        self.ending = ending
        self.last_state = last_state
        self.tokens = 0
        self.mismatches = 0

    def look(self, last: Tensor, token_ids: Tensor, prompt_tokens: int, where: str) -> None:
        """Check one sample's last states [T, H] and tokens [T]; raises InputError with the reason when it is not what it says."""
        vocab, width = self.ending.head.shape
        largest = int(token_ids.max())
        if largest >= vocab or last.shape[-1] != width:
            raise InputError(
                f"holds token {largest} and states of width {last.shape[-1]}; the target has {vocab} tokens and width {width}",
                where,
                "Give the target that the states were captured from.",
            )
        rows, wanted = last[prompt_tokens - 1 : -1].float(), token_ids[prompt_tokens:]
        found = recognise(rows, self.ending.gain)
        if found != self.last_state:
            raise InputError(
                f"its last state is from {SIDES[found]} the target's final norm, but is said to be from"
                f" {SIDES[self.last_state]} it",
                where,
                f"Import it with --last-state {found}.",
            )
        self.mismatches += missed(rows, wanted, self.ending, found, rounding_of(last))
        self.tokens += len(wanted)
        if self.tokens >= ENOUGH_TOKENS:
            self.finish(where)

    def finish(self, where: str) -> None:
        """Raise InputError when too few of the tokens seen so far are the target's own."""
        same = self.tokens - self.mismatches
        if same < MIN_REPRODUCED * self.tokens:
            raise InputError(
                f"its last states choose only {same} of its {self.tokens} output tokens, through the target's"
                f" {'head' if self.last_state == 'post_norm' else 'final norm and head'}: states of another target, another"
                " vocabulary, or a text that is not this target's own greedy answer",
                where,
                "Give the target that the states were captured from, or run draftproof capture.",
            )


def check_capture(directory: Path, manifest: Mapping[str, Any], target: Path) -> None:
    """Check every sample of a capture against its target; raises InputError with the reason when one fails.

    Of each file only tokens and last states are read. Where the check cannot be made, a warning says why.
    """
    if "last_state" not in manifest:
        log.warning(
            "the capture holds no last states, so that its states cannot be checked by its tokens"
        )
        return
    try:
        ending = target_ending(target)
    except InputError as error:
        log.warning("the capture's last states are not checked: %s", error)
        return
    check = SelfCheck(ending, manifest["last_state"])
    for entry in progress(manifest["samples"], "checking the capture"):
        path = directory / entry["file"]
        tensors = read_tensors(path, ("token_ids", LAST))
        require_rows(tensors, entry, manifest, path)
        refuse_not_finite(tensors, str(path))
        check.look(tensors[LAST], tensors["token_ids"].long(), entry["prompt_tokens"], str(path))
    check.finish(str(directory))


def recognise(rows: Tensor, gain: Tensor) -> str:
    """Return on which side of a norm with this gain [H] last states [R, H] are: pre_norm or post_norm."""
    for stored in (gain, 1 + gain):  # some families store the gain less one
        kept = stored != 0
        size = ((rows[:, kept] / stored[kept]).square().sum(-1) / len(gain)).sqrt()
        if bool(((size - 1).abs() < NORM_TOLERANCE).float().mean() > 0.5):
            return "post_norm"
    return "pre_norm"


def missed(rows: Tensor, wanted: Tensor, ending: Ending, side: str, rounding: float) -> int:
    """Return how many of wanted [R] last states [R, H] do not choose, with the better reading of the gain."""
    if side == "post_norm":
        return int((~chosen(rows, wanted, ending.head, rounding)).sum())
    counts = []
    for gain in (ending.gain, 1 + ending.gain):
        normed = normalised(rows, ending.eps) * gain
        counts.append(int((~chosen(normed, wanted, ending.head, rounding)).sum()))
        if counts[-1] <= (1 - MIN_REPRODUCED) * len(wanted):
            break
    return min(counts)


def normalised(rows: Tensor, eps: float) -> Tensor:
    """Return rows divided by their root mean square."""
    return rows * (rows.square().mean(-1, keepdim=True) + eps).rsqrt()


def chosen(normed: Tensor, wanted: Tensor, head: Tensor, rounding: float) -> Tensor:
    """Return bool [R]: whether row [R, H] gives wanted [R] the highest logit, up to the rounding of the states.

    The vocabulary is taken in pieces: a large head in float32 would not fit beside itself.
    """
    import torch

    own = (normed * head[wanted].float()).sum(-1)
    best = torch.full_like(own, -torch.inf)
    for piece in torch.split(head, VOCABULARY_ROWS):
        best = torch.maximum(best, (normed @ piece.float().T).max(-1).values)
    return own >= best - rounding * best.abs()


def rounding_of(states: Tensor) -> float:
    """Return how far, relatively, two logits that the states cannot tell apart may differ."""
    import torch

    return 2 * torch.finfo(states.dtype).eps if states.dtype.itemsize < 4 else 1e-5
