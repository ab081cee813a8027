# What every rule needs of the experiment file, checked once.

import json
import shlex
import sys
from pathlib import Path

from draftproof.closure import code_digest
from draftproof.errors import DraftproofError
from draftproof.experiment import check, trees

try:
    check(
        config,
        " + ".join(map(str, workflow.config_settings.configfiles)) or "config.yaml",
    )
except DraftproofError as error:
    print(error, file=sys.stderr)
    sys.exit(2)

# Paths, not text: `snakemake --lint` takes text that begins a file's name for a forgotten input.
RESULTS = Path("results", config["experiment"])
ENGINE = config["engine"]["version"]
DEVICE = config["engine"]["device"]
TARGET = Path(config["target"]["path"])
DRAFT = Path(config["draft"]["path"])
SERVERS = config["servers"]
CAPTURE_SERVER = RESULTS / "capture" / "server"
SERVED_DRAFT = RESULTS / "checkpoint" / "draft"
TRACKING = {key: shlex.quote(value) for key, value in config["tracking"].items()}
DEMO_TARGET = Path("results/models/smollm2-135m-instruct")

IMAGE = config.get("container", {}).get("image")

if bool(IMAGE) != (
    "apptainer" in map(str, workflow.deployment_settings.deployment_method)
):
    print(
        (
            "container.image: set, but without Apptainer the rules would run on this machine itself."
            " Add --software-deployment-method apptainer, as workflow/profiles/containers does, or remove the key."
            if IMAGE
            else "container.image: missing. Give the path of an image (containers/README.md says how to make it),"
            " or run without Apptainer."
        ),
        file=sys.stderr,
    )
    sys.exit(2)

if IMAGE and "://" not in IMAGE and not Path(IMAGE).exists():
    print(
        f"container.image: no such file: {IMAGE}. containers/README.md says how to make it.",
        file=sys.stderr,
    )
    sys.exit(2)


# Without Apptainer it is not looked at, but `snakemake --lint` wants one.
container: IMAGE or "containers/not-used.sif"


def checkpoint_files(directory):
    """Return the files whose change makes a checkpoint another one, JSON and weights."""
    found = sorted(
        str(path)
        for suffix in ("json", "safetensors", "bin", "pt")
        for path in directory.glob(f"*.{suffix}")
    )
    return found or [f"{directory}/config.json"]


def server_flags(wildcards):
    """Return the engine flags of a server, as JSON: those of every server, then its own."""
    return json.dumps(config["engine"]["flags"] | SERVERS[wildcards.server]["flags"])


def server_environment(wildcards):
    """Return the environment of a server, as JSON: that of every server, then its own."""
    return json.dumps(
        config["engine"].get("environment", {})
        | SERVERS[wildcards.server].get("environment", {})
    )


def capture_server(wildcards, input):
    """Return the command that runs the capture while a server is up, ready for the shell."""
    options = {
        "server": "capture",
        "arm": "capture",
        "target": TARGET,
        "validation": input.validation,
        "engine": ENGINE,
        "device": DEVICE,
        "flags": json.dumps(config["engine"]["flags"]),
        "environment": json.dumps(config["engine"].get("environment", {})),
        "preflight": input.preflight,
        "out": CAPTURE_SERVER,
    }
    words = " ".join(
        f"--{name} {shlex.quote(str(value))}" for name, value in options.items()
    )
    return f"serve {words} --owner $PPID -- draftproof"


if (source := config["prompts"]["source"]) != "builtin" and not Path(source).is_file():
    print(
        f"prompts.source: no such file: {source}. Give a local file, or builtin.",
        file=sys.stderr,
    )
    sys.exit(2)

for key, directory in {"target.path": TARGET, "draft.path": DRAFT}.items():
    if directory != DEMO_TARGET and not directory.is_dir():
        print(
            f"{key}: no such directory: {directory}. Give the folder with config.json and the weights.",
            file=sys.stderr,
        )
        sys.exit(2)
