"""Read and write result files: whole or not at all, and checked against their schema on both sides."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from draftproof.errors import InputError

SCHEMAS = Path(__file__).parent / "schemas"


@cache
def schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a result kind, e.g. ``validation`` or ``config``."""
    loaded: dict[str, Any] = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
    return loaded


def schema_faults(payload: object, name: str) -> list[str]:
    """Return one ``path: message`` line per place where payload breaks the schema, in document order."""
    import jsonschema

    validator = jsonschema.Draft202012Validator(schema(name))
    faults = sorted(validator.iter_errors(payload), key=lambda fault: list(map(str, fault.path)))
    return [f"{fault.json_path}: {fault.message[:300]}" for fault in faults]


def write_text(path: Path, text: str) -> None:
    """Write text so that a reader sees the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_result(path: Path, payload: Mapping[str, Any]) -> None:
    """Write a result file; ``payload["schema"]`` (``draftproof/<kind>/<version>``) names its schema.

    A payload that breaks its own schema is a bug in the stage, so it raises ValueError.
    """
    kind = str(payload["schema"]).split("/")[1]
    if faults := schema_faults(payload, kind):
        raise ValueError(f"{path.name} breaks its schema: {'; '.join(faults)}")
    write_text(path, json.dumps(payload, indent=1, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file; raises InputError when it is missing or not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("no such file", str(path), "Run the stage that makes it.") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise InputError(
            f"not readable as JSON ({error})", str(path), "Fetch the file again, or make it again."
        ) from None


def read_result(path: Path, kind: str) -> dict[str, Any]:
    """Read a result file of the given kind; raises InputError when it is of another kind, version or form."""
    payload = read_json(path)
    expected = schema(kind)["properties"]["schema"]["const"]
    found = payload.get("schema") if isinstance(payload, dict) else None
    if found != expected:
        raise InputError(
            f"expected a file of schema {expected!r}, found {found!r}",
            str(path),
            "Rerun the stage that writes it with this version of draftproof.",
        )
    if faults := schema_faults(payload, kind):
        raise InputError(faults[0], str(path), "Rerun the stage that writes it.")
    return dict(payload)


@contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """Yield a temporary directory that takes the place of path when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
    try:
        yield beside
        beside.chmod(0o755)
        old = beside.with_name(beside.name + ".old")
        if path.exists():
            path.replace(old)
        beside.replace(path)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def digest(payload: object, length: int = 16) -> str:
    """Return the first hex digits of the SHA-256 over payload's canonical JSON."""
    text = json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


def require_directory(path: Path, what: str, fix: str = "") -> Path:
    """Return path if it is a directory; raises InputError naming what it should have been."""
    if not path.is_dir():
        found = "is a file" if path.exists() else "does not exist"
        raise InputError(f"the {what} directory {found}", str(path), fix)
    return path
