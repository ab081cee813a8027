"""SGLang plugin (entry point group `sglang.srt.plugins`): EAGLE on the `torch_native` attention backend.

SGLang calls `register` in each of its processes, on every machine where draftproof is installed beside it. It does
nothing unless `draftproof.cpu_engine.server_environment` started the server.
"""

from __future__ import annotations

import logging
import os
from importlib.metadata import PackageNotFoundError, version

from draftproof.cpu_engine import MARKER, stand_in_in_use

SUPPORTED_SGLANG = ("0.5.23",)
"""Versions whose call sites the stand-in and the attention backend were written and tested against."""

log = logging.getLogger(__name__)


def register() -> None:
    """Install the CPU attention backend in this process, if this is a CPU server with the stand-in."""
    if os.environ.get(MARKER) != "1" or os.environ.get("SGLANG_USE_CPU_ENGINE") != "1":
        return
    if not stand_in_in_use():
        return
    found = _sglang_version()
    if found not in SUPPORTED_SGLANG:
        # The server's other processes inherit this, so that the line appears once.
        os.environ[MARKER] = "0"
        log.warning(
            "draftproof: the CPU engine is off: it supports SGLang %s, this is %s",
            " or ".join(SUPPORTED_SGLANG),
            found,
        )
        return
    from draftproof.cpu_engine.backend import install

    install()
    log.info("draftproof: CPU engine on: torch_native attention with speculation")


def _sglang_version() -> str:
    try:
        return version("sglang")
    except PackageNotFoundError:
        return "unknown"
