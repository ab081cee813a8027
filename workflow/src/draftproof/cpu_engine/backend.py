"""SGLang's `torch_native` attention backend, taught the modes that EAGLE needs; imported only inside a server.

Drafting runs a pass per draft step (one query per branch), the target verifies a chain or tree of draft tokens in one
pass, and the draft then extends its own cache over the verified tokens. SGLang 0.5.23 has these for its GPU and AMX
backends only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sglang.srt.layers.attention.attention_registry import register_attention_backend
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from torch import Tensor

from draftproof.cpu_engine import visibility
from draftproof.cpu_engine.attention import attend_ragged, attend_uniform
from draftproof.cpu_engine.visibility import RaggedBatch, UniformBatch

BACKEND = "torch_native"


class SpeculativeTorchNativeBackend(TorchNativeAttnBackend):  # type: ignore[misc]
    """Decoder self-attention for every forward mode; other kinds of layer go to SGLang's own code."""

    visible: UniformBatch | RaggedBatch | None = None

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Work out once per pass what every layer's queries may see."""
        super().init_forward_metadata(forward_batch)
        self.visible = self._plan(forward_batch)

    def _plan(self, forward_batch: Any) -> UniformBatch | RaggedBatch | None:
        mode = forward_batch.forward_mode
        table = self.req_to_token_pool.req_to_token
        rows, seq_lens = forward_batch.req_pool_indices, forward_batch.seq_lens
        if mode.is_idle() or len(seq_lens) == 0:
            return None
        if mode.is_decode():
            return visibility.decode(table, rows, seq_lens)
        if mode.is_target_verify():
            return self._plan_verify(forward_batch)
        if mode.is_draft_extend_v2():
            queries = forward_batch.spec_info.num_tokens_per_req
            return visibility.chain(table, rows, seq_lens, queries=queries)
        return visibility.extend(table, rows, seq_lens, forward_batch.extend_seq_lens)

    def _plan_verify(self, forward_batch: Any) -> UniformBatch:
        draft = forward_batch.spec_info
        table = self.req_to_token_pool.req_to_token
        rows, prefix_lens = forward_batch.req_pool_indices, forward_batch.seq_lens
        nodes = draft.draft_token_num
        if draft.tree_topk == 1:
            return visibility.chain(table, rows, prefix_lens + nodes, queries=nodes)
        shape = (len(prefix_lens), nodes)
        return visibility.tree(
            table,
            rows,
            prefix_lens,
            mask=draft.custom_mask.view(*shape, nodes),
            positions=draft.positions.view(shape),
        )

    def forward_extend(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        **options: Any,
    ) -> Tensor:
        """Attend a prompt, a verify step or a draft extend; returns [tokens, heads * value head size]."""
        if self._foreign(layer):
            self._refuse_unless_plain(layer, forward_batch)
            output: Tensor = super().forward_extend(
                q, k, v, layer, forward_batch, save_kv_cache, **options
            )
            return output
        if k is not None and v is not None and not save_kv_cache:
            return self._attend_uncached(q, k, v, layer)
        return self._attend(q, k, v, layer, forward_batch, options)

    def forward_decode(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        layer: Any,
        forward_batch: Any,
        save_kv_cache: bool = True,
        **options: Any,
    ) -> Tensor:
        """Attend one query per sequence; returns [sequences, heads * value head size]."""
        if self._foreign(layer):
            self._refuse_unless_plain(layer, forward_batch)
            output: Tensor = super().forward_decode(
                q, k, v, layer, forward_batch, save_kv_cache, **options
            )
            return output
        return self._attend(q, k if save_kv_cache else None, v, layer, forward_batch, options)

    def _attend(
        self,
        q: Tensor,
        k: Tensor | None,
        v: Tensor | None,
        layer: Any,
        forward_batch: Any,
        options: dict[str, Any],
    ) -> Tensor:
        if options:
            raise NotImplementedError(
                f"draftproof's CPU engine does not know the attention options {sorted(options)}"
            )
        pool = self.token_to_kv_pool
        if k is not None:
            location = KVWriteLoc(forward_batch.out_cache_loc, self.swa_out_cache_loc)
            pool.set_kv_buffer(layer, location, k, v)
        return self._run(
            q, pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id), layer
        )

    def _attend_uncached(self, q: Tensor, k: Tensor, v: Tensor, layer: Any) -> Tensor:
        """Attend a prompt over the keys and values given, not over the cache.

        SGLang runs latent attention (MLA) over a prompt without prefix this way: the cache holds the compressed form
        only. Its own torch_native backend reads the cache all the same, and so computes something else.
        """
        if not isinstance(self.visible, RaggedBatch):
            raise NotImplementedError("uncached attention outside of a prompt")
        prompt = visibility.uncached(self.visible)
        q = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
        return attend_ragged(q, k, v, prompt, scale=layer.scaling, window=_window(layer))

    def _run(self, q: Tensor, keys: Tensor, values: Tensor, layer: Any) -> Tensor:
        query = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        window = _window(layer)
        if isinstance(self.visible, UniformBatch):
            return attend_uniform(
                query, keys, values, self.visible, scale=layer.scaling, window=window
            )
        if isinstance(self.visible, RaggedBatch):
            return attend_ragged(
                query, keys, values, self.visible, scale=layer.scaling, window=window
            )
        raise RuntimeError("attention ran before its metadata was prepared")

    def _foreign(self, layer: Any) -> bool:
        return bool(
            layer.is_cross_attention
            or layer.attn_type != AttentionType.DECODER
            or self.use_sliding_window_kv_pool
        )

    def _refuse_unless_plain(self, layer: Any, forward_batch: Any) -> None:
        if forward_batch.spec_info is not None:
            raise NotImplementedError(
                f"draftproof's CPU engine cannot speculate with this kind of attention layer ({layer.attn_type})"
            )


