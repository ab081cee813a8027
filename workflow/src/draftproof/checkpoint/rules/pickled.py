"""Rules on drafts that are pickled torch files."""

from __future__ import annotations

from collections.abc import Iterator

from draftproof.checkpoint.findings import Fault, rule
from draftproof.checkpoint.pair import Pair


@rule(
    "draft.pickled",
    "info",
    "model_loader/loader.py, _prepare_weights; model_loader/weight_utils.py, _load_pt_file",
)
def pickled(pair: Pair) -> Iterator[Fault]:
    """The draft is a pickled torch file. The engine loads it weights-only too; other tools may run what is in it."""
    files = pair.weights.pickled
    if files:
        yield Fault(
            subject=files[0].name,
            message=f"the draft is pickled ({', '.join(file.name for file in files[:4])}); the engine reads such files"
            " when there are no safetensors, whole into memory, through torch's weights-only loading",
            evidence={"files": [file.name for file in files]},
            fix="draftproof convert writes the same values as safetensors.",
        )
