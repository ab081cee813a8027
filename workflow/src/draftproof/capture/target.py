"""The target as transformers runs it: loading, chat template, stop tokens, layers."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from draftproof.capture.generate import Answer, Limits, answers
from draftproof.checkpoint.boundaries import layer_count, target_architecture, text_config
from draftproof.checkpoint.configuration import config_file, read_config
from draftproof.checkpoint.weights import checkpoint_digest, open_weights
from draftproof.errors import InputError, MachineError
from draftproof.files import require_directory

log = logging.getLogger(__name__)
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target(ABC):
    """Who answers: what is known of the target, and how it is asked. `stop_token_ids` ascending.

    `digest` says what the samples were made by; `digest_of` names it in the manifest. `last_state` is the side of the
    final norm that its last states are from, None when it shows none.
    """

    path: Path
    source: str
    digest: str
    digest_of: str
    versions: Mapping[str, str]
    last_state: str | None
    architecture: str
    num_layers: int
    hidden_size: int
    max_positions: int | None
    stop_token_ids: tuple[int, ...]

    @abstractmethod
    def prompt_ids(self, messages: Sequence[Mapping[str, str]], where: str) -> list[int]:
        """Return the token ids of a conversation, up to where the target's answer starts."""

    @abstractmethod
    def text_of(self, output_ids: Sequence[int]) -> str:
        """Return an answer as text, special tokens left out."""

    @abstractmethod
    def answers(
        self, prompts: Sequence[Sequence[int]], boundaries: Sequence[int], limits: Limits
    ) -> Iterator[Answer]:
        """Yield the answer to each prompt (token ids) of a batch, in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTarget(Target):
    """A target that transformers has loaded. `model` and `tokenizer` are transformers' own."""

    model: Any
    tokenizer: Any

    def prompt_ids(self, messages: Sequence[Mapping[str, str]], where: str) -> list[int]:
        """Return the token ids of a conversation, up to where the target's answer starts."""
        import jinja2

        try:
            text = self.tokenizer.apply_chat_template(
                list(messages), add_generation_prompt=True, tokenize=False
            )
        except (ValueError, jinja2.TemplateError) as error:
            raise InputError(
                f"the target's chat template refuses the prompt {where} ({first_line(error)})",
                str(self.path),
            ) from None
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def text_of(self, output_ids: Sequence[int]) -> str:
        """Return an answer as text, special tokens left out."""
        return str(self.tokenizer.decode(list(output_ids), skip_special_tokens=True))

    def answers(
        self, prompts: Sequence[Sequence[int]], boundaries: Sequence[int], limits: Limits
    ) -> Iterator[Answer]:
        """Yield the answer to each prompt (token ids) of a batch, in their order."""
        return answers(self.model, prompts, boundaries, limits)


def load_target(path: Path, dtype: str, device: str) -> LoadedTarget:
    """Load target and tokenizer from local files; no code of the checkpoint is run.

    Raises InputError when transformers cannot load it, MachineError when there is no such device.
    """
    require_directory(path, "target", "Fetch the target, or correct target.path.")
    config = read_config(path, "target")
    weights = open_weights(path)
    architecture, num_layers = target_architecture(config), layer_count(config)
    model, tokenizer = _load(path, dtype, placement(device))
    if not tokenizer.chat_template:
        raise InputError(
            "its tokenizer has no chat template",
            str(path),
            "Use the instruct model, or add chat_template.jinja.",
        )
    text = text_config(config)
    return LoadedTarget(
        path=path,
        source="huggingface",
        digest_of="sha256",
        versions={name: version(name) for name in ("torch", "transformers")},
        last_state="post_norm",
        digest=checkpoint_digest(config_file(path), weights),
        architecture=architecture,
        num_layers=num_layers,
        hidden_size=int(text["hidden_size"]),
        max_positions=text.get("max_position_embeddings"),
        stop_token_ids=stop_token_ids(model, tokenizer),
        model=model,
        tokenizer=tokenizer,
    )


def stop_token_ids(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Return where the target stops: the end-of-text ids of generation_config, config and tokenizer together.

    This is what SGLang 0.5.23 stops at (configs/model_config.py _get_hf_eos_token_id, managers/schedule_batch.py
    _check_token_based_finish).
    """
    found: set[int] = set()
    for ids in (
        getattr(model.generation_config, "eos_token_id", None),
        getattr(model.config, "eos_token_id", None),
        tokenizer.eos_token_id,
    ):
        found |= {ids} if isinstance(ids, int) else set(ids or ())
    return tuple(sorted(found))


def first_line(error: BaseException) -> str:
    """Return the first line of another library's complaint, shortened."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:300].rstrip(".")


def placement(device: str) -> str:
    """Return where a model goes, as transformers' device_map: one device, or "auto", spread over all GPUs."""
    import torch

    gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device == "cpu" or (device == "auto" and not gpus):
        return "cpu"
    if not gpus:
        raise MachineError("no CUDA device", "--device", "Use --device cpu.")
    return "auto" if device == "auto" and gpus > 1 else "cuda"


def _load(path: Path, dtype: str, device_map: str) -> tuple[Any, Any]:
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging as library_logging

    library_logging.disable_progress_bar()
    library_logging.set_verbosity_error()
    local = {"local_files_only": True, "trust_remote_code": False}
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, **local)
        model = AutoModelForCausalLM.from_pretrained(
            path, dtype=getattr(torch, dtype), device_map=device_map, **local
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        raise InputError(
            f"transformers cannot load the target ({first_line(error)})", str(path)
        ) from None
    penalty = getattr(model.generation_config, "repetition_penalty", None)
    if penalty not in (None, 1.0):
        log.warning(
            "the target's generation_config has repetition_penalty %s; unused here", penalty
        )
    return model.eval(), tokenizer
