"""SGLang with speculation on any x86-64 CPU: what the serving stage needs to start such a server.

SGLang 0.5.23 runs on a CPU, but imports its speculation functions from a build of `sgl_kernel` that is published for
AMX machines only, and its portable attention backend (`torch_native`) knows no speculation. This folder has both parts:

`standin/`   a module named `sgl_kernel` with those functions in plain torch, put on PYTHONPATH of CPU servers only
`plugin`     an SGLang plugin, active in those servers only, that installs `backend` (`visibility`, `attention`)

Where another `sgl_kernel` is installed (GPU machine, AMX build), both stay out of its way.

Limits: verification on a CPU is always greedy (SGLang's own rule), whatever the temperature; page size 1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path

MARKER = "DRAFTPROOF_CPU_ENGINE"
PLUGIN = "draftproof_cpu"

SERVER_FLAGS: tuple[str, ...] = (
    *("--device", "cpu"),
    *("--attention-backend", "torch_native"),
    *("--sampling-backend", "pytorch"),
    *("--dtype", "float32"),
)
"""Command-line flags of a CPU server that uses the stand-in."""


def standin_path() -> Path:
    """Return the folder that holds the stand-in `sgl_kernel`, to be put on a CPU server's PYTHONPATH."""
    return Path(__file__).parent / "standin"


def server_environment(base: Mapping[str, str]) -> dict[str, str]:
    """Return `base` with what a CPU server needs; nothing is read from the network.

    With another `sgl_kernel` in the environment, the stand-in stays off PYTHONPATH and the plugin stays inactive.
    """
    environment = dict(base) | {"SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1"}
    python_path = _entries(base.get("PYTHONPATH", ""))
    environment.pop(MARKER, None)
    if foreign_sgl_kernel([*python_path, *sys.path]) is None:
        python_path.append(str(standin_path()))
        environment[MARKER] = "1"
        if base.get("SGLANG_PLUGINS"):  # a list of the only plugins that SGLang may load
            environment["SGLANG_PLUGINS"] = f"{base['SGLANG_PLUGINS']},{PLUGIN}"
    environment["PYTHONPATH"] = os.pathsep.join(python_path)
    if not python_path:
        del environment["PYTHONPATH"]
    return environment


def foreign_sgl_kernel(search_path: Sequence[str] | None = None) -> str | None:
    """Return where an `sgl_kernel` other than the stand-in is installed, or None; nothing is imported.

    `search_path` defaults to this process's `sys.path`.
    """
    entries = sys.path if search_path is None else search_path
    others = [entry for entry in entries if not _is_standin(entry)]
    spec = PathFinder.find_spec("sgl_kernel", others) or _spec_of_other_finders()
    return None if spec is None else _location(spec)


def stand_in_in_use() -> bool:
    """Return whether `import sgl_kernel` in this process means the stand-in."""
    spec = find_spec("sgl_kernel")
    return (
        spec is not None and spec.origin is not None and _is_standin(Path(spec.origin).parents[1])
    )


def _spec_of_other_finders() -> ModuleSpec | None:
    """Ask the finders beside the search path, such as those of editable installs."""
    for finder in sys.meta_path:
        if finder is not PathFinder:
            spec = finder.find_spec("sgl_kernel", None)
            if spec is not None and not _is_standin(Path(_location(spec)).parents[1]):
                return spec
    return None


def _location(spec: ModuleSpec) -> str:
    if spec.origin is not None:
        return spec.origin
    return next(iter(spec.submodule_search_locations or ()), spec.name)


def _entries(python_path: str) -> list[str]:
    return [entry for entry in python_path.split(os.pathsep) if entry and not _is_standin(entry)]


def _is_standin(entry: str | Path) -> bool:
    return Path(entry).resolve() == standin_path().resolve()
