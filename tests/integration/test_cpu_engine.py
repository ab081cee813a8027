"""Real SGLang servers on the CPU engine: speculation changes the speed, never the text.

Each server answers eight prompts of different length at once (cold), one after the other (the prompts now cached), and
once more continued by its own answer: what it reads then is the cache that speculation wrote.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from tests.builders.engine import Server, draft_flags, running_server
from tests.builders.tiny_models import tiny_deepseek_target, tiny_draft, tiny_llama_target

pytestmark = pytest.mark.engine

TARGETS: dict[str, Callable[[Path], Path]] = {
    "llama": tiny_llama_target,
    "deepseek": tiny_deepseek_target,
}
NEW_TOKENS = (40, 24, 33, 16, 40, 28, 20, 37)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Output ids of one server, and how its verify steps went."""

    together: list[list[int]]
    alone: list[list[int]]
    continued: list[list[int]]
    verify_steps: int
    accept_length: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A target, its draft, and the answers of the server without speculation."""

    target: Path
    draft: Path
    baseline: Answers


def prompts() -> list[list[int]]:
    chance = random.Random(0)
    return [[chance.randrange(3, 256) for _ in range(n)] for n in (3, 50, 17, 1, 29, 8, 41, 12)]


def ask(server: Server) -> Answers:
    """Put every question to one server."""
    together = server.generate_together(prompts(), NEW_TOKENS)
    alone = [server.generate(p, n) for p, n in zip(prompts(), NEW_TOKENS, strict=True)]
    longer = [
        [*prompt, *answer["output_ids"], 77]
        for prompt, answer in zip(prompts(), together, strict=True)
    ]
    continued = server.generate_together(longer, NEW_TOKENS)
    infos = [answer["meta_info"] for answer in (*together, *alone, *continued)]
    steps = sum(info.get("spec_verify_ct", 0) for info in infos)
    correct = sum(info.get("spec_num_correct_drafts", 0) for info in infos)
    return Answers(
        together=[answer["output_ids"] for answer in together],
        alone=[answer["output_ids"] for answer in alone],
        continued=[answer["output_ids"] for answer in continued],
        verify_steps=steps,
        accept_length=1 + correct / steps if steps else 1.0,
    )


@pytest.fixture(scope="module", params=TARGETS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    folder = tmp_path_factory.mktemp(request.param)
    target = TARGETS[request.param](folder / "target")
    draft = tiny_draft(folder / "draft", target)
    with running_server(target, folder / "baseline") as server:
        baseline = ask(server)
    return Pair(target=target, draft=draft, baseline=baseline)


def assert_same_text(answers: Answers, baseline: Answers) -> None:
    assert answers.together == baseline.together
    assert answers.alone == baseline.alone
    assert answers.continued == baseline.continued


def by_transformers(target: Path, questions: Sequence[Sequence[int]]) -> list[list[int]]:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    answers = []
    for prompt, new_tokens in zip(questions, NEW_TOKENS, strict=True):
        ids = torch.tensor([prompt])
        whole = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=new_tokens,
            pad_token_id=1,
        )
        answers.append(whole[0, len(prompt) :].tolist())
    return answers


def test_the_plain_server_says_what_transformers_says(pair: Pair) -> None:
    baseline = pair.baseline
    assert baseline.verify_steps == 0
    assert baseline.together == by_transformers(pair.target, prompts())
    assert baseline.alone == baseline.together


@pytest.mark.parametrize(
    "shape", [{"steps": 3}, {"steps": 3, "topk": 4, "nodes": 8}], ids=["chain", "tree"]
)
def test_speculation_keeps_the_text(pair: Pair, shape: dict[str, int], tmp_path: Path) -> None:
    with running_server(pair.target, tmp_path, *draft_flags(pair.draft, **shape)) as server:
        answers = ask(server)
    assert_same_text(answers, pair.baseline)
    assert answers.verify_steps > 0
    assert 1.2 < answers.accept_length < 4.0


SWEEP = [
    *({"steps": steps} for steps in (1, 2, 4, 5, 6, 7)),
    {"steps": 1, "topk": 4, "nodes": 4},
    {"steps": 2, "topk": 2, "nodes": 5},
    {"steps": 5, "topk": 8, "nodes": 32},
    {"steps": 7, "topk": 3, "nodes": 6},
]


@pytest.mark.slow
@pytest.mark.parametrize("shape", SWEEP, ids=lambda shape: "-".join(map(str, shape.values())))
def test_speculation_keeps_the_text_at_every_shape_and_batch_size(
    pair: Pair, shape: dict[str, int], tmp_path: Path
) -> None:
    with running_server(pair.target, tmp_path, *draft_flags(pair.draft, **shape)) as server:
        assert_same_text(ask(server), pair.baseline)
        for size in range(1, 9):
            answers = server.generate_together(prompts()[:size], NEW_TOKENS[:size])
            assert [a["output_ids"] for a in answers] == pair.baseline.together[:size]
