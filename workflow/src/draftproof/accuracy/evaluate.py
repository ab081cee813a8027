"""One pass over the samples: the draft as it is configured, scored in full."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftproof.accuracy.acceptance import Rows, both_matches, prepare
from draftproof.accuracy.draft import Draft
from draftproof.accuracy.scores import Scored, tree_histogram
from draftproof.accuracy.tree import Tree, accepted
from draftproof.capture.samples import Sample, read_sample
from draftproof.errors import InputError
from draftproof.progress import progress

# Directions of captured and expected embeddings agree better than this, rounding and scaling aside.
MIN_COSINE = 0.99


def evaluate(
    draft: Draft,
    directory: Path,
    manifest: Mapping[str, Any],
    boundaries: Sequence[int],
    steps: int,
    trees: Sequence[Tree] = (),
) -> list[Scored]:
    """Score every sample that has a verify step, one in memory at a time.

    Raises InputError for a broken sample, one of another target, or when no sample has two output tokens.
    """
    columns = [list(manifest["boundaries"]).index(boundary) for boundary in boundaries]
    in_draft = torch.zeros(len(draft.embedding), dtype=torch.bool)
    in_draft[draft.to_target] = True
    return [
        score_sample(draft, sample, columns, in_draft, steps, trees)
        for sample in eligible(draft, directory, manifest, "accuracy")
    ]


def eligible(
    draft: Draft,
    directory: Path,
    manifest: Mapping[str, Any],
    what: str,
    most: int | None = None,
) -> Iterator[Sample]:
    """Yield the samples that have a verify step, or at most so many of them, spread over all.

    Raises InputError for a broken sample, one of another target, or when there are none.
    """
    # Prefill gives the first token: a sample with one output token has no verify step.
    entries = [entry for entry in manifest["samples"] if entry["output_tokens"] >= 2]
    if not entries:
        raise InputError(
            "holds no sample of two or more output tokens",
            str(directory),
            "Capture with a larger max_new_tokens.",
        )
    if most is not None and len(entries) > most:
        entries = [entries[number * len(entries) // most] for number in range(most)]
    for entry in progress(entries, what):
        sample = read_sample(directory, manifest, entry)
        check_target(draft, sample, manifest["boundaries"], directory / entry["file"])
        yield sample


def score_sample(
    draft: Draft,
    sample: Sample,
    columns: list[int],
    in_draft: Tensor,
    steps: int,
    trees: Sequence[Tree],
) -> Scored:
    """Return one sample's scores with the boundaries in these columns of its states."""
    rows = prepare_sample(draft, sample, columns)
    match, forced = both_matches(rows, steps)
    said = torch.stack([rows.said(rows.start, step) for step in range(steps)], dim=1)
    # The first output token comes from prefill: no draft has to guess it.
    guessed = sample.token_ids[sample.prompt_tokens + 1 :]
    trees_accept = accepted(rows, trees)
    return Scored(
        id=sample.id,
        category=sample.category,
        position=sample.prompt_tokens - 1,
        match=match.numpy(),
        forced=forced.numpy(),
        known=(said >= 0).numpy(),
        in_vocabulary=((said >= 0) & in_draft[said.clamp(min=0)]).numpy(),
        tree_histograms={t.name: tree_histogram(t, n.tolist()) for t, n in trees_accept.items()},
        covered=int(in_draft[guessed].sum()),
        judged=len(guessed),
    )


def prepare_sample(draft: Draft, sample: Sample, columns: list[int]) -> Rows:
    """Return one sample's rows, its output tokens but the last, with the boundaries in these columns of its states."""
    return prepare(
        draft,
        sample.hidden_states[:, columns].float(),
        sample.token_ids,
        torch.cat([sample.token_ids, sample.continuation_ids]),
        sample.prompt_tokens - 1,
    )


def check_target(draft: Draft, sample: Sample, stored: Sequence[int], path: Path) -> None:
    """Raise InputError when token ids or captured embeddings are not of the draft's target."""
    largest = int(sample.token_ids.max())
    if largest >= len(draft.embedding):
        raise InputError(
            f"holds token {largest}, the target has {len(draft.embedding)} tokens",
            str(path),
            "Capture with the target that is given to accuracy.",
        )
    if 0 not in stored or sample.hidden_states.shape[2] != draft.embedding.shape[1]:
        return
    seen = sample.hidden_states[:, stored.index(0)].float()
    cosine = torch.cosine_similarity(seen, draft.embed(sample.token_ids), dim=-1)
    if float(cosine.median()) < MIN_COSINE:
        raise InputError(
            "its states at boundary 0 are not the embeddings of its tokens: another target's states, or rows and tokens"
            " do not belong together",
            str(path),
            "Capture with the target that is given to accuracy.",
        )
