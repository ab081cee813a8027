"""A small client of the engine's native HTTP interface; the only module that talks to it.

``/generate`` is asked for token ids in and token ids out, streamed, so that counts are exact and timings are those of the
tokens, not of text. Its ``meta_info`` carries the counters of speculation once, in the last event of a request.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from draftproof.errors import EngineError

CONNECT_S = 10.0


class ServerGone(EngineError):
    """Nothing answers at the server's address any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request: greedy continuation of token ids."""

    input_ids: Sequence[int]
    max_new_tokens: int
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False

    def body(self) -> dict[str, Any]:
        """Return the JSON body of ``POST /generate``."""
        sampling: dict[str, Any] = {
            "temperature": 0,
            "max_new_tokens": self.max_new_tokens,
            "ignore_eos": self.ignore_eos,
        }
        if self.stop_token_ids:
            sampling["stop_token_ids"] = list(self.stop_token_ids)
        return {"input_ids": list(self.input_ids), "sampling_params": sampling, "stream": True}


@dataclass(slots=True)
class Reply:
    """What came back, as far as it came; `times_s` are of time.perf_counter, one per event that carried tokens."""

    output_ids: list[int] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    meta: dict[str, Any] = field(default_factory=dict)
    end_s: float = 0.0
    error: str = ""

    def take(self, event: dict[str, Any], at_s: float) -> None:
        """Add one event. `output_ids` may hold all ids so far (the default) or the new ones (incremental streaming).

        Which of the two is told by ``completion_tokens``, which counts all so far in both; raises EngineError
        when neither fits.
        """
        if "error" in event:
            error = event["error"]
            raise EngineError(
                str(error.get("message", error) if isinstance(error, dict) else error)
            )
        self.meta = event["meta_info"]
        ids, count = event.get("output_ids") or [], self.meta["completion_tokens"]
        known = len(self.output_ids)
        if len(ids) == count and list(ids[:known]) == self.output_ids:
            ids = ids[known:]
        elif known + len(ids) != count:
            raise EngineError(
                f"{len(ids)} ids in an event after {known}, but completion_tokens is {count}"
            )
        if ids:
            self.output_ids += ids
            self.tokens.append(len(ids))
            self.times_s.append(at_s)

    @property
    def finish(self) -> str:
        """How generation ended: ``stop``, ``length``, ``abort``, or "" when the stream broke off before."""
        reason = self.meta.get("finish_reason")
        return str(reason["type"] if isinstance(reason, dict) else reason or "")


