"""Scores from match matrices: each with its kind, its count and an interval over samples.

Over all start rows, the draft fed with its own tokens:
    marginal(k)     share of rows whose k-th draft token is the target's
    conditional(k)  the same, among rows whose first k - 1 draft tokens are
    cumulative(k)   share of rows whose first k draft tokens all are
A target's token outside the draft's vocabulary counts as a miss. Within the vocabulary, rows count whose k-th token (for
cumulative: each of the first k) is in it. Teacher-forced, every step is fed the target's own token and the draft's own
hidden state, as trainers score it: only the marginal differs, since after right drafts both feed the same.
The walk (see walk) is what a server does; its accept length is not 1 plus the sum of cumulative shares, as rows after an
accepted token are skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from draftproof.accuracy.bootstrap import Bootstrap, Ratio
from draftproof.accuracy.tree import Tree
from draftproof.accuracy.walk import Matrix, drafts_and_steps, histogram, pooled, visited, walk


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """One sample; every matrix is [R, K], a start row after the other.

    match and forced: whether the draft guesses the target's token, fed its own tokens and fed the target's; known: whether
    there is such a token; in_vocabulary: whether it is one of the draft's. position: the first start row's in the text.
    covered of judged target tokens are in the draft's vocabulary.
    """

    id: str
    category: str
    position: int
    match: Matrix
    forced: Matrix
    known: Matrix
    in_vocabulary: Matrix
    tree_histograms: dict[str, list[int]]
    covered: int
    judged: int

    @property
    def histograms(self) -> list[list[int]]:
        """Return the walk of each number of steps."""
        return walk(self.match)


def tree_histogram(tree: Tree, lengths: Sequence[int]) -> list[int]:
    """Return a tree's walk from what it accepts at each row."""
    return histogram(lengths, tree.steps, visited(lengths, tree.steps))


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
    within = _shares(samples, [sample.in_vocabulary for sample in samples], k, bootstrap)
    return {
        "k": k + 1,
        **_shares(samples, [sample.known for sample in samples], k, bootstrap),
        "in_vocabulary": within,
    }


def _shares(
    samples: Sequence[Scored], counted: Sequence[Matrix], k: int, bootstrap: Bootstrap
) -> dict[str, Any]:
    """Return every kind of acceptance at step k (from 0), over the drafts that are counted."""
    pairs = list(zip(samples, counted, strict=True))
    prefix = [sample.match[:, :k].all(axis=1) & rows[:, k] for sample, rows in pairs]
    hits = [sample.match[:, : k + 1].all(axis=1) for sample in samples]
    rows_at, all_before = ([rows[:, k] for rows in counted], [rows[:, : k + 1] for rows in counted])
    ratios = {
        "marginal": _ratio([sample.match[:, k] for sample in samples], rows_at),
        "conditional": _ratio(hits, prefix),
        "cumulative": _ratio(hits, [rows.all(axis=1) for rows in all_before]),
        "teacher_forced": _ratio([sample.forced[:, k] for sample in samples], rows_at),
    }
    return {
        **{kind: ratio.value for kind, ratio in ratios.items()},
        "count": int(sum(ratios["marginal"].denominators)),
        "conditional_count": int(sum(ratios["conditional"].denominators)),
        "cumulative_count": int(sum(ratios["cumulative"].denominators)),
        "ci95": {
            kind: bootstrap.interval(ratio)
            for kind, ratio in ratios.items()
            if ratio.value is not None
        },
    }


def _ratio(hits: Sequence[Any], rows: Sequence[Any]) -> Ratio:
    """Return how many of the rows are hits, sample by sample; both bool [R]."""
    pairs = zip(hits, rows, strict=True)
    return Ratio([int((hit & row).sum()) for hit, row in pairs], [int(row.sum()) for row in rows])


def walk_scores(samples: Sequence[Scored], bootstrap: Bootstrap) -> dict[str, dict[str, Any]]:
    """Return the entries of ``walk`` by number of draft steps."""
    by_sample = [sample.histograms for sample in samples]
    by_steps = zip(*by_sample, strict=True)
    return {str(k): walked(each, bootstrap) for k, each in enumerate(by_steps, start=1)}


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
    return sum(s.covered for s in samples) / sum(s.judged for s in samples)
