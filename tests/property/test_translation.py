"""Whatever a draft was trained on, the engine is given ids that capture just that, or the conversion is refused."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from draftproof.checkpoint.boundaries import engine_boundaries
from draftproof.checkpoint.dialect import Dialect
from draftproof.checkpoint.rename import write_renamed
from draftproof.checkpoint.safetensors_header import read_header
from draftproof.checkpoint.translate import translate
from draftproof.engines import facts
from tests.builders.checkpoints import IDS_KEY, target_config, write_safetensors

ENGINE = "sglang==0.5.23"
KNOWN = facts(ENGINE, "checkpoint")
targets = st.sampled_from(sorted(KNOWN["targets"]))
layers = st.integers(6, 90)


@given(targets, layers, st.data())
@pytest.mark.parametrize(("writer", "shift"), [("speculators", 0), ("modelopt", 1)])
def test_boundaries_survive_translation(
    writer: str, shift: int, architecture: str, count: int, data: st.DataObject
) -> None:
    target = target_config(architectures=[architecture], num_hidden_layers=count)
    wanted = sorted(
        data.draw(
            st.sets(st.integers(shift, count - 1), min_size=2, max_size=4), label="boundaries"
        )
    )
    ids = [boundary - shift for boundary in wanted]
    config = {"eagle_config": {IDS_KEY: ids}} if shift else {IDS_KEY: ids}
    served = translate(
        ENGINE, Dialect(name=writer, eagle3=True), config, target, {}, KNOWN["draft_architectures"]
    ).config
    assert engine_boundaries(ENGINE, target, served) == (tuple(wanted), "explicit")


@given(targets, layers)
@pytest.mark.parametrize("writer", ["speculators", "modelopt"])
def test_the_trainers_default_survives_on_every_target(
    writer: str, architecture: str, count: int
) -> None:
    target = target_config(architectures=[architecture], num_hidden_layers=count)
    served = translate(
        ENGINE, Dialect(name=writer, eagle3=True), {}, target, {}, KNOWN["draft_architectures"]
    ).config
    wanted = tuple(sorted({2, count // 2, count - 3}))
    assert engine_boundaries(ENGINE, target, served) == (wanted, "explicit")


names = st.text(min_size=1, max_size=12).filter(lambda name: name != "__metadata__")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.sets(names, min_size=1, max_size=6), st.data())
def test_renaming_changes_no_value(tmp_path: Path, old: set[str], data: st.DataObject) -> None:
    ordered = sorted(old)
    new = data.draw(st.lists(names, min_size=len(old), max_size=len(old), unique=True))
    renames = dict(zip(ordered, new, strict=True))
    tensors = {name: ("U8", [i + 1], bytes([i] * (i + 1))) for i, name in enumerate(ordered)}
    source = write_safetensors(tmp_path / "a.safetensors", tensors, __metadata__={"format": "pt"})
    write_renamed(source, tmp_path / "b.safetensors", renames)
    header = read_header(tmp_path / "b.safetensors")
    assert list(header) == [renames[name] for name in ordered]
    values = load_file(tmp_path / "b.safetensors")
    for name in ordered:
        assert values[renames[name]].tobytes() == tensors[name][2]
    raw = (tmp_path / "b.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    assert json.loads(raw[8 : 8 + length])["__metadata__"] == {"format": "pt"}
