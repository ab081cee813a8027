"""A draft with its target, read and interpreted: what every rule looks at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from draftproof.checkpoint import layout
from draftproof.checkpoint.boundaries import text_config
from draftproof.checkpoint.configuration import (
    Config,
    architecture,
    config_file,
    read_config,
    written_architecture,
)
from draftproof.checkpoint.dialect import Dialect, recognise
from draftproof.checkpoint.effective import Effective, derive
from draftproof.checkpoint.quantisation import Quantisation, quantisation
from draftproof.checkpoint.safetensors_header import Tensor
from draftproof.checkpoint.scan import Scan, scan
from draftproof.checkpoint.target_layout import Comparison, compare
from draftproof.checkpoint.translate import Translation, translate
from draftproof.checkpoint.weights import (
    PICKLED,
    Weights,
    checkpoint_digest,
    has_safetensors,
    open_weights,
)
from draftproof.engines import facts
from draftproof.errors import InputError
from draftproof.progress import progress


@dataclass(frozen=True, kw_only=True)
class Pair:
    """The draft's config and tensors, the target's config, and the engine's view of both.

    ``draft`` is the config that would be served, ``source`` the one in the draft's folder.
    """

    engine: str
    facts: Mapping[str, Any]
    draft_path: Path
    source: Config
    translation: Translation
    weights: Weights
    target_path: Path
    target: Config
    dialect: Dialect
    effective: Effective

    @cached_property
    def target_text(self) -> Config:
        """The target's config of its language model alone."""
        return text_config(self.target)

    @cached_property
    def target_weights(self) -> Weights | InputError | None:
        """The headers of the target's weights; the reason why they cannot be read; None when there are none here."""
        if not has_safetensors(self.target_path):
            return None
        try:
            return open_weights(self.target_path)
        except InputError as error:
            return error

    @cached_property
    def target_quantisation(self) -> Quantisation | None:
        """How the target says it is quantised."""
        folder = config_file(self.target_path).parent
        return quantisation(self.target, self.target_text, folder)

    @cached_property
    def target_comparison(self) -> Comparison:
        """The target's tensors against what its config promises; empty when its weights cannot be read."""
        if not isinstance(self.target_weights, Weights):
            return Comparison()
        name = architecture(self.target)
        family = self.facts["target_layers"].get(name)
        text = {"tie_word_embeddings": self.target.get("tie_word_embeddings"), **self.target_text}
        return compare(self.target_weights.tensors, text, family, self.target_quantisation)

    @property
    def draft(self) -> Config:
        """The config that would be served."""
        return self.translation.config

    @cached_property
    def reader(self) -> Mapping[str, Any]:
        """How the engine's class for this draft reads config and tensors."""
        return reader_of(self.facts, self.draft)

    @cached_property
    def names(self) -> dict[str, list[str]]:
        """{the engine's name: names in the file}."""
        file_names = {self.translation.renames.get(n, n): n for n in self.weights.tensors}
        found = layout.engine_names(file_names, self.reader["renames"])
        return {name: [file_names[one] for one in served] for name, served in found.items()}

    @cached_property
    def scans(self) -> dict[str, Scan]:
        """{name: what its values look like}, every value read once."""
        return {
            tensor.name: scan(tensor)
            for tensor in progress(self.weights.tensors.values(), "reading the draft's values")
        }

    def tensor(self, engine_name: str) -> Tensor | None:
        """Return the tensor that the engine reads under this name, or None."""
        names = self.names.get(engine_name)
        return self.weights.tensors[names[-1]] if names else None

    def digest(self) -> str:
        """Return the SHA-256 over the draft's config and weights."""
        return checkpoint_digest(config_file(self.draft_path), self.weights)


def read_pair(draft: Path, target: Path, engine: str) -> Pair:
    """Read a draft and its target's config; raises InputError when either cannot be read as a checkpoint."""
    known = facts(engine, "checkpoint")
    for path, what in ((draft, "draft"), (target, "target")):
        if not path.exists():
            raise InputError(
                f"the {what} does not exist",
                str(path),
                "Give the folder with config.json and weights.",
            )
    if draft.is_file() and draft.suffix not in {".safetensors", *PICKLED}:
        raise InputError(
            "the draft is neither a folder nor a safetensors file",
            str(draft),
            f"Give the folder: --draft {draft.parent}",
        )
    config, target_config = read_config(draft, "draft"), read_config(target, "target")
    weights = open_weights(draft, unpickle=True)
    architectures = known["draft_architectures"]
    dialect = recognise(config, weights.tensors, written_architecture(config) in architectures)
    translation = translate(engine, dialect, config, target_config, weights.tensors, architectures)
    served = translation.config
    return Pair(
        engine=engine,
        facts=known,
        draft_path=draft,
        source=config,
        translation=translation,
        weights=weights,
        target_path=target,
        target=target_config,
        dialect=dialect,
        effective=_effective(engine, known, served, target_config, weights, dialect),
    )


def with_lines(pair: Pair, lines: Mapping[str, Any]) -> Pair:
    """Return the same checkpoint with other lines in the config that would be served."""
    served = {**pair.draft, **lines}
    return replace(
        pair,
        translation=replace(pair.translation, config=served),
        effective=_effective(
            pair.engine, pair.facts, served, pair.target, pair.weights, pair.dialect
        ),
    )


def _effective(
    engine: str,
    known: Mapping[str, Any],
    served: Config,
    target: Config,
    weights: Weights,
    dialect: Dialect,
) -> Effective:
    algorithm = known["algorithms"].get("eagle3" if dialect.eagle3 else dialect.name)
    reader = reader_of(known, served)
    return derive(engine, reader, served, target, weights.tensors, algorithm)


def reader_of(known: Mapping[str, Any], served: Config) -> Mapping[str, Any]:
    """Return the engine's facts on the class that reads a config; a Llama-type one when it names no class."""
    name = known["draft_architectures"].get(architecture(served), {}).get("reader", "llama")
    found: Mapping[str, Any] = known[name]
    return found