class Client:
    """Asynchronous access to one server."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def ready(self) -> bool:
        """Return whether the server takes requests now."""
        try:
            return (await self.http.get("/ready")).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    async def server_info(self) -> dict[str, Any]:
        """Return the settings the server runs with; raises EngineError when it does not say."""
        try:
            answer = await self.http.get("/server_info")
            answer.raise_for_status()
            info: dict[str, Any] = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise EngineError(
                f"no server_info ({describe(error)})", str(self.http.base_url)
            ) from None
        return info

    async def flush_cache(self, wait_s: float = 30.0) -> str:
        """Empty the prefix cache; return "" when the server did so, else what it said. It waits for running requests."""
        try:
            answer = await self.http.post(
                "/flush_cache", params={"timeout": wait_s}, timeout=wait_s + CONNECT_S
            )
        except httpx.HTTPError as error:
            return describe(error)
        return (
            ""
            if answer.status_code == httpx.codes.OK
            else f"{answer.status_code} {answer.text.strip()[:200]}"
        )

    async def tokens_of(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Return the token ids of a conversation by the server's own template, up to where an answer starts."""
        body = {"messages": list(messages), "add_generation_prompt": True}
        ids: list[int] = (await self._post("/tokenize", body))["tokens"]
        return ids

    async def text_of(self, token_ids: Sequence[int]) -> str:
        """Return token ids as text, special tokens left out."""
        return str((await self._post("/detokenize", {"tokens": list(token_ids)}))["text"])

    async def read(
        self, input_ids: Sequence[int], judged_from: int, more_tokens: int
    ) -> dict[str, Any]:
        """Let the server read a whole text and go on greedily for `more_tokens`; return its answer with hidden states.

        It is one piece, not a stream, in which every event would hold all states again. The server's own choice
        after each token from `judged_from` on is in ``meta_info.input_top_logprobs``. Raises EngineError.
        """
        body = {
            "input_ids": list(input_ids),
            "sampling_params": {
                "temperature": 0,
                "max_new_tokens": more_tokens,
                "ignore_eos": True,
            },
            "return_hidden_states": True,
            "return_logprob": True,
            "logprob_start_len": judged_from,
            "top_logprobs_num": 1,
        }
        return await self._post("/generate", body)

    async def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a request; raises EngineError with the server's words when it has none."""
        where = f"{self.http.base_url}{path}"
        try:
            answer = await self.http.post(path, json=body)
            if answer.status_code != httpx.codes.OK:
                raise EngineError(f"{answer.status_code} {answer.text.strip()[:300]}", where)
            found: dict[str, Any] = answer.json()
        except (httpx.HTTPError, ValueError) as error:
            raise EngineError(describe(error), where) from None
        return found

    async def generate(self, ask: Ask, reply: Reply | None = None) -> Reply:
        """Run one request to its end. A request that fails is a reply with `error` set, holding what came before.

        A reply given is filled while the tokens come, so that others can watch it.

        Raises ServerGone when no connection could be made at all.
        """
        reply = Reply() if reply is None else reply
        try:
            async with self.http.stream("POST", "/generate", json=ask.body()) as answer:
                if answer.status_code != httpx.codes.OK:
                    text = (await answer.aread()).decode(errors="replace")
                    reply.error = f"{answer.status_code} {text.strip()[:300]}"
                else:
                    await read_events(answer, reply)
        except httpx.ConnectError as error:
            raise ServerGone(
                f"no server answers ({describe(error)})", str(self.http.base_url)
            ) from None
        except httpx.HTTPError as error:
            reply.error = describe(error)
        except EngineError as error:
            reply.error = str(error)
        except (ValueError, KeyError, TypeError) as error:
            reply.error = f"not an event of the engine: {describe(error)}"
        reply.end_s = time.perf_counter()
        return reply


async def read_events(answer: httpx.Response, reply: Reply) -> None:
    """Read the server-sent events of one answer into reply; raises EngineError when the stream breaks off."""
    async for line in answer.aiter_lines():
        if not line.startswith("data:"):
            continue
        data = line[5:].strip()
        if data == "[DONE]":
            break
        reply.take(json.loads(data), time.perf_counter())
    if reply.finish == "":
        raise EngineError(
            f"the stream ended after {len(reply.output_ids)} tokens without a finish reason"
        )
    if reply.finish == "abort":
        raise EngineError(
            f"aborted by the engine: {reply.meta['finish_reason'].get('message', '')}"
        )


def describe(error: Exception) -> str:
    """Return an error as text; some have none but their name."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


@asynccontextmanager
async def connect(url: str, *, silence_s: float = 600.0) -> AsyncIterator[Client]:
    """Yield a client of the server at url; a request fails after silence_s without a byte from the server."""
    timeout = httpx.Timeout(silence_s, connect=CONNECT_S, pool=None)
    # The server is on this machine or named by hand: proxies of the environment are not for it.
    async with httpx.AsyncClient(
        base_url=url,
        timeout=timeout,
        trust_env=False,
        verify=url.startswith("https:"),  # reading the certificates takes longer than a request
        limits=httpx.Limits(max_connections=None),
    ) as http:
        yield Client(http)


async def require_server(client: Client, launch: Mapping[str, Any]) -> None:
    """Raise EngineError unless the server of this launch answers at its address."""
    if not await client.ready():
        raise EngineError(
            f"no server is ready at {launch['url']}",
            f"server {launch['server']}",
            f"See {launch['log']}",
        )
    wanted, found = (
        launch["settings"]["model_path"]["found"],
        (await client.server_info()).get("model_path"),
    )
    if found != wanted:
        raise EngineError(
            f"another server answers: it has {found!r}, not {wanted!r}", launch["url"]
        )
