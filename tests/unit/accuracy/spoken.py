"""A capture whose text a draft has spoken: how many of its tokens each verify step accepts is chosen, not computed.

From each start row the naive draft says a chain, the text follows it for as long as was drawn, then leaves it, and the next
verify step starts there. So the right accept length is known by hand, whatever the weights are, and a reading that
computes anything else guesses next to nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from draftproof.capture.samples import write_sample
from draftproof.files import sha256, write_result
from tests.unit.accuracy.naive import NaiveDraft

STEPS, PROMPT = 3, 4
# Accepted drafts per verify step, drawn from these.
ACCEPTED = (0, 1, 2, 3, 3)
# Row i pairs state i + first and token i + second.
PAIRINGS = {"engine": (0, 1), "own state": (1, 1), "earlier token": (0, 0)}


def spoken_capture(
    folder: Path,
    speaker: NaiveDraft,
    boundaries: Sequence[int],
    *,
    stored: Sequence[int] = (0, 1, 2, 3, 4, 5),
    samples: int = 12,
    verify_steps: int = 10,
    pairing: str = "engine",
    layers: int = 6,
) -> float:
    """Write a capture of texts that the speaker, fed these boundaries, says; return the accept length it has there."""
    entries, accepted = [], 0
    for number in range(samples):
        generator = torch.Generator().manual_seed(number)
        text = Text(speaker, boundaries, stored, PAIRINGS[pairing], generator)
        accepted += sum(text.verify_step() for _ in range(verify_steps))
        path = folder / f"{number}.safetensors"
        tokens = torch.tensor(text.tokens)
        tensors = {
            "token_ids": tokens,
            "hidden_states": text.states[: len(tokens)],
            "continuation_ids": torch.zeros(0, dtype=torch.long),
        }
        write_sample(path, tensors, {"id": str(number)})
        entries.append(
            {
                "id": str(number),
                "category": "spoken",
                "split": "report",
                "prompt_tokens": PROMPT,
                "output_tokens": len(tokens) - PROMPT,
                "finish": "length",
                "file": path.name,
                "sha256": sha256(path),
            }
        )
    manifest = {
        "schema": "draftproof/capture/1",
        "target": {"path": "tiny"},
        "source": "huggingface",
        "versions": {},
        "prompts": {"source": "spoken", "split": "report", "count": samples, "digest": "0"},
        "max_new_tokens": 64,
        "stop_token_ids": [],
        "dtype": "float32",
        "num_layers": layers,
        "hidden_size": speaker.embedding.shape[1],
        "boundaries": list(stored),
        "samples": entries,
        "lookahead_tokens": 0,
        "self_check": {"tokens": 1, "mismatches": 0},
    }
    write_result(folder / "manifest.json", manifest)
    return 1 + accepted / (samples * verify_steps)


class Text:
    """One growing text with random states, boundary 0 aside, which is each token's embedding."""

    def __init__(
        self,
        speaker: NaiveDraft,
        boundaries: Sequence[int],
        stored: Sequence[int],
        pairing: tuple[int, int],
        generator: torch.Generator,
    ) -> None:
        self.speaker, self.generator = speaker, generator
        self.columns = [list(stored).index(b) for b in boundaries]
        self.state, self.token = pairing
        hidden = speaker.target_embedding.shape[1]
        self.states = torch.randn(96, len(stored), hidden, generator=generator)
        self.tokens: list[int] = []
        self.cache: list = [[] for _ in range(speaker.layers)]
        self.rows = 0  # rows of the text that the cache holds
        self.last: tuple[int, Tensor] | None = None
        for _ in range(PROMPT + 1):
            self.add(self.drawn(3, len(speaker.target_embedding)))

    def drawn(self, low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=self.generator))

    def add(self, token: int) -> None:
        self.states[len(self.tokens), 0] = self.speaker.target_embedding[token]
        self.tokens.append(token)

    def chain(self) -> list[int]:
        """What the speaker drafts from the text's last row, the one whose next token is the last."""
        while self.rows < len(self.tokens) - 1:
            row = self.rows
            state = self.states[row + self.state, self.columns]
            token = self.tokens[row + self.token]
            self.last = self.speaker.step(token, self.speaker.fuse(state), row, self.cache)
            self.rows += 1
        assert self.last is not None
        token, fed = self.last
        said, cache = [token], [list(layer) for layer in self.cache]
        for step in range(1, STEPS):
            token, fed = self.speaker.step(token, fed, self.rows - 1 + step, cache)
            said.append(token)
        return said

    def verify_step(self) -> int:
        """Let the text follow the speaker for some tokens and then leave it; return for how many."""
        said = self.chain()
        accepted = ACCEPTED[self.drawn(0, len(ACCEPTED))]
        for token in said[:accepted]:
            self.add(token)
        other = self.drawn(3, len(self.speaker.target_embedding))
        if accepted < STEPS and other == said[accepted]:
            other = other - 1 if other > 3 else other + 1
        self.add(other)
        return accepted
