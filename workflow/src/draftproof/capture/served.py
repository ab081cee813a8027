"""The target as the engine serves it: its greedy text, and the hidden states behind it, from a server of the arm capture.

Text is made first, several requests at a time. Then each text is read by the server once more, alone and whole: the states
of its tokens come from that one prefill, rows in the order of the tokens, and the server's own choices must repeat the
text. Alone, because a server that prefills several texts together may cut one in two, and keeps the states of the last
part only (managers/scheduler_components/batch_result_processor.py, _append_prefill_hidden_states with store=False).
States come as JSON numbers, about 20 bytes each in float32 and 11 in bfloat16.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftproof.benchmark.client import Ask, Reply, connect, require_server
from draftproof.capture.generate import Answer, Limits
from draftproof.capture.stops import configured_stop_ids
from draftproof.capture.target import DTYPES, Target
from draftproof.checkpoint.boundaries import (
    boundaries_of_ids,
    layer_count,
    target_architecture,
    text_config,
)
from draftproof.checkpoint.configuration import read_config
from draftproof.checkpoint.target_tensors import target_embedding
from draftproof.engines import facts
from draftproof.errors import ConfigError, EngineError
from draftproof.files import require_directory

if TYPE_CHECKING:
    from torch import Tensor

IDS_SETTING = "return_aux_hidden_state_layer_ids"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTarget(Target):
    """A target behind a server. `served` are the boundaries that it hands out; `embedding` [V, H] gives boundary 0 where it cannot."""

    url: str
    log: str
    served: tuple[int, ...]
    embedding: Tensor | None
    dtype: str

    def prompt_ids(self, messages: Sequence[Mapping[str, str]], where: str) -> list[int]:
        """Return the token ids of a conversation, up to where the target's answer starts."""

        async def ask() -> list[int]:
            async with connect(self.url) as client:
                return await client.tokens_of(messages)

        try:
            return asyncio.run(ask())
        except EngineError as error:
            raise EngineError(f"refuses the prompt {where}: {error.what}", error.where) from None

    def text_of(self, output_ids: Sequence[int]) -> str:
        """Return an answer as text, special tokens left out."""

        async def ask() -> str:
            async with connect(self.url) as client:
                return await client.text_of(output_ids)

        return asyncio.run(ask())

    def answers(
        self, prompts: Sequence[Sequence[int]], boundaries: Sequence[int], limits: Limits
    ) -> Iterator[Answer]:
        """Yield the answer to each prompt (token ids) of a batch, in their order."""
        for prompt, reply in zip(prompts, asyncio.run(self._texts(prompts, limits)), strict=True):
            answer = asyncio.run(self._whole(prompt, reply, boundaries, limits))
            if answer.mismatches and len(prompts) > 1:
                (alone,) = asyncio.run(self._texts([prompt], limits))
                answer = asyncio.run(self._whole(prompt, alone, boundaries, limits))
            yield answer

    async def _texts(self, prompts: Sequence[Sequence[int]], limits: Limits) -> list[Reply]:
        """Return the server's greedy answers to prompts that are all in flight at once."""
        stops = sorted(limits.stop_token_ids)
        asks = [
            Ask(input_ids=prompt, max_new_tokens=limits.max_new_tokens, stop_token_ids=stops)
            for prompt in prompts
        ]
        async with connect(self.url) as client:
            replies = await asyncio.gather(*map(client.generate, asks))
        if failed := [reply.error for reply in replies if reply.error]:
            raise EngineError(f"a request failed: {failed[0]}", self.url, f"Its log: {self.log}")
        return replies

    async def _whole(
        self, prompt: Sequence[int], reply: Reply, boundaries: Sequence[int], limits: Limits
    ) -> Answer:
        """Let the server read prompt and text; return the answer with its states and the check of its tokens."""
        token_ids = [*prompt, *reply.output_ids]
        async with connect(self.url) as client:
            read = await client.read(token_ids, len(prompt) - 1, limits.lookahead)
        meta = read["meta_info"]
        # One entry per token from the last of the prompt on: what was most probable in its place. The first has none.
        said = [entry[0][1] for entry in meta["input_top_logprobs"][1:]]
        return Answer(
            prompt_ids=list(prompt),
            output_ids=reply.output_ids,
            continuation_ids=read["output_ids"],
            finish=reply.finish,
            hidden_states=self._states(token_ids, meta, boundaries),
            last_hidden_state=None,
            checked=len(reply.output_ids),
            mismatches=sum(a != b for a, b in zip(said, reply.output_ids, strict=True)),
        )

    def _states(
        self, token_ids: Sequence[int], meta: Mapping[str, Any], boundaries: Sequence[int]
    ) -> Tensor:
        """Return the states [T, A, H] of an answer's prefill; raises EngineError when rows or numbers are missing."""
        import numpy as np
        import torch

        rows = meta["hidden_states"][0]
        width = len(self.served) * self.hidden_size
        if len(rows) != len(token_ids) or {len(row) for row in rows} != {width}:
            raise EngineError(
                f"returned {len(rows)} rows of {len(rows[0])} numbers for {len(token_ids)} tokens of {width}"
                f" ({meta['cached_tokens']} tokens came from its cache)",
                self.url,
                f"Serve with chunked-prefill-size {len(token_ids)} or more; it keeps the last part of a longer text only.",
            )
        # JSON has no NaN: the server writes null, which becomes NaN again here.
        joined = torch.from_numpy(np.array(rows, dtype=np.float32))
        found = dict(zip(self.served, joined.split(self.hidden_size, dim=1), strict=True))  # type: ignore[no-untyped-call]
        if self.embedding is not None:
            found[0] = self.embedding[torch.tensor(token_ids)].float()
        states = torch.stack([found[b] for b in boundaries], dim=1)
        stored = states.to(getattr(torch, self.dtype))
        if bool(((stored.float() != states) & states.isfinite()).any()):
            raise ConfigError(
                f"the server's states are not {self.dtype} numbers", "--dtype", "Use float32."
            )
        return stored


