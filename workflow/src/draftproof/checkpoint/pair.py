"""A draft with its target, read and interpreted: what every rule looks at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from draftproof.checkpoint import layout
from draftproof.checkpoint.boundaries import text_config
from draftproof.checkpoint.configuration import Config, architecture, config_file, read_config
from draftproof.checkpoint.dialect import Dialect, recognise
from draftproof.checkpoint.effective import Effective, derive
from draftproof.checkpoint.safetensors_header import Tensor
from draftproof.checkpoint.scan import Scan, scan
from draftproof.checkpoint.weights import Weights, checkpoint_digest, open_weights
from draftproof.engines import facts
from draftproof.errors import InputError
from draftproof.progress import progress


@dataclass(frozen=True, kw_only=True)
class Pair:
    """The draft's config and tensors, the target's config, and the engine's view of both."""

    engine: str
    facts: Mapping[str, Any]
    draft_path: Path
    draft: Config
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
    def reader(self) -> str | None:
        """Which layout of tensors the named architecture has: llama, none (not checked), or None when unknown."""
        known = self.facts["draft_architectures"].get(self.effective.architecture.value)
        return None if known is None else str(known["reader"])

    @cached_property
    def layout_known(self) -> bool:
        """Whether the tensors can be checked one by one.

        A draft under a wrong architecture name is checked too, so that all its faults show at once.
        """
        return self.dialect.eagle3 and self.dialect.flat and self.reader in {"llama", None}

    @cached_property
    def names(self) -> dict[str, list[str]]:
        """{the engine's name: names in the file}."""
        return layout.engine_names(self.weights.tensors, self.facts["llama"]["renames"])

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
    config, target_config = read_config(draft, "draft"), read_config(target, "target")
    weights = open_weights(draft)
    known_architecture = architecture(config) in known["draft_architectures"]
    dialect = recognise(config, weights.tensors, known_architecture)
    return Pair(
        engine=engine,
        facts=known,
        draft_path=draft,
        draft=config,
        weights=weights,
        target_path=target,
        target=target_config,
        dialect=dialect,
        effective=derive(engine, known["llama"], config, target_config, weights.tensors),
    )
