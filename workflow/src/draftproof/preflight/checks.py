"""The checks of a machine, each a small function that returns what it found and what to do about it."""

from __future__ import annotations

import os
import platform
import resource
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from draftproof import cpu_engine

Status = Literal["pass", "warn", "fail", "skipped"]
GIB = 2**30
MIN_FREE_DISK_BYTES = 2 * GIB
MIN_FREE_MEMORY_BYTES = 4 * GIB
MIN_SHM_BYTES = GIB  # NCCL and SGLang's workers exchange tensors through /dev/shm
MIN_OPEN_FILES = 4096
# Each of these silently changes what a benchmark means.
STRAY_VARIABLES = {
    "SGLANG_SIMULATE_ACC_LEN": "fakes the accept length",
    "SGLANG_SIMULATE_ACC_METHOD": "fakes the accept length",
    "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "lets a draft run past its trained context",
    "CUDA_LAUNCH_BLOCKING": "makes every kernel launch wait",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question to the machine and its answer."""

    id: str
    status: Status
    message: str
    fix: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """What the machine is asked to run."""

    engine_name: str
    engine_version: str
    device: str
    folder: Path


def python_version(_: Experiment) -> Check:
    """Report the interpreter; the package itself refuses to install on an unsupported one."""
    return Check(id="machine.python", status="pass", message=f"Python {platform.python_version()}")


def engine_version(experiment: Experiment) -> Check:
    """Compare the installed engine with the pinned one."""
    pinned = f"{experiment.engine_name}=={experiment.engine_version}"
    try:
        found = metadata.version(experiment.engine_name)
    except metadata.PackageNotFoundError:
        return Check(
            id="engine.version",
            status="fail",
            message=f"{experiment.engine_name} is not installed in this environment; the experiment pins {pinned}",
            fix="Run `make install`, or use an image that has it.",
        )
    status: Status = "pass" if found == experiment.engine_version else "fail"
    fix = (
        ""
        if status == "pass"
        else f"Install {pinned}, or change engine.version in the experiment file."
    )
    return Check(
        id="engine.version",
        status=status,
        message=f"found {experiment.engine_name} {found}, the experiment pins {experiment.engine_version}",
        fix=fix,
        evidence={"found": found, "pinned": experiment.engine_version},
    )


def kernels(experiment: Experiment) -> Check:
    """Say which CPU kernels the engine will use; a GPU server never sees the stand-in."""
    if experiment.device != "cpu":
        return Check(id="engine.kernels", status="skipped", message="CPU servers only")
    foreign = cpu_engine.foreign_sgl_kernel()
    message = (
        f"the installed sgl_kernel is used ({foreign})"
        if foreign
        else "draftproof's CPU engine is used"
    )
    return Check(id="engine.kernels", status="pass", message=message)


def gpus(experiment: Experiment) -> Check:
    """List the GPUs through NVML; they must be there and alike."""
    if experiment.device != "cuda":
        return Check(id="gpu.present", status="skipped", message="the experiment runs on the CPU")
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Check(
            id="gpu.present",
            status="fail",
            message=f"no NVIDIA driver answers ({error})",
            fix="Run on a GPU node; in a container give Apptainer --nv.",
        )
    handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    names = [str(pynvml.nvmlDeviceGetName(handle)) for handle in handles]
    driver = str(pynvml.nvmlSystemGetDriverVersion())
    status: Status = "fail" if not names else "pass" if len(set(names)) == 1 else "warn"
    return Check(
        id="gpu.present",
        status=status,
        message=f"{len(names)} GPUs ({', '.join(sorted(set(names)))}), driver {driver}",
        fix="" if status == "pass" else "Give the job GPUs of one kind.",
        evidence={"gpus": names, "driver": driver},
    )


def memory(_: Experiment) -> Check:
    """Compare the free memory with what the smallest experiment needs."""
    import psutil

    free = psutil.virtual_memory().available
    return at_least(
        "machine.memory", "free memory", free, MIN_FREE_MEMORY_BYTES, "Stop other programs."
    )


def disk(experiment: Experiment) -> Check:
    """Compare the free disk space under the results with what hidden states need."""
    free = shutil.disk_usage(experiment.folder).free
    return at_least(
        "machine.disk", "free disk space", free, MIN_FREE_DISK_BYTES, "Free some, or move results/."
    )


def shared_memory(_: Experiment) -> Check:
    """Compare /dev/shm with what the engine's workers need."""
    size = shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else 0
    return at_least(
        "machine.shm",
        "size of /dev/shm",
        size,
        MIN_SHM_BYTES,
        "Give the container a larger /dev/shm.",
        "warn",
    )


def open_files(_: Experiment) -> Check:
    """Report the limit on open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    status: Status = "pass" if hard == resource.RLIM_INFINITY or hard >= MIN_OPEN_FILES else "warn"
    fix = "" if status == "pass" else f"Raise the hard limit to {MIN_OPEN_FILES} (ulimit -Hn)."
    return Check(
        id="machine.open-files",
        status=status,
        message=f"open files: soft {soft}, hard {hard}",
        fix=fix,
    )


def stray_environment(_: Experiment) -> Check:
    """Name variables that would silently change what the benchmark means."""
    found = {name: why for name, why in STRAY_VARIABLES.items() if os.environ.get(name)}
    if not found:
        return Check(
            id="machine.environment",
            status="pass",
            message="no variable that changes the measurement is set",
        )
    listing = "; ".join(f"{name} {why}" for name, why in found.items())
    return Check(
        id="machine.environment",
        status="fail",
        message=listing,
        fix=f"unset {' '.join(found)}",
        evidence={"variables": sorted(found)},
    )


def at_least(
    id: str, what: str, found: int, needed: int, fix: str, otherwise: Status = "fail"
) -> Check:
    """Return a check that passes when found (bytes) reaches needed."""
    enough = found >= needed
    return Check(
        id=id,
        status="pass" if enough else otherwise,
        message=f"{what}: {found / GIB:.1f} GiB, needed {needed / GIB:.0f}",
        fix="" if enough else fix,
        evidence={"found_bytes": found, "needed_bytes": needed},
    )


CHECKS: tuple[Callable[[Experiment], Check], ...] = (
    python_version,
    engine_version,
    kernels,
    gpus,
    memory,
    disk,
    shared_memory,
    open_files,
    stray_environment,
)


def run_checks(experiment: Experiment) -> Iterator[dict[str, Any]]:
    """Yield every check's record, in the order a person would ask."""
    for check in CHECKS:
        yield asdict(check(experiment))
