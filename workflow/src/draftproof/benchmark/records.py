"""One row per request: everything the figures of a cell are computed from, kept as requests.parquet.

Columns: id, category, prompt_tokens, output_ids (list), start_s, event_times_s (list), event_tokens (list), end_s, finish,
cached_tokens, verify_steps, correct_drafts, proposed_drafts, histogram (list), error ("" when the request succeeded).
Times are seconds since the first request of the cell was sent. An event is one message of the stream; it carried
event_tokens[i] new tokens, more than one when drafts were accepted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from draftproof.benchmark.acceptance import Counters
from draftproof.benchmark.client import Reply
from draftproof.benchmark.workload import Sample
from draftproof.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One measured request."""

    id: str
    category: str
    prompt_tokens: int
    output_ids: list[int]
    start_s: float
    event_times_s: list[float]
    event_tokens: list[int]
    end_s: float
    finish: str
    cached_tokens: int
    counters: Counters
    error: str

    @classmethod
    def of(cls, sample: Sample, start_s: float, reply: Reply, origin_s: float) -> Record:
        """Return the record of a reply; start_s and origin_s are of time.perf_counter."""
        return cls(
            id=sample.id,
            category=sample.category,
            prompt_tokens=len(sample.ask.input_ids),
            output_ids=reply.output_ids,
            start_s=start_s - origin_s,
            event_times_s=[at_s - origin_s for at_s in reply.times_s],
            event_tokens=reply.tokens,
            end_s=reply.end_s - origin_s,
            finish=reply.finish,
            cached_tokens=int(reply.meta.get("cached_tokens", 0)),
            counters=Counters.of(reply.meta),
            error=reply.error,
        )

    @property
    def ttft_s(self) -> float:
        """Seconds from sending the request to its first token."""
        return self.event_times_s[0] - self.start_s

    @property
    def decode_s(self) -> float:
        """Seconds from the first token to the last."""
        return self.event_times_s[-1] - self.event_times_s[0]

    @property
    def decode_tokens(self) -> int:
        """Tokens that came after the first event, in decode_s seconds."""
        return sum(self.event_tokens[1:])

    def token_gaps_s(self) -> list[float]:
        """Return one gap per token after the first event: an event's wait, shared evenly by the tokens it brought."""
        gaps = []
        for i in range(1, len(self.event_times_s)):
            count = self.event_tokens[i]
            gaps += [(self.event_times_s[i] - self.event_times_s[i - 1]) / count] * count
        return gaps


def write_records(file: Path, records: Sequence[Record]) -> None:
    """Write the records as parquet, one row each, in order."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        "id": pa.string(),
        "category": pa.string(),
        "prompt_tokens": pa.int32(),
        "output_ids": pa.list_(pa.int32()),
        "start_s": pa.float64(),
        "event_times_s": pa.list_(pa.float64()),
        "event_tokens": pa.list_(pa.int32()),
        "end_s": pa.float64(),
        "finish": pa.string(),
        "cached_tokens": pa.int32(),
        "verify_steps": pa.int32(),
        "correct_drafts": pa.int32(),
        "proposed_drafts": pa.int32(),
        "histogram": pa.list_(pa.int32()),
        "error": pa.string(),
    }
    rows = [
        {
            name: getattr(record if hasattr(record, name) else record.counters, name)
            for name in columns
        }
        for record in records
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=pa.schema(columns)), file)


def read_records(file: Path) -> list[Record]:
    """Read records back; raises InputError when the file is missing or not what write_records writes."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = ("verify_steps", "correct_drafts", "proposed_drafts", "histogram")
    try:
        rows = pq.read_table(file).to_pylist()
        return [
            Record(counters=Counters(**{name: row.pop(name) for name in names}), **row)
            for row in rows
        ]
    except (OSError, pa.ArrowException, KeyError, TypeError) as error:
        raise InputError(
            f"not readable as request records ({error})", str(file), "Run the benchmark again."
        ) from None
