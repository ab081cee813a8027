"""Write a safetensors file again under other names: the values go over byte by byte, unread."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from draftproof.checkpoint.safetensors_header import LENGTH_BYTES
from draftproof.files import read_json

ALIGNMENT_BYTES = 8  # the safetensors library pads its headers so that values start aligned


def write_renamed(source: Path, destination: Path, renames: Mapping[str, str]) -> None:
    """Write the file with tensors renamed; order, metadata and values stay. The source's header must be valid."""
    with source.open("rb") as old, destination.open("wb") as new:
        length = int.from_bytes(old.read(LENGTH_BYTES), "little")
        entries = json.loads(old.read(length))
        header = json.dumps(
            {renames.get(name, name): entry for name, entry in entries.items()},
            separators=(",", ":"),
        ).encode()
        header += b" " * (-len(header) % ALIGNMENT_BYTES)
        new.write(len(header).to_bytes(LENGTH_BYTES, "little") + header)
        shutil.copyfileobj(old, new, 8 << 20)


def renamed_index(index: Path, renames: Mapping[str, str]) -> str:
    """Return the text of an index whose weight_map has the new names."""
    content = read_json(index)
    content["weight_map"] = {
        renames.get(name, name): file for name, file in content["weight_map"].items()
    }
    return json.dumps(content, indent=2) + "\n"
