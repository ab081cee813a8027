"""One pass over the samples: the configured wiring in full, the alternatives as far as the scan needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from draftproof.accuracy.acceptance import Rows, both_matches, chain_matches, prepare
from draftproof.accuracy.draft import Draft
from draftproof.accuracy.scores import Scored, tree_histogram
from draftproof.accuracy.tree import Tree, accepted
from draftproof.accuracy.walk import walk
from draftproof.accuracy.wiring import Candidate
from draftproof.capture.samples import Sample, read_sample
from draftproof.errors import InputError
from draftproof.progress import progress

# Directions of captured and expected embeddings agree better than this, rounding and scaling aside.
MIN_COSINE = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The configured wiring's samples, and the histograms of every candidate: [candidate][sample]."""

    samples: list[Scored]
    histograms: list[list[list[int]]]


def evaluate(
    draft: Draft,
    directory: Path,
    manifest: Mapping[str, Any],
    tried: Sequence[Candidate],
    steps: int,
    scan_steps: int,
    trees: Sequence[Tree] = (),
) -> Evaluation:
    """Score every sample that has a verify step, one in memory at a time; tried[0] is the configured wiring.

    Raises InputError for a broken sample, one of another target, or when no sample has two output tokens.
    """
    stored = list(manifest["boundaries"])
    columns = [[stored.index(b) for b in candidate.boundaries] for candidate in tried]
    in_draft = torch.zeros(len(draft.embedding), dtype=torch.bool)
    in_draft[draft.to_target] = True
    samples: list[Scored] = []
    histograms: list[list[list[int]]] = [[] for _ in tried]
    for entry in progress(manifest["samples"], "accuracy"):
        if entry["output_tokens"] < 2:
            continue  # prefill gave it all: no verify step
        sample = read_sample(directory, manifest, entry)
        check_target(draft, sample, stored, directory / entry["file"])
        score = score_sample(draft, sample, columns[0], in_draft, steps, trees)
        samples.append(score)
        histograms[0].append(walk(score.match, steps=[scan_steps])[0])
        for number, chosen in enumerate(columns[1:], start=1):
            found = match_sample(draft, sample, chosen, scan_steps, all_rows=False)
            histograms[number].append(walk(found.numpy(), steps=[scan_steps])[0])
    if not samples:
        raise InputError(
            "holds no sample of two or more output tokens",
            str(directory),
            "Capture with a larger max_new_tokens.",
        )
    return Evaluation(samples=samples, histograms=histograms)


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


def match_sample(
    draft: Draft, sample: Sample, columns: list[int], steps: int, *, all_rows: bool
) -> Tensor:
    """Return the match matrix bool [R, K] of one sample."""
    return chain_matches(prepare_sample(draft, sample, columns), steps, all_rows=all_rows)


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
