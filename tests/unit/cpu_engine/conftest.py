from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from draftproof.cpu_engine import standin_path


def _forget() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "sgl_kernel"]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def sgl_kernel() -> Iterator[ModuleType]:
    """The stand-in, importable in the tests of one file only."""
    _forget()
    sys.path.insert(0, str(standin_path()))
    try:
        yield importlib.import_module("sgl_kernel")
    finally:
        sys.path.remove(str(standin_path()))
        _forget()
