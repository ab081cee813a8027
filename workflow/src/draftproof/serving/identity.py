"""What shapes the numbers of a launch? Its digest: the key under which measured cells are kept."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from contextlib import suppress
from pathlib import Path

from draftproof.closure import code_digest
from draftproof.engines import facts
from draftproof.errors import MachineError
from draftproof.files import digest
from draftproof.serving.plan import Plan

SAMPLED_ABOVE_BYTES = 512 * 2**20
SAMPLES, SAMPLE_BYTES = 32, 2**20
MODEL_SUFFIXES = {".json", ".safetensors", ".bin", ".gguf", ".model", ".py"}
VERSIONED = ("torch", "transformers", "triton", "sglang-kernel", "sgl-kernel", "flashinfer-python")
ASK_VERSIONS = """
import importlib.metadata as m, json, platform, sys
found = {"python": platform.python_version()}
for name in sys.argv[1:]:
    try: found[name] = m.version(name)
    except m.PackageNotFoundError: pass
print(json.dumps(found))
"""


def installed_versions(python: str, engine: str) -> dict[str, str]:
    """Return the versions of the engine and of what it computes with, as seen by its Python, without importing them.

    Raises MachineError when that Python does not run, or does not have the engine in the version asked for.
    """
    name = facts(engine, "serving")["distribution"]
    command = [python, "-c", ASK_VERSIONS, name, *VERSIONED]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        found: dict[str, str] = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, json.JSONDecodeError) as error:
        raise MachineError(
            f"does not run as a Python ({error})", python, "Give --python PATH."
        ) from None
    wanted = engine.partition("==")[2]
    if found.get(name) != wanted:
        raise MachineError(
            f"{name} {found.get(name, 'is not installed')}, but the experiment asks for {wanted}",
            python,
            f"Install {engine}, or set engine.version to what is installed.",
        )
    return found


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file; of a large one its size and 32 evenly spaced blocks of 1 MiB are read instead.

    Weights that were trained anew differ everywhere, so a sample tells them apart in seconds at any size.
    """
    size = path.stat().st_size
    with path.open("rb") as stream:
        if size <= SAMPLED_ABOVE_BYTES:
            return hashlib.file_digest(stream, "sha256").hexdigest()
        sha = hashlib.sha256(str(size).encode())
        for i in range(SAMPLES):
            stream.seek(i * (size - SAMPLE_BYTES) // (SAMPLES - 1))
            sha.update(stream.read(SAMPLE_BYTES))
    return sha.hexdigest()


def model_digest(directory: Path | None) -> dict[str, str]:
    """Return {file name: digest} of the files of a checkpoint that an engine reads; independent of where it lies."""
    if directory is None:
        return {}
    # conversion.json tells how the checkpoint was made; no engine reads it.
    files = (
        p
        for p in sorted(directory.iterdir())
        if p.suffix in MODEL_SUFFIXES and p.name != "conversion.json"
    )
    return {path.name: file_digest(path) for path in files if path.is_file()}


def machine() -> dict[str, object]:
    """Return what of this machine shapes speed: processor, usable cores, GPUs."""
    model = ""
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(
            (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), ""
        )
    gpus = ""
    with suppress(OSError, subprocess.SubprocessError):
        command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        gpus = subprocess.run(
            command, capture_output=True, text=True, timeout=30, check=True
        ).stdout.strip()
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "gpus": gpus.splitlines(),
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES", ""),
    }


def cpu_engine_digest() -> str:
    """Return the digest of our part of a CPU server: the plugin and the stand-in."""
    from draftproof import cpu_engine

    standin = {str(p): file_digest(p) for p in sorted(cpu_engine.standin_path().rglob("*.py"))}
    return digest([code_digest("draftproof.cpu_engine.plugin"), sorted(standin.values())])


def launch_digest(plan: Plan, versions: dict[str, str]) -> str:
    """Return the digest of a launch: what is measured under it can be kept as long as it stays the same.

    Not in it: port, times, and the paths of the models, whose contents count instead.
    """
    paths = {"model-path", "speculative-draft-model-path"}
    return digest(
        {
            "arm": plan.arm,
            "engine": plan.engine,
            "device": plan.device,
            "flags": {name: value for name, value in plan.flags.items() if name not in paths},
            "environment": plan.environment,
            "target": model_digest(plan.target),
            "draft": model_digest(plan.draft),
            "versions": versions,
            "machine": machine(),
            "cpu_engine": cpu_engine_digest() if plan.device == "cpu" else None,
        }
    )
