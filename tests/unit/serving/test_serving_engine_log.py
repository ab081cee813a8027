"""The reason is the engine's own, and the right one of the many lines a crash leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftproof.engines import facts
from draftproof.serving.engine_log import LogFollower, crash_reason
from tests.builders.fake_engine import TRACEBACK

KNOWN = facts("sglang==0.5.23", "serving")
PATTERNS, CONSEQUENCES = KNOWN["crash_patterns"], KNOWN["consequences"]

CHAIN = """[2026-01-01 00:00:01 TP0] Scheduler hit an exception: Traceback (most recent call last):
  File "a.py", line 1, in load
KeyError: 'midlayer'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "b.py", line 2, in start
ValueError: no weights for midlayer
  in two lines

[2026-01-01 00:00:02] Received sigquit from a child process. It usually means the child failed.
"""
SECOND = """[2026-01-01 00:00:01 TP0] Scheduler hit an exception: Traceback (most recent call last):
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB
[2026-01-01 00:00:01 TP1] Scheduler hit an exception: Traceback (most recent call last):
RuntimeError: NCCL peer is gone
"""
ARGUMENTS = """usage: sglang serve [-h]
                   [--config CONFIG]
sglang serve: error: unrecognized arguments: --no-such-flag 3
"""
OUTSIDE = """loading
Traceback (most recent call last):
  File "launch_server.py", line 9, in <module>
ValueError: cannot read the config
"""


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (TRACEBACK, "AttributeError: 'LlamaConfig' object has no attribute 'draft_vocab_size'"),
        (CHAIN, "ValueError: no weights for midlayer"),
        (SECOND, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"),
        (ARGUMENTS, "sglang serve: error: unrecognized arguments: --no-such-flag 3"),
        (OUTSIDE, "ValueError: cannot read the config"),
        ("loading\n[2026-01-01 00:00:01] half way\n", "half way"),
        ("", ""),
    ],
)
def test_reason_is_the_cause_not_a_consequence(log: str, reason: str) -> None:
    assert crash_reason(log, PATTERNS, CONSEQUENCES) == reason


def test_long_reason_is_cut() -> None:
    assert len(crash_reason(f"ValueError: {'x' * 5000}", PATTERNS, CONSEQUENCES)) == 400


def test_crash_is_seen_even_when_its_line_comes_in_two_parts(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    log.write_text(
        "Traceback (most recent call last):\nModuleNotFoundError: a plugin\nScheduler hit an exc"
    )
    follower = LogFollower(log, PATTERNS)
    assert not follower.crashed()
    with log.open("a") as stream:
        stream.write("eption: Traceback")
    assert follower.crashed()
