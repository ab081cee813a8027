"""The rules, by subject. Importing this package registers them all, in the order in which they are shown."""

from draftproof.checkpoint.rules import (
    config,
    kinds,
    meaning,
    parallel,
    pickled,
    rope,
    target,
    tensors,
    tokenizer,
    values,
    vocabulary,
    wiring,
)

__all__ = [
    "config",
    "kinds",
    "meaning",
    "parallel",
    "pickled",
    "rope",
    "target",
    "tensors",
    "tokenizer",
    "values",
    "vocabulary",
    "wiring",
]
