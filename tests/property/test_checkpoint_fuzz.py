"""Whatever stands in headers and configs: an answer or one line, in bounded time and memory, and no pickle opened."""

import json
import os
import pickle
import resource
import time
from pathlib import Path

import pytest

from draftproof.checkpoint.convert import write_draft
from draftproof.checkpoint.pair import read_pair
from draftproof.checkpoint.validate import table, validation
from draftproof.errors import InputError
from draftproof.files import schema_faults
from tests.builders.checkpoints_fuzz import seeds, write_case

ENGINE = "sglang==0.5.23"
SLOWEST_S = 30.0  # on a busy machine; a case takes milliseconds
MOST_BYTES = 200 << 20


class Trap:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.mark,))


def answer(draft: Path, target: Path, out: Path) -> str:
    """Validate and, when there is no error, write what would be served; returns the status, or `refused`."""
    try:
        pair = read_pair(draft, target, ENGINE)
        found = validation(pair)
        if found["status"] != "fail":
            for file in out.iterdir():
                file.unlink()
            write_draft(pair, out)
    except InputError as error:
        line = str(error)
    else:
        assert not schema_faults(found, "validation")
        json.dumps(found, allow_nan=False)
        table(found).encode()
        return str(found["status"])
    assert "\n" not in line
    return "refused"


def largest_bytes() -> int:
    """Return the most memory this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def run(path: Path, cases: range) -> dict[str, int]:
    """Answer the cases, a booby-trapped pickle beside each; returns {status: how many}."""
    found, statuses = seeds(path / "seeds"), dict.fromkeys(("pass", "warn", "fail", "refused"), 0)
    out, case, mark = path / "out", path / "case", path / "opened"
    out.mkdir()
    case.joinpath("draft").mkdir(parents=True)
    trap = pickle.dumps(Trap(mark))
    for name in ("pytorch_model.bin", "model.pt", "tokenizer.json"):
        (case / "draft" / name).write_bytes(trap)
    before = 0
    for number in cases:
        draft, target = write_case(number, found, case)
        start = time.perf_counter()
        try:
            statuses[answer(draft, target, out)] += 1
        except Exception as error:
            error.add_note(f"case {number}")
            raise
        assert time.perf_counter() - start < SLOWEST_S, f"case {number}"
        before = before or largest_bytes()
    assert not mark.exists()
    grown = largest_bytes() - before
    assert grown < MOST_BYTES, f"{grown >> 20} MiB more"
    print(f"{len(cases)} cases: {statuses}, {grown >> 20} MiB more than after the first")
    return statuses


def test_mutated_headers_and_configs(tmp_path: Path) -> None:
    statuses = run(tmp_path, range(400))
    assert min(statuses["fail"], statuses["refused"], statuses["pass"] + statuses["warn"]) > 20


@pytest.mark.slow
@pytest.mark.timeout(6 * 3600)
def test_100_000_mutated_headers_and_configs(tmp_path: Path) -> None:
    run(tmp_path, range(int(os.environ.get("DRAFTPROOF_FUZZ_CASES", "100000"))))
