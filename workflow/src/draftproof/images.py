"""Which container images does the workflow use? Those of containers/images.lock.yaml, by digest."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import yaml

from draftproof.errors import ConfigError
from draftproof.experiment import describe
from draftproof.files import schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """One image of the lock."""

    name: str
    repository: str
    tag: str
    digest: str | None
    platform: str
    where: str
    """The file that it stands in, for messages."""

    @property
    def reference(self) -> str:
        """Return ``repository@sha256:...``; raises ConfigError, saying how to resolve it, when no digest is known."""
        if self.digest is None:
            raise ConfigError(
                f"image {self.name!r} has no digest yet",
                self.where,
                f"Read it with `crane digest {self.repository}:{self.tag}` or `skopeo inspect --format"
                f" '{{{{.Digest}}}}' docker://{self.repository}:{self.tag}`, then set digest, source, date and"
                " status: resolved.",
            )
        return f"{self.repository}@{self.digest}"


def load(path: Path) -> dict[str, Image]:
    """Return the images of a lock file by name.

    Raises ConfigError with one line that names the entry when the file is missing, not YAML, or pins an entry by
    less than a digest. An entry that says it is unresolved loads; its reference can't be used.
    """
    import jsonschema

    try:
        # By way of JSON, so that a date without quotes is text too.
        payload = json.loads(
            json.dumps(yaml.safe_load(path.read_text(encoding="utf-8")), default=str)
        )
    except FileNotFoundError:
        raise ConfigError("no such file", str(path)) from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(
            f"not readable as YAML ({' '.join(str(error).split())})", str(path)
        ) from None
    validator = jsonschema.Draft202012Validator(schema("images"))
    for fault in sorted(
        validator.iter_errors(payload), key=lambda fault: list(map(str, fault.path))
    ):
        raise ConfigError(next(describe(fault)), str(path))
    return {
        name: Image(
            name=name,
            repository=entry["repository"],
            tag=entry["tag"],
            digest=entry["digest"],
            platform=entry["platform"],
            where=str(path),
        )
        for name, entry in payload["images"].items()
    }
