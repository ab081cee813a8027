"""A tiny target with its draft and validation, built once."""

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from draftproof.cli import main
from tests.builders.tiny_models import tiny_draft, tiny_llama_target


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyPair:
    target: Path
    draft: Path
    validation: Path
    prompts: Path

    def capture(self, out: Path, *more: str) -> int:
        command = ["capture", "--target", str(self.target), "--validation", str(self.validation)]
        command += ["--prompts", str(self.prompts), "--max-new-tokens", "12", "--out", str(out)]
        return main([*command, *more])


PROMPTS = [
    {"id": "one", "category": "math", "turns": ["What is 2 + 2?"]},
    {"id": "two", "category": "writing", "turns": ["Write.", "Shorter, please."]},
    {"id": "three/x", "category": "math", "turns": ["Count from one to ten, and then back again."]},
]


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> TinyPair:
    folder = tmp_path_factory.mktemp("tiny")
    target = tiny_llama_target(folder / "target")
    draft = tiny_draft(folder / "draft", target)
    validation = folder / "validation.json"
    main(["validate", "--draft", str(draft), "--target", str(target), "--json", str(validation)])
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(prompt) + "\n" for prompt in PROMPTS))
    return TinyPair(target=target, draft=draft, validation=validation, prompts=prompts)
