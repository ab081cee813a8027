"""Rules on tensor parallelism: how many GPUs the draft can be split over, and whether the target's pieces fit."""

from __future__ import annotations

from collections.abc import Iterator

from draftproof.checkpoint.configuration import Config, size
from draftproof.checkpoint.findings import Fault, rule
from draftproof.checkpoint.pair import Pair

GPUS = range(2, 17)


@rule(
    "parallel.draft-indivisible",
    "info",
    "models/llama.py, LlamaAttention.__init__; layers/linear.py, MergedColumnParallelLinear (assert)",
    layout=True,
)
def indivisible(pair: Pair) -> Iterator[Fault]:
    """The draft cannot be split over as many GPUs as the target: heads or inner values do not divide.

    The engine splits the draft as the target, and pads vocabularies by itself.
    """
    e = pair.effective
    heads, kv = e.num_attention_heads.value, e.num_key_value_heads.value
    inner, hidden = e.intermediate_size.value, e.hidden_size.value
    if not heads or not kv or not inner or not hidden or heads % kv:
        return
    # Latent attention keeps its keys whole, but splits the columns of fc (models/kimi_k25_eagle3.py).
    keys, others = (heads, (inner, hidden)) if e.latent.value else (kv, (inner,))
    own = {gpus for gpus in GPUS if _splits(heads, keys, others, gpus)}
    target = _target_splits(pair.target_text)
    lost = sorted(target - own)
    if lost:
        yield Fault(
            subject="num_attention_heads",
            message=f"the target can be split over {_listed(lost)} GPUs, this draft cannot ({heads} heads, {kv} of keys"
            f" and values, {inner} inner values): the engine would stop on an assertion",
            evidence={"target alone": lost, "both": sorted(target & own)},
            fix="Serve with another --tp-size; nothing to do on one GPU.",
        )


@rule(
    "parallel.embedding-pieces",
    "warning",
    "layers/vocab_parallel_embedding.py, VocabParallelEmbedding.__init__; models/llama.py, set_embed",
    layout=True,
)
def embedding_pieces(pair: Pair) -> Iterator[Fault]:
    """With several GPUs, the engine looks up the target's pieces of the embedding by the draft's vocab_size, which cuts otherwise."""
    own, target = pair.effective.vocab_size.value, size(pair.target_text, "vocab_size")
    if not own or not target or pair.effective.embedding_source.value != "target":
        return
    unit = pair.facts["vocab_padding"]
    rows = {gpus: [_rows(vocab, gpus, unit) for vocab in (own, target)] for gpus in GPUS}
    other = {str(gpus): pieces for gpus, pieces in rows.items() if pieces[0] != pieces[1]}
    if other:
        gpus, (drafts, targets) = next(iter(other.items()))
        yield Fault(
            subject="vocab_size",
            message=f"over {gpus} GPUs the target's embedding is cut every {targets} rows, but looked up every {drafts}:"
            " tokens get the embedding of others, without an error",
            evidence={"vocab_size": own, "target vocab_size": target, "rows by GPUs": other},
            fix=f'Write "vocab_size": {target} if the tokenizer is the same; nothing to do on one GPU.',
        )


def _splits(heads: int, kv: int, others: tuple[int, ...], gpus: int) -> bool:
    keys = kv % gpus == 0 if kv >= gpus else gpus % kv == 0
    return heads % gpus == 0 and keys and all(other % gpus == 0 for other in others)


def _target_splits(config: Config) -> set[int]:
    """Return the numbers of GPUs that the target's heads and inner values, as far as its config names them, divide by."""
    heads = size(config, "num_attention_heads")
    kv = size(config, "num_key_value_heads") or heads
    if not heads or not kv:
        return set()
    others = tuple(n for n in [size(config, "intermediate_size")] if n)
    return {gpus for gpus in GPUS if _splits(heads, kv, others, gpus)}


def _rows(vocab: int, gpus: int, unit: int) -> int:
    """Return how many rows of an embedding each GPU gets."""
    if -(-vocab // unit) * unit % gpus:
        unit *= gpus
    return -(-vocab // unit) * unit // gpus


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))