def served_target(
    path: Path, launch: Mapping[str, Any], dtype: str | None, wanted: Sequence[int]
) -> ServedTarget:
    """Return the target behind a running server of the arm capture; `wanted` boundaries decide whether its embedding is read.

    Raises ConfigError for a server of another arm or target, EngineError when it does not answer.
    """
    server = f"server {launch['server']}"
    if launch["arm"] != "capture":
        raise ConfigError(
            f"is of the arm {launch['arm']}",
            server,
            "Start one with draftproof serve --arm capture.",
        )
    if "stopped_at" in launch:
        raise EngineError(f"has stopped ({launch['stopped_at']})", server, "Start it again.")
    config = read_config(require_directory(path, "target"), "target")
    if Path(launch["target"]).resolve() != path.resolve():
        raise ConfigError(f"serves {launch['target']}, not {path}", server, "Give its target.")
    asyncio.run(_require(launch))
    architecture, layers, text = (
        target_architecture(config),
        layer_count(config),
        text_config(config),
    )
    ids = launch["settings"][IDS_SETTING]["found"]
    served = sorted(boundaries_of_ids(launch["engine"], architecture, ids, layers))
    scaled = facts(launch["engine"], "serving")["capture"]["scaled_embeddings"]
    missing = 0 in wanted and 0 not in served and architecture not in scaled
    return ServedTarget(
        path=path,
        source="sglang",
        digest=launch["digest"],
        digest_of="launch",
        versions=launch["versions"],
        last_state=None,
        architecture=architecture,
        num_layers=layers,
        hidden_size=int(text["hidden_size"]),
        max_positions=text.get("max_position_embeddings"),
        stop_token_ids=tuple(sorted(configured_stop_ids(path))),
        url=launch["url"],
        log=launch["log"],
        served=tuple(served),
        embedding=target_embedding(path) if missing else None,
        dtype=dtype or _dtype_of(launch, text),
    )


async def _require(launch: Mapping[str, Any]) -> None:
    async with connect(launch["url"]) as client:
        await require_server(client, launch)


def _dtype_of(launch: Mapping[str, Any], text: Mapping[str, Any]) -> str:
    """Return the dtype the server computes in, as far as flags and config tell; float32 holds any other."""
    asked = launch["settings"].get("dtype", {}).get("found")
    for name in (asked, text.get("dtype"), text.get("torch_dtype")):
        if name in DTYPES:
            return str(name)
    return "float32"
