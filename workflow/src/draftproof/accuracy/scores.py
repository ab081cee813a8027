"""Scores from match matrices: each with its kind, its count and an interval over samples.

Over all start rows, the draft fed with its own tokens:
    marginal(k)     share of rows whose k-th draft token is the target's
    conditional(k)  the same, among rows whose first k - 1 draft tokens are
    cumulative(k)   share of rows whose first k draft tokens all are
The walk (see walk) is what a server does; its accept length is not 1 plus the sum of cumulative shares, as rows after an
accepted token are skipped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from draftproof.accuracy.bootstrap import Bootstrap, Ratio
from draftproof.accuracy.tree import Tree
from draftproof.accuracy.walk import Matrix, drafts_and_steps, histogram, pooled, visited, walk


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """One sample: match [R, K], known [R, K] (whether the target's token there is known), and its walks.

    in_vocabulary of judged target tokens are in the draft's vocabulary.
    """

    id: str
    category: str
    match: Matrix
    known: Matrix
    histograms: list[list[int]]
    tree_histograms: dict[str, list[int]]
    in_vocabulary: int
    judged: int


def scored(
    sample_id: str,
    category: str,
    match: Matrix,
    known: Matrix,
    in_vocabulary: int,
    judged: int,
    trees: Mapping[Tree, Sequence[int]],
) -> Scored:
    """Return a sample's scores; trees: what each tree accepts at each row."""
    return Scored(
        id=sample_id,
        category=category,
        match=match,
        known=known,
        histograms=walk(match),
        tree_histograms={
            tree.name: histogram(lengths, tree.steps, visited(lengths, tree.steps))
            for tree, lengths in trees.items()
        },
        in_vocabulary=in_vocabulary,
        judged=judged,
    )


def accept_ratio(histograms: Sequence[Sequence[int]]) -> Ratio:
    """Return accepted drafts per verify step over samples; accept length is one more."""
    counts = [drafts_and_steps(histogram) for histogram in histograms]
    return Ratio([drafts for drafts, _ in counts], [steps for _, steps in counts])


def one_more(interval: Sequence[float]) -> list[float]:
    """Return an interval of accept length from one of accepted drafts per step."""
    return [1 + bound for bound in interval]


def step_scores(samples: Sequence[Scored], bootstrap: Bootstrap) -> list[dict[str, Any]]:
    """Return the entries of ``steps``, k from 1."""
    depth = samples[0].match.shape[1]
    return [_step(samples, k, bootstrap) for k in range(depth)]


def _step(samples: Sequence[Scored], k: int, bootstrap: Bootstrap) -> dict[str, Any]:
    known = [int(sample.known[:, k].sum()) for sample in samples]
    before = [sample.known[:, k] & sample.match[:, :k].all(axis=1) for sample in samples]
    hits = [sample.match[:, k] for sample in samples]
    prefix = [int((rows & hit).sum()) for rows, hit in zip(before, hits, strict=True)]
    marginal = Ratio([int(hit.sum()) for hit in hits], known)
    conditional = Ratio(prefix, [int(rows.sum()) for rows in before])
    cumulative = Ratio(prefix, known)
    intervals = {
        "marginal": bootstrap.interval(marginal),
        "cumulative": bootstrap.interval(cumulative),
    }
    if conditional.value is not None:
        intervals["conditional"] = bootstrap.interval(conditional)
    return {
        "k": k + 1,
        "marginal": marginal.value,
        "conditional": conditional.value,
        "cumulative": cumulative.value,
        "count": sum(known),
        "conditional_count": int(sum(conditional.denominators)),
        "ci95": intervals,
    }


def walk_scores(samples: Sequence[Scored], bootstrap: Bootstrap) -> dict[str, dict[str, Any]]:
    """Return the entries of ``walk`` by number of draft steps."""
    depth = samples[0].match.shape[1]
    return {
        str(k): walked([sample.histograms[k - 1] for sample in samples], bootstrap)
        for k in range(1, depth + 1)
    }


def tree_scores(samples: Sequence[Scored], bootstrap: Bootstrap) -> dict[str, dict[str, Any]]:
    """Return the entries of ``trees`` by steps, topk and draft tokens."""
    return {
        name: walked([sample.tree_histograms[name] for sample in samples], bootstrap)
        for name in samples[0].tree_histograms
    }


def walked(histograms: Sequence[Sequence[int]], bootstrap: Bootstrap) -> dict[str, Any]:
    """Return what is told of one walk, from each sample's histogram.

    accept_length is pooled over verify steps; mean_of_requests weighs every sample the same.
    """
    total = pooled(histograms)
    drafts, steps = drafts_and_steps(total)
    means = [drafts_and_steps(each) for each in histograms]
    mean = Ratio([drafts / steps for drafts, steps in means], [1] * len(means))
    return {
        "histogram": total,
        "verify_steps": steps,
        "accept_length": 1 + drafts / steps,
        "ci95": one_more(bootstrap.interval(accept_ratio(histograms))),
        "mean_of_requests": 1 + (mean.value or 0.0),
        "mean_of_requests_ci95": one_more(bootstrap.interval(mean)),
    }


def request_scores(samples: Sequence[Scored]) -> list[dict[str, Any]]:
    """Return the entries of ``requests``: each sample's own histograms."""
    return [
        {
            "id": sample.id,
            "category": sample.category,
            "walk": {str(k): each for k, each in enumerate(sample.histograms, start=1)},
            "trees": sample.tree_histograms,
        }
        for sample in samples
    ]


def coverage(samples: Sequence[Scored]) -> float:
    """Return the share of target tokens to be guessed that are in the draft's vocabulary."""
    return sum(s.in_vocabulary for s in samples) / sum(s.judged for s in samples)


def known_mask(rows: int, steps: int, first_row: int, labels: int) -> Matrix:
    """Return bool [rows, steps]: whether the token that each draft guesses is among `labels` known tokens."""
    place = first_row + 2 + np.arange(rows)[:, None] + np.arange(steps)[None, :]
    known: Matrix = place < labels
    return known
