"""The parts of a target that turn its last state into tokens, and tokens into its first: head, final norm, embedding.

They are found by the ends of their names, so that a language model inside a larger one is read too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from draftproof.checkpoint.boundaries import text_config
from draftproof.checkpoint.configuration import number, read_config
from draftproof.checkpoint.layout import EMBEDDING, HEAD
from draftproof.checkpoint.safetensors_header import Tensor as Stored
from draftproof.checkpoint.weights import STORED_AS, open_weights, read_tensor
from draftproof.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

NORM = "norm.weight"
DEFAULT_EPS = 1e-6  # transformers: LlamaConfig and its kin


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """head [V, H] in its stored dtype; gain [H], the final norm's weight, in float32."""

    head: Tensor
    gain: Tensor
    eps: float


def target_ending(path: Path) -> Ending:
    """Return a target's final norm and head; raises InputError when they are missing or quantised."""
    tensors = open_weights(path).tensors
    text = text_config(read_config(path, "target"))
    embedding = _find(tensors, EMBEDDING, path)
    tied = text.get("tie_word_embeddings") or not _named(tensors, HEAD)
    norm = tensors.get(embedding.name.removesuffix(EMBEDDING) + NORM)
    if norm is None:
        raise InputError("the target holds no final norm beside its embedding", str(path))
    return Ending(
        head=read_tensor(embedding if tied else _find(tensors, HEAD, path)),
        gain=read_tensor(norm).float(),
        eps=number(text, "rms_norm_eps") or DEFAULT_EPS,
    )


def target_embedding(path: Path) -> Tensor:
    """Return a target's embedding [V, H] in its stored dtype; raises InputError when it is missing or quantised."""
    return read_tensor(_find(open_weights(path).tensors, EMBEDDING, path))


def _named(tensors: Mapping[str, Stored], ending: str) -> list[Stored]:
    """Return the tensors of this name outside the layers: some targets repeat it in layers for their own speculation."""
    return [
        tensor
        for name, tensor in tensors.items()
        if (name == ending or name.endswith("." + ending)) and ".layers." not in name
    ]


def _find(tensors: Mapping[str, Stored], ending: str, path: Path) -> Stored:
    found = _named(tensors, ending)
    if len(found) != 1:
        raise InputError(f"the target holds {len(found) or 'no'} tensors named {ending}", str(path))
    if found[0].dtype not in STORED_AS:
        raise InputError(f"the target's {ending} is stored as {found[0].dtype}", str(path))
    return found[0]
