"""Read the engine's own words: has it crashed, and what does it say is the reason?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

LINE_LIMIT = 400
EXCEPTION = re.compile(
    r"^(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure|Timeout)\b(?:: .*)?$"
)
ARGUMENT_ERROR = re.compile(r"^[\w .-]+: error: .+$")
STAMP = re.compile(r"^\[\d{4}-\d\d-\d\d [\d:.]+[^\]]*\] ?")
NAMES_EXCEPTION = re.compile(r"^[\w.]+(?:: |$)")
CHAIN_LINKS = ("During handling of the above exception", "The above exception was the direct cause")


def any_of(patterns: Sequence[str]) -> re.Pattern[str]:
    """Return a pattern that finds any of the given texts."""
    return re.compile("|".join(map(re.escape, patterns)))


class LogFollower:
    """Follow a growing log and say when one of the crash patterns appears in it."""

    def __init__(self, path: Path, patterns: Sequence[str]) -> None:
        self.path = path
        self.pattern = any_of(patterns)
        self.offset = 0
        self.rest = ""

    def crashed(self) -> bool:
        """Read what is new since the last call; return whether it says that the engine has crashed."""
        with self.path.open("rb") as stream:
            stream.seek(self.offset)
            new = stream.read()
        self.offset += len(new)
        text = self.rest + new.decode(errors="replace")
        self.rest = text.rpartition("\n")[2][-1000:]  # a line of which only a part has been written
        return bool(self.pattern.search(text))


def crash_reason(log: str, patterns: Sequence[str], consequences: Sequence[str]) -> str:
    """Return the line in which the engine says why it ended, or "" when the log holds none.

    In order: the exception of the first traceback under a crash pattern (later ones are consequences), the complaint of
    its argument parser, the last exception line, the last line of all. Tracebacks of plugins or optional imports
    stand under no crash pattern and do not count.
    """
    lines = [STAMP.sub("", line.rstrip()) for line in log.splitlines()]
    crash = any_of(patterns)
    for at, line in enumerate(lines):
        if (
            crash.search(line)
            and "Traceback" in line
            and (raised := exception_line(lines[at + 1 :]))
        ):
            return shorten(raised)
    consequence = any_of(consequences)
    told = [line for line in lines if line and not consequence.search(line)]
    for wanted in (ARGUMENT_ERROR, EXCEPTION):
        if found := [line for line in told if wanted.match(line)]:
            return shorten(found[-1])
    return shorten(told[-1]) if told else ""


def exception_line(lines: Sequence[str]) -> str:
    """Return the line that names the exception of the traceback at the head of lines; of a chain the last one."""
    raised, linked = "", False
    for line in lines:
        if line.startswith(CHAIN_LINKS):
            linked = True
        elif NAMES_EXCEPTION.match(line) and (linked or not raised):
            raised, linked = line, False
        elif "Traceback" in line and raised and not linked:
            break
    return raised


def shorten(line: str) -> str:
    """Return a line cut to a length that fits a message."""
    return line if len(line) <= LINE_LIMIT else f"{line[: LINE_LIMIT - 4]} ..."
