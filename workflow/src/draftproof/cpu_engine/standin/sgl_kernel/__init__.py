"""Stand-in for the few `sgl_kernel` CPU functions that SGLang imports for speculation; Python and torch only.

It is importable only in CPU servers (its folder is put on their PYTHONPATH, see `draftproof.cpu_engine`), so that it
can never shadow the real package. Names, argument order, in-place semantics and integer types follow the call sites of
SGLang 0.5.23 in `sglang/kernels/ops/{speculative,kvcache}` and `sglang/srt/mem_cache/allocation.py`. No operator is
registered under `torch.ops.sgl_kernel`: that is how SGLang concludes that AMX kernels are absent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from sgl_kernel.cache_slots import (
    assign_draft_cache_locs_contiguous_cpu,
    assign_extend_cache_locs_cpu,
    assign_req_to_token_pool_cpu,
    fill_accept_out_cache_loc_cpu,
)
from sgl_kernel.draft_tree import build_tree_kernel_efficient_cpu, verify_tree_greedy_cpu
from sgl_kernel.kv_rows import copy_all_layer_kv_cache_cpu
from sgl_kernel.tokens import fill_bonus_tokens_cpu, rotate_input_ids_cpu

__all__ = [
    "assign_draft_cache_locs_contiguous_cpu",
    "assign_extend_cache_locs_cpu",
    "assign_req_to_token_pool_cpu",
    "build_tree_kernel_efficient_cpu",
    "copy_all_layer_kv_cache_cpu",
    "fill_accept_out_cache_loc_cpu",
    "fill_bonus_tokens_cpu",
    "rotate_input_ids_cpu",
    "verify_tree_greedy_cpu",
]


def __getattr__(name: str) -> Callable[..., NoReturn]:
    """Let any other function be imported, as SGLang does at module level, but fail loudly when it is called."""
    if name.startswith("__"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def absent(*_args: object, **_kwargs: object) -> NoReturn:
        raise NotImplementedError(
            f"sgl_kernel.{name} is not part of draftproof's CPU stand-in: "
            "this model or option needs the real sgl_kernel package"
        )

    absent.__name__ = absent.__qualname__ = name
    return absent
