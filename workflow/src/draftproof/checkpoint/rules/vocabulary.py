"""Rules on the draft vocabulary: its size, the map to target ids, the head."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from draftproof.checkpoint import layout
from draftproof.checkpoint.configuration import size
from draftproof.checkpoint.findings import Fault, rule
from draftproof.checkpoint.pair import Pair
from draftproof.checkpoint.weights import read_array

if TYPE_CHECKING:
    import numpy as np

    Array = np.ndarray[Any, Any]

OFFSETS = "models/llama_eagle3.py, load_weights: target id = draft id + d2t"
INTEGERS = {"I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8"}
ABSOLUTE_FIX = "Write d2t[i] = id[i] - i."


@dataclass(frozen=True, slots=True, kw_only=True)
class Map:
    """d2t [Vd] and what it says: ``resolved`` = draft id + offset. ``kept``: ids that t2d marks, when it is a mask."""

    offsets: Array
    resolved: Array
    kept: Array | None
    target_vocab: int | None

    @property
    def outside(self) -> int:
        """How many resolved ids the target does not have."""
        if self.target_vocab is None:
            return int((self.resolved < 0).sum())
        # An extreme offset can wrap around to a legal id, so offsets have limits of their own.
        limit = self.target_vocab + len(self.offsets)
        wild = (self.offsets < -limit) | (self.offsets > limit)
        return int((wild | (self.resolved < 0) | (self.resolved >= self.target_vocab)).sum())

    @property
    def increasing(self) -> bool:
        """Whether d2t grows strictly, as a sorted list of ids does and offsets hardly ever do."""
        return len(self.offsets) > 1 and bool((self.offsets[1:] > self.offsets[:-1]).all())

    @property
    def absolute(self) -> bool:
        """Whether d2t holds target ids themselves: they agree with t2d, or only they stay inside the vocabulary."""
        import numpy as np

        if self.kept is not None and len(self.kept) == len(self.offsets):
            return np.array_equal(np.sort(self.offsets), self.kept) and not np.array_equal(
                np.sort(self.resolved), self.kept
            )
        inside = len(self.offsets) > 0 and self.offsets.min() >= 0
        fits = self.target_vocab is None or bool(self.offsets.max(initial=0) < self.target_vocab)
        return bool(inside and fits and self.increasing and self.outside)


def read_map(pair: Pair) -> Map | None:
    """Return the draft's vocabulary map, or None when there is none or its dtype or shape is no use."""
    import numpy as np

    tensor = pair.tensor(layout.MAP)
    if tensor is None or tensor.dtype not in INTEGERS or len(tensor.shape) != 1:
        return None
    offsets = read_array(tensor).astype(np.int64)
    kept = None
    mask = pair.tensor(layout.MASK)
    if mask is not None and mask.dtype in {"BOOL", *INTEGERS} and len(mask.shape) == 1:
        marks = read_array(mask)
        kept = np.flatnonzero(marks) if bool((marks <= 1).all()) else None
    return Map(
        offsets=offsets,
        resolved=offsets + np.arange(len(offsets)),
        kept=kept,
        target_vocab=size(pair.target_text, "vocab_size") or pair.effective.vocab_size.value,
    )


@rule(
    "vocab.sizes", "error", "models/llama_eagle3.py, LlamaForCausalLMEagle3.__init__", layout=True
)
def sizes(pair: Pair) -> Iterator[Fault]:
    """Config, head and map do not name one draft vocabulary."""
    wanted = pair.effective.draft_vocab_size.value
    head, offsets, mask = (pair.tensor(n) for n in (layout.HEAD, layout.MAP, layout.MASK))
    tied = pair.effective.head_source.value == "embedding"
    rows = head.shape[0] if head and head.shape and not tied else None
    length = offsets.shape[0] if offsets and len(offsets.shape) == 1 else None
    if wanted is None or all(found in (None, wanted) for found in (rows, length)):
        return
    found = read_map(pair)
    yield Fault(
        subject="draft_vocab_size",
        message=f"draft_vocab_size {wanted}, lm_head rows {rows} and d2t length {length} differ",
        evidence={
            "draft_vocab_size": wanted,
            "lm_head rows": rows,
            "d2t length": length,
            "t2d ones": None if found is None or found.kept is None else len(found.kept),
            "t2d length": mask.shape[0] if mask and mask.shape else None,
        },
        fix="Export head, d2t and t2d of one training run, and write its size.",
    )


