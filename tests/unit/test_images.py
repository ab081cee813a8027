"""The image lock accepts a digest and nothing less, and says which entry is wrong."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from draftproof.errors import ConfigError
from draftproof.images import load

CONTAINERS = Path(__file__).parents[2] / "containers"
DIGEST = "sha256:" + "0123456789abcdef" * 4
RIGHT: dict[str, Any] = {
    "repository": "docker.io/library/python",
    "tag": "3.11-slim",
    "digest": DIGEST,
    "status": "resolved",
    "platform": "linux/amd64",
    "purpose": "base of cpu.def",
    "source": "crane digest",
    "date": "2026-12-01",
}
REMOVED = object()


def write(folder: Path, **changes: Any) -> Path:
    """Write a lock of one entry named `base`, with some of its keys replaced or removed."""
    entry = {k: v for k, v in (copy.deepcopy(RIGHT) | changes).items() if v is not REMOVED}
    path = folder / "images.lock.yaml"
    path.write_text(yaml.safe_dump({"schema": "draftproof/images/1", "images": {"base": entry}}))
    return path


def test_a_pinned_image_has_a_reference_without_its_tag(tmp_path: Path) -> None:
    image = load(write(tmp_path))["base"]
    assert image.reference == f"docker.io/library/python@{DIGEST}"


def test_a_date_needs_no_quotes(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_text(path.read_text().replace("'2026-12-01'", "2026-12-01"))
    assert "base" in load(path)


def test_an_unresolved_image_loads_but_is_refused_with_the_way_out(tmp_path: Path) -> None:
    image = load(write(tmp_path, digest=None, status="unresolved", reason="no registry"))["base"]
    with pytest.raises(ConfigError) as raised:
        _ = image.reference
    line = str(raised.value)
    assert "\n" not in line
    assert "images.lock.yaml: image 'base' has no digest yet." in line
    assert "crane digest docker.io/library/python:3.11-slim" in line
    assert (
        "skopeo inspect --format '{{.Digest}}' docker://docker.io/library/python:3.11-slim" in line
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"digest": REMOVED}, "images.base: key 'digest' is missing (sha256:"),
        ({"digest": "3.11-slim"}, "images.base.digest: '3.11-slim' does not match"),
        ({"digest": "sha256:2a4e0bfde6eb"}, "images.base.digest: 'sha256:2a4e0bfde6eb' does not"),
        ({"digest": DIGEST.upper()}, "images.base.digest:"),
        ({"digest": None}, "images.base.digest: found None, expected string."),
        ({"repository": "python:3.11-slim"}, "images.base.repository: 'python:3.11-slim' does not"),
        ({"status": "unresolved", "reason": "?"}, "images.base.digest: found 'sha256:"),
        ({"status": "unresolved", "digest": None}, "images.base: key 'reason' is missing"),
        ({"status": "maybe"}, "images.base.status: found 'maybe', allowed: 'resolved'"),
        ({"source": REMOVED}, "images.base: key 'source' is missing (who read the digest"),
        ({"date": "yesterday"}, "images.base.date: 'yesterday' does not match"),
        ({"digset": DIGEST}, "images.base: unknown key 'digset'. Did you mean 'digest'?"),
    ],
)
def test_less_than_a_digest_is_one_line_that_names_the_entry(
    tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        load(write(tmp_path, **changes))
    line = str(raised.value)
    assert "\n" not in line
    assert f"images.lock.yaml: {says}" in line


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "no such file"),
        ("images: [", "not readable as YAML"),
        ("- 1", "expected object"),
        ("schema: draftproof/images/2\nimages: {}", "'draftproof/images/1' was expected"),
    ],
)
def test_an_unreadable_lock_is_one_line(tmp_path: Path, text: str | None, says: str) -> None:
    path = tmp_path / "images.lock.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        load(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert says in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_project_pins_its_bases_by_digest_or_says_that_it_does_not() -> None:
    images = load(CONTAINERS / "images.lock.yaml")
    assert re.fullmatch(r"[\w./-]+@sha256:[0-9a-f]{64}", images["python-3.11"].reference)
    assert "sglang-cu130" in images


def test_no_definition_names_an_image_itself() -> None:
    definitions = list(CONTAINERS.glob("*.def"))
    assert len(definitions) == 2
    for definition in definitions:
        assert "\nFrom: {{ base }}\n" in definition.read_text()
