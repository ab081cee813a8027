"""The CPU engine acts in CPU servers that it was asked for, and nowhere else."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from draftproof import cpu_engine
from draftproof.cpu_engine import MARKER, plugin

STANDIN = str(cpu_engine.standin_path())


@pytest.fixture
def other_sgl_kernel(tmp_path: Path) -> Path:
    """A folder with a package `sgl_kernel` that must not be imported, and its distribution's metadata."""
    package = tmp_path / "site" / "sgl_kernel"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    metadata = tmp_path / "site" / "sglang_kernel-0.4.10.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: sglang-kernel\nVersion: 0.4.10\n")
    return tmp_path / "site"


@pytest.fixture
def active(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The environment of a CPU server; the list tells whether the backend was installed."""
    installed: list[str] = []
    monkeypatch.setenv(MARKER, "1")
    monkeypatch.setenv("SGLANG_USE_CPU_ENGINE", "1")
    monkeypatch.syspath_prepend(STANDIN)
    backend = type(sys)("draftproof.cpu_engine.backend")
    backend.__dict__["install"] = lambda: installed.append("yes")
    monkeypatch.setitem(sys.modules, backend.__name__, backend)
    monkeypatch.setattr(plugin, "_sglang_version", lambda: "0.5.23")
    return installed


class TestServerEnvironment:
    def test_puts_the_stand_in_behind_what_is_there(self) -> None:
        environment = cpu_engine.server_environment({"PYTHONPATH": "/one", "HOME": "/home"})
        assert environment["PYTHONPATH"] == os.pathsep.join(["/one", STANDIN])
        assert environment["SGLANG_USE_CPU_ENGINE"] == "1"
        assert environment["HF_HUB_OFFLINE"] == "1"
        assert environment[MARKER] == "1"
        assert environment["HOME"] == "/home"

    def test_is_the_same_when_applied_twice(self) -> None:
        once = cpu_engine.server_environment({})
        assert cpu_engine.server_environment(once) == once

    def test_keeps_the_plugin_among_the_only_ones_allowed(self) -> None:
        environment = cpu_engine.server_environment({"SGLANG_PLUGINS": "other"})
        assert environment["SGLANG_PLUGINS"] == "other,draftproof_cpu"
        assert "SGLANG_PLUGINS" not in cpu_engine.server_environment({})

    def test_leaves_the_given_mapping_alone(self) -> None:
        base: dict[str, str] = {}
        cpu_engine.server_environment(base)
        assert base == {}

    def test_makes_a_child_import_the_stand_in(self) -> None:
        program = "import sgl_kernel; print(sgl_kernel.__file__)"
        environment = cpu_engine.server_environment(os.environ)
        answer = subprocess.run(
            [sys.executable, "-c", program],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        assert answer.stdout.startswith(STANDIN)


class TestAnotherSglKernel:
    def test_is_found_without_being_imported(self, other_sgl_kernel: Path) -> None:
        found = cpu_engine.foreign_sgl_kernel([STANDIN, str(other_sgl_kernel)])
        assert found == str(other_sgl_kernel / "sgl_kernel" / "__init__.py")

    def test_in_this_process_keeps_the_stand_in_away(
        self, other_sgl_kernel: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.syspath_prepend(other_sgl_kernel)
        base = {"PYTHONPATH": STANDIN, MARKER: "1"}
        environment = cpu_engine.server_environment(base)
        assert "PYTHONPATH" not in environment
        assert MARKER not in environment

    def test_on_the_servers_path_keeps_the_stand_in_away(self, other_sgl_kernel: Path) -> None:
        environment = cpu_engine.server_environment({"PYTHONPATH": str(other_sgl_kernel)})
        assert environment["PYTHONPATH"] == str(other_sgl_kernel)
        assert MARKER not in environment

    def test_does_not_take_the_stand_in_for_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.syspath_prepend(STANDIN)
        assert cpu_engine.foreign_sgl_kernel() is None

    def test_ahead_of_the_stand_in_keeps_the_plugin_inactive(
        self, other_sgl_kernel: Path, active: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.syspath_prepend(other_sgl_kernel)
        plugin.register()
        assert active == []


class TestPlugin:
    def test_installs_the_backend_in_a_cpu_server(self, active: list[str]) -> None:
        plugin.register()
        assert active == ["yes"]

    @pytest.mark.parametrize("name", [MARKER, "SGLANG_USE_CPU_ENGINE"])
    def test_does_nothing_without_being_asked(
        self, name: str, active: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv(name)
        plugin.register()
        assert active == []

    def test_does_nothing_without_the_stand_in(
        self, active: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != STANDIN])
        plugin.register()
        assert active == []

    def test_says_once_that_it_does_not_know_this_sglang(
        self,
        active: list[str],
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        monkeypatch.setattr(plugin, "_sglang_version", lambda: "0.6.0")
        with caplog.at_level(logging.WARNING):
            plugin.register()
            plugin.register()
        assert caplog.messages == [
            "draftproof: the CPU engine is off: it supports SGLang 0.5.23, this is 0.6.0"
        ]
        assert active == []

    def test_imports_nothing_heavy_when_idle(self) -> None:
        program = (
            "import sys, json; from draftproof.cpu_engine.plugin import register; register(); "
            "print(json.dumps(sorted({'torch', 'sglang', 'sgl_kernel', 'transformers'} & set(sys.modules))))"
        )
        answer = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        )
        assert json.loads(answer.stdout) == []
