"""Where MLflow is: which addresses are taken, what of them may be shown, and whether anybody answers there."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from draftproof.errors import ConfigError, InputError, MachineError

HEALTH_TIMEOUT_S = 3.0
SQLITE = "sqlite:///"
SQLITE_MAGIC = b"SQLite format 3\0"
RETRY = "The results are on disk, untouched; run track again."
CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")
TOKENS = re.compile(r"\bhf_[A-Za-z0-9]{16,}\b")
KEY_VALUE = re.compile(
    r"(?i)([\w-]*(?:api[_-]?key|password|secret|access[_-]?token)[\w-]*[\"']?(?:\s*[=:]\s*|[\"'],?\s+|\s+)[\"']?)"
    r"(?!None\b|null\b|False\b|True\b)([^\s\"',]+)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A tracking address."""

    uri: str
    """For MLflow: absolute, credentials included. Never printed or written."""
    shown: str
    """As given, without credentials."""
    database: Path | None
    """The sqlite file when MLflow is written to directly."""


def redact(text: str) -> str:
    """Return text without user and password in addresses, access tokens, and values of keys that name a secret."""
    text = TOKENS.sub("[removed]", CREDENTIALS.sub("", text))
    return KEY_VALUE.sub(r"\1[removed]", text)


def parse(uri: str) -> Address:
    """Return the address; raises ConfigError unless it is a sqlite file or an HTTP server.

    A relative sqlite path (three slashes) is relative to the current folder.
    """
    if uri.startswith(SQLITE) and uri != SQLITE:
        database = Path(uri.removeprefix(SQLITE).partition("?")[0]).absolute()
        return Address(uri=f"{SQLITE}{database}", shown=uri, database=database)
    with suppress(
        ValueError
    ):  # of urlsplit and .port: no such port, brackets of IPv6 that do not match
        parts = urlsplit(uri)
        if parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0:
            shown = CREDENTIALS.sub("", uri).partition("?")[0].rstrip("/")
            return Address(uri=uri, shown=shown, database=None)
    raise ConfigError(
        f"no tracking address: {redact(uri)!r}",
        "tracking.uri",
        "Give sqlite:///path/to/mlflow.db or http(s)://host:port.",
    )


def require_answer(address: Address) -> None:
    """Raise MachineError when no MLflow answers within seconds; InputError when the file is no sqlite database."""
    if address.database is not None:
        require_database(address.database)
        return
    parts = urlsplit(address.uri)
    host = parts.netloc.rpartition("@")[2]
    health = urlunsplit((parts.scheme, host, parts.path.rstrip("/") + "/health", "", ""))
    try:
        with urllib.request.urlopen(health, timeout=HEALTH_TIMEOUT_S) as answer:
            answer.read(64)
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise MachineError(f"no MLflow answers ({reason})", address.shown, RETRY) from None


def require_database(file: Path) -> None:
    """Raise InputError when the file exists and is no sqlite database, MachineError when its folder cannot be made."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists() and (head := file.open("rb").read(16)) and head != SQLITE_MAGIC:
            raise InputError("not a sqlite database", str(file), "Delete it; track rebuilds it.")
    except OSError as error:
        raise MachineError(f"not usable ({error.strerror})", str(file), RETRY) from None