@rule("vocab.d2t-missing", "error", OFFSETS, layout=True)
def d2t_missing(pair: Pair) -> Iterator[Fault]:
    """The draft has a reduced vocabulary but no map: its ids would be taken as the target's first ids."""
    drafts, whole = pair.effective.draft_vocab_size.value, pair.effective.vocab_size.value
    if layout.MAP not in pair.names and drafts and whole and drafts < whole:
        yield Fault(
            subject=layout.MAP,
            message=f"no d2t tensor for a draft vocabulary of {drafts} out of {whole}",
            evidence={"draft_vocab_size": drafts, "vocab_size": whole},
            fix="Save d2t in the safetensors themselves; a file beside them is not read.",
        )


@rule("vocab.d2t-dtype", "error", OFFSETS, layout=True)
def d2t_dtype(pair: Pair) -> Iterator[Fault]:
    """d2t is no list of whole numbers."""
    tensor = pair.tensor(layout.MAP)
    if tensor and (tensor.dtype not in INTEGERS or len(tensor.shape) != 1):
        yield Fault(
            subject=layout.MAP,
            message=f"d2t is {tensor.dtype} {list(tensor.shape)}; it must be a list of int64",
            evidence={"dtype": tensor.dtype, "shape": list(tensor.shape)},
            fix="Save it as int64.",
        )


@rule("vocab.d2t-absolute", "error", OFFSETS, layout=True)
def d2t_absolute(pair: Pair) -> Iterator[Fault]:
    """d2t holds the target ids themselves; the engine adds the draft id to them."""
    found = read_map(pair)
    if found and found.absolute:
        yield Fault(
            subject=layout.MAP,
            message="d2t holds target ids; the engine takes them as offsets and adds the draft id",
            evidence=_example(found) | {"outside": found.outside},
            fix=ABSOLUTE_FIX,
        )


@rule("vocab.d2t-ambiguous", "warning", OFFSETS, layout=True)
def d2t_ambiguous(pair: Pair) -> Iterator[Fault]:
    """d2t grows with every entry, which offsets hardly ever do, and no t2d tells what is meant."""
    found = read_map(pair)
    if found and found.kept is None and found.increasing and not found.outside:
        yield Fault(
            subject=layout.MAP,
            message="d2t could be target ids or offsets; the engine takes it as offsets",
            evidence=_example(found),
            fix=f"Compare with the training data. If these are ids: {ABSOLUTE_FIX}",
        )


@rule("vocab.d2t-range", "error", OFFSETS, layout=True)
def d2t_range(pair: Pair) -> Iterator[Fault]:
    """Draft ids resolve to ids that the target does not have."""
    found = read_map(pair)
    if found and found.outside and not found.absolute:
        yield Fault(
            subject=layout.MAP,
            message=f"{found.outside} draft ids resolve to no id of the target (0 to {(found.target_vocab or 0) - 1})",
            evidence={
                "smallest": int(found.resolved.min()),
                "largest": int(found.resolved.max()),
                "vocab_size": found.target_vocab,
            },
            fix="Rebuild d2t from the ids the draft was trained on, for this target's tokenizer.",
        )