class MultiStepDraftBackend:
    """One backend per draft step after the first, prepared together before drafting starts.

    SGLang runs `steps - 1` draft passes per iteration (the first draft token comes from the draft extend).
    """

    def __init__(self, model_runner: Any, topk: int, steps: int) -> None:
        self.topk = topk
        self.steps = steps
        self.attn_backends = [SpeculativeTorchNativeBackend(model_runner) for _ in range(steps - 1)]

    def init_forward_metadata(self, forward_batch: Any) -> None:
        """Work out for each draft step what every branch may see."""
        for step, backend in enumerate(self.attn_backends):
            backend.visible = visibility.draft_step(
                backend.req_to_token_pool.req_to_token,
                forward_batch.req_pool_indices,
                forward_batch.seq_lens,
                topk=self.topk,
                steps=self.steps,
                step=step,
            )


def install() -> None:
    """Make `--attention-backend torch_native` mean the backend above, for the target and for the draft."""
    register_attention_backend(BACKEND)(SpeculativeTorchNativeBackend)
    HookRegistry.register(
        "sglang.srt.speculative.draft_utils.DraftBackendFactory._create_backend",
        _offer_torch_native,
        HookType.AROUND,
    )
    # The draft class with latent attention waits for CUDA without asking whether there is any (models/kimi_k25_eagle3.py).
    HookRegistry.register("torch.cuda.synchronize", lambda device=None: None, HookType.REPLACE)


def _offer_torch_native(
    create: Callable[..., Any],
    factory: Any,
    backend_name: str,
    backend_map: dict[str, Callable[[], tuple[str, Any]]],
    *arguments: Any,
    **options: Any,
) -> Any:
    """Add the CPU backends to the draft's choice; only the multi-step one stamps its children."""

    def build() -> tuple[str, Any]:
        runner = factory.draft_model_runner
        if options.get("stamps_children"):
            return BACKEND, MultiStepDraftBackend(
                runner, factory.topk, factory.speculative_num_steps
            )
        return BACKEND, SpeculativeTorchNativeBackend(runner)

    return create(factory, backend_name, {**backend_map, BACKEND: build}, *arguments, **options)


def _window(layer: Any) -> int | None:
    size = layer.sliding_window_size
    return size if size is not None and size > -1 else None
