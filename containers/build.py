"""Build an Apptainer image from a definition in this folder and print its path.

The digest of all that goes into the image stands in its file name, so a changed image is another file: Snakemake sees
that, and an old image can't pass for a new one. An image that is there already is not built again.

examples:
  python containers/build.py cpu                        report, diagnosis, checkpoint and preflight: a small image
  python containers/build.py cpu --requirements lock    every stage, the CPU engine included: several GB
  python containers/build.py gpu                        on SGLang's own image, with the tools beside it
  python containers/build.py cpu --base FOLDER          where no registry can be reached (see debian-base.sh)
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from draftproof.engines import DEFAULT_ENGINE
from draftproof.errors import ConfigError, DraftproofError, MachineError
from draftproof.images import load

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "requirements.lock"
SOURCE_ONLY = "connection_pool"  # published without a wheel
QUICK = "-comp gzip -Xcompression-level 1"  # half the time for a tenth more bytes
# Preflight asks the driver through NVML.
TOOLS = ("draftproof", "nvidia-ml-py")
ROOTS = {"core": TOOLS, "track": (*TOOLS, "mlflow")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What an image is made from."""

    definition: str
    base: str
    python: str
    requirements: str


RECIPES = {
    "cpu": Recipe(definition="cpu.def", base="python-3.11", python="3.11", requirements="core"),
    # The engine's image has torch and transformers; with MLflow's client the whole chain runs in it.
    "gpu": Recipe(
        definition="gpu-server.def", base="sglang-cu130", python="3.12", requirements="track"
    ),
}


def needed(roots: tuple[str, ...], python: str) -> set[str]:
    """Return the names of all distributions that roots need, from what is installed here, draftproof excluded."""
    todo, found = list(roots), set[str]()
    while todo:
        name = canonicalize_name(todo.pop())
        if name in found:
            continue
        found.add(name)
        for text in metadata.requires(name) or []:
            requirement = Requirement(text)
            environment = {
                "extra": "",
                "python_version": python,
                "python_full_version": f"{python}.0",
            }
            if requirement.marker is None or requirement.marker.evaluate(environment):
                todo.append(requirement.name)
    return found - {"draftproof"}


def requirement_lines(which: str, python: str) -> str:
    """Return the lines of requirements.lock, hashes included, that make up a set: core, track or lock (all)."""
    lines = [line for line in LOCK.read_text().splitlines() if line and not line.startswith("#")]
    if which != "lock":
        try:
            names = needed(ROOTS[which], python)
        except metadata.PackageNotFoundError as error:
            raise MachineError(
                f"{error.name} is not installed", "build", "Run `make install`."
            ) from None
        locked = {canonicalize_name(line.partition("==")[0]): line for line in lines}
        if missing := sorted(names - set(locked)):
            raise ConfigError(
                f"not in requirements.lock: {', '.join(missing)}", str(LOCK), "Run `make lock`."
            )
        lines = [locked[name] for name in sorted(names)]
    return "\n".join(lines) + "\n"


def run(*command: str) -> None:
    """Run a command with its output on stderr; raises MachineError when it fails or is missing."""
    try:
        subprocess.run(command, check=True, stdout=sys.stderr, cwd=ROOT)
    except FileNotFoundError:
        raise MachineError(f"{command[0]} is not installed", "build") from None
    except subprocess.CalledProcessError as error:
        raise MachineError(
            f"{Path(command[0]).name} failed with {error.returncode}", "build"
        ) from None


def pip(*arguments: str) -> None:
    """Run this environment's pip."""
    run(sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments)


def revision() -> str:
    """Return the checkout's commit, with `-dirty` when files differ from it."""
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    return (
        subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout.strip()
        or "unknown"
    )


def base_of(recipe: Recipe, folder: Path | None) -> tuple[str, str, str]:
    """Return (Apptainer's bootstrap agent, what it starts from, the base's name for the label and the digest)."""
    if folder is None:
        reference = load(ROOT / "containers/images.lock.yaml")[recipe.base].reference
        return "docker", reference, reference
    packages = folder / "var/lib/dpkg/status"
    if not packages.is_file():
        raise ConfigError(
            "not a Debian root folder", str(folder), "Make one with containers/debian-base.sh."
        )
    listing = re.sub(r"^Status:.*\n", "", packages.read_text(), flags=re.M)
    return (
        "localimage",
        str(folder.resolve()),
        f"debian-folder:{hashlib.sha256(listing.encode()).hexdigest()[:12]}",
    )


def build(name: str, requirements: str | None, folder: Path | None, name_only: bool) -> Path:
    """Build an image unless it is there; return its path, relative to the project."""
    recipe = RECIPES[name]
    which = requirements or recipe.requirements
    bootstrap, base, base_name = base_of(recipe, folder)
    definition = ROOT / "containers" / recipe.definition
    lines = requirement_lines(which, recipe.python)
    with tempfile.TemporaryDirectory(prefix="draftproof-image-") as temporary:
        context = Path(temporary)
        (context / "requirements.txt").write_text(lines)
        pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(context), str(ROOT))
        (wheel,) = context.glob("draftproof-*.whl")
        parts = (definition.read_bytes(), lines.encode(), base_name.encode(), wheel.read_bytes())
        digest = hashlib.sha256(
            b"".join(hashlib.sha256(part).digest() for part in parts)
        ).hexdigest()[:12]
        image = ROOT / "containers" / f"draftproof-{name}-{digest}.sif"
        if image.exists() or name_only:
            return image.relative_to(ROOT)
        chosen = (
            "--python-version",
            recipe.python,
            "--only-binary=:all:",
            f"--no-binary={SOURCE_ONLY}",
        )
        locked = ("--no-deps", "--require-hashes", "-r", str(context / "requirements.txt"))
        pip("download", *chosen, *locked, "--dest", str(context / "wheels"))
        values = {
            "bootstrap": bootstrap,
            "base": base,
            "base_name": base_name,
            "revision": revision(),
            "requirements": f"{which}:{hashlib.sha256(lines.encode()).hexdigest()}",
            "digest": digest,
        }
        if "{{ engine_version }}" in definition.read_text():
            values["engine_version"] = DEFAULT_ENGINE.partition("==")[2]
        arguments = [
            text for key, value in values.items() for text in ("--build-arg", f"{key}={value}")
        ]
        partial = image.with_suffix(".partial.sif")
        options = ("--force", "--bind", f"{context}:/mnt", "--mksquashfs-args", QUICK)
        run("apptainer", "build", *options, *arguments, str(partial), str(definition))
        shutil.move(partial, image)
    return image.relative_to(ROOT)


def main() -> int:
    """Read the command line, build, print the image's path."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("image", choices=RECIPES)
    parser.add_argument(
        "--requirements", choices=[*ROOTS, "lock"], help="which part of requirements.lock"
    )
    parser.add_argument(
        "--base", type=Path, metavar="FOLDER", help="start from a folder, not from the locked image"
    )
    parser.add_argument(
        "--name-only", action="store_true", help="say what the image is called; build nothing"
    )
    args = parser.parse_args()
    try:
        image = build(args.image, args.requirements, args.base, args.name_only)
    except DraftproofError as error:
        sys.stderr.write(f"build: {error}\n")
        return 2
    sys.stdout.write(f"{image}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