@rule("vocab.d2t-repeats", "error", OFFSETS, layout=True)
def d2t_repeats(pair: Pair) -> Iterator[Fault]:
    """Several draft ids resolve to one target id."""
    import numpy as np

    found = read_map(pair)
    if found is None or found.absolute or found.outside:
        return
    repeats = len(found.resolved) - len(np.unique(found.resolved))
    if repeats:
        yield Fault(
            subject=layout.MAP,
            message=f"{repeats} draft ids resolve to target ids that others have already",
            evidence={"repeats": repeats, "draft ids": len(found.resolved)},
            fix="Rebuild d2t from the ids the draft was trained on.",
        )


@rule(
    "vocab.t2d-disagrees",
    "error",
    "SpecForge and speculators build d2t and t2d from one list",
    layout=True,
)
def t2d_disagrees(pair: Pair) -> Iterator[Fault]:
    """d2t and t2d name different target ids, so one of them is not the trained one."""
    import numpy as np

    found = read_map(pair)
    if found is None or found.kept is None or found.absolute or found.outside:
        return
    only_map = np.setdiff1d(found.resolved, found.kept)
    only_mask = np.setdiff1d(found.kept, found.resolved)
    in_head = len(found.resolved) == pair.effective.draft_vocab_size.value
    if in_head and (len(only_map) or len(only_mask)):
        yield Fault(
            subject=layout.MASK,
            message=f"t2d and d2t differ in {len(only_map) + len(only_mask)} target ids",
            evidence={
                "only d2t": only_map[:8].tolist(),
                "only t2d": only_mask[:8].tolist(),
            },
            fix="Export d2t and t2d of one training run.",
        )


@rule(
    "vocab.beyond-target",
    "error",
    "speculative/eagle_worker_v2.py: without d2t draft ids are target ids",
    layout=True,
)
def beyond_target(pair: Pair) -> Iterator[Fault]:
    """Without a map, the draft has ids that the target does not have."""
    drafts, whole = pair.effective.draft_vocab_size.value, size(pair.target_text, "vocab_size")
    if layout.MAP not in pair.names and drafts and whole and drafts > whole:
        yield Fault(
            subject="draft_vocab_size",
            message=f"the draft has {drafts} ids, the target {whole}",
            evidence={"draft_vocab_size": drafts, "target vocab_size": whole},
            fix="Use the target this draft was trained for.",
        )


@rule("head.tied", "error", "models/llama_eagle3.py: lm_head = embed_tokens when tied", layout=True)
def head_tied(pair: Pair) -> Iterator[Fault]:
    """tie_word_embeddings makes the engine answer with the embedding and drop the draft's own head."""
    e = pair.effective
    if not pair.draft.get("tie_word_embeddings"):
        return
    reduced = e.draft_vocab_size.value != e.vocab_size.value
    if reduced or layout.HEAD in pair.names:
        yield Fault(
            subject="tie_word_embeddings",
            message="tie_word_embeddings makes the engine use the embedding as head and drop lm_head",
            evidence={
                "draft_vocab_size": e.draft_vocab_size.value,
                "vocab_size": e.vocab_size.value,
                "lm_head": layout.HEAD in pair.names,
            },
            fix='Write "tie_word_embeddings": false.',
        )


@rule("head.from-target", "warning", "speculative/eagle_worker_v2.py, init_lm_head", layout=True)
def head_from_target(pair: Pair) -> Iterator[Fault]:
    """draft_vocab_size is null, so the engine replaces the draft's own head with the target's."""
    e = pair.effective
    if e.head_source.value == "target" and layout.HEAD in pair.names:
        yield Fault(
            subject="draft_vocab_size",
            message="draft_vocab_size is null: the engine replaces the draft's lm_head with the target's",
            evidence={"vocab_size": e.vocab_size.value},
            fix=f'If the head was trained, write "draft_vocab_size": {e.vocab_size.value}.',
        )


def _example(found: Map) -> dict[str, Any]:
    return {
        "d2t": found.offsets[:8].tolist(),
        "resolved": found.resolved[:8].tolist(),
        "largest": int(found.resolved.max(initial=0)),
    }
