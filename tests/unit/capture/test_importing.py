"""What training tools dumped becomes the capture that draftproof would have made itself, or is refused in one line."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from draftproof.capture.generate import Limits, greedy
from draftproof.capture.samples import read_manifest, read_sample
from draftproof.cli import main
from draftproof.files import read_result
from tests.builders.dumps import Text, text_of, write_modelopt, write_specforge, write_speculators
from tests.builders.tiny_models import tiny_draft, tiny_llama_target

BOUNDARIES = (2, 4, 5)  # 2, N/2, N-3 of eight layers: what the tools capture unless told otherwise
WRITERS: dict[str, Callable[[Path, list[Text]], Path]] = {
    "speculators": write_speculators,
    "specforge": write_specforge,
    "modelopt": write_modelopt,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A target with a draft, its capture by draftproof, and the same texts as a tool would have seen them."""

    target: Path
    draft: Path
    validation: Path
    capture: Path
    texts: list[Text]
    conversation: Text
    """The second text, a question, and the target's answer to it."""

    def imported(self, format_name: str, dump: Path, out: Path, *more: object) -> int:
        command = ["import", "--format", format_name, "--dump", dump, "--target", self.target]
        command += ["--validation", self.validation, "--out", out, *more]
        return main([str(part) for part in command])


@pytest.fixture(scope="module")
def world(pair: Any, tmp_path_factory: pytest.TempPathFactory) -> World:
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("world")
    target = tiny_llama_target(folder / "target", layers=8)
    tensors = load_file(target / "model.safetensors")
    torch.manual_seed(4)
    tensors["model.norm.weight"] = torch.rand(64) * 2 + 0.2
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    draft = tiny_draft(folder / "draft", target, boundaries=BOUNDARIES)
    validation, capture = folder / "validation.json", folder / "capture"
    main(["validate", "--draft", str(draft), "--target", str(target), "--json", str(validation)])
    prompts = folder / "prompts.jsonl"
    prompts.write_text(
        "".join(
            json.dumps({"id": i, "category": "math", "turns": [i]}) + "\n" for i in ("ab", "cde")
        )
    )
    options = ("--target", str(target), "--validation", str(validation), "--prompts", str(prompts))
    assert pair.capture(capture, *options) == 0
    manifest = read_manifest(capture)
    captured = [read_sample(capture, manifest, entry) for entry in manifest["samples"]]
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    texts = []
    for sample in captured:
        own = torch.arange(len(sample.token_ids)) >= sample.prompt_tokens
        texts.append(text_of(model, sample.token_ids, own, BOUNDARIES))
    more = [*captured[1].token_ids.tolist(), *range(30, 45)]
    limits = Limits(max_new_tokens=12, stop_token_ids=frozenset(), lookahead=0)
    said = greedy(model, [more], limits)[0]
    own = torch.cat([texts[1].own, torch.arange(15 + 12) >= 15])
    conversation = text_of(model, torch.tensor(more + said), own, BOUNDARIES)
    return World(
        target=target,
        draft=draft,
        validation=validation,
        capture=capture,
        texts=texts,
        conversation=conversation,
    )


@pytest.fixture
def one_line(capsys: pytest.CaptureFixture[str]) -> Callable[[], str]:
    def line() -> str:
        lines = [line for line in capsys.readouterr().err.splitlines() if "draftproof:" in line]
        assert len(lines) == 1
        return lines[0]

    return line


@pytest.mark.parametrize("format_name", WRITERS)
def test_a_dump_becomes_the_capture_of_the_same_texts(
    world: World, tmp_path: Path, format_name: str
) -> None:
    """Of a conversation, every answer becomes a sample, with all that was before it as its prompt."""
    dump = WRITERS[format_name](tmp_path / "dump", [world.texts[0], world.conversation])
    assert world.imported(format_name, dump, tmp_path / "out") == 0
    made, kept = read_manifest(tmp_path / "out"), read_manifest(world.capture)
    assert made["source"] == format_name
    assert made["boundaries"] == list(BOUNDARIES)
    assert format_name in made["boundaries_from"]
    assert made["last_state"] == ("pre_norm" if format_name == "speculators" else "post_norm")
    assert made["self_check"] == {"tokens": 36, "mismatches": 0}
    columns = [kept["boundaries"].index(b) for b in BOUNDARIES]
    for ours, theirs in zip(made["samples"], kept["samples"], strict=False):
        imported = read_sample(tmp_path / "out", made, ours)
        captured = read_sample(world.capture, kept, theirs)
        assert imported.prompt_tokens == captured.prompt_tokens
        assert torch.equal(imported.token_ids, captured.token_ids)
        torch.testing.assert_close(imported.hidden_states, captured.hidden_states[:, columns])
        assert len(imported.continuation_ids) == 0
    whole = read_sample(tmp_path / "out", made, made["samples"][2])
    assert torch.equal(whole.token_ids, world.conversation.token_ids)
    assert torch.equal(whole.hidden_states, world.conversation.aux)
    assert made["samples"][2]["output_tokens"] == 12


def test_accuracy_scores_an_import_as_it_scores_the_capture(world: World, tmp_path: Path) -> None:
    dump = write_specforge(tmp_path / "dump", world.texts)
    assert world.imported("specforge", dump, tmp_path / "out") == 0
    found = []
    for samples in (world.capture, tmp_path / "out"):
        json_file = tmp_path / "accuracy.json"
        command = ["accuracy", "--draft", world.draft, "--target", world.target]
        command += ["--samples", samples, "--steps", "1", "--json", json_file]
        assert main([str(part) for part in command]) == 0
        answer = read_result(json_file, "accuracy")
        found.append((answer["steps"][0], answer["walk"]["1"], answer["positions"]))
    assert found[0] == found[1]
    assert found[0][0]["marginal"] > 0


def test_packed_files_are_read_in_the_order_of_their_numbers(world: World, tmp_path: Path) -> None:
    dump = write_specforge(tmp_path / "dump", world.texts * 6, packed=True)
    assert world.imported("specforge", dump, tmp_path / "out", "--limit", "11") == 0
    ids = [entry["id"].partition(".")[0] for entry in read_manifest(tmp_path / "out")["samples"]]
    assert list(dict.fromkeys(ids)) == [f"rows_0-2000/data_{i}" for i in range(11)]


def test_an_answer_ends_at_its_stop_token(world: World, tmp_path: Path) -> None:
    text = world.texts[0]
    first = int(text.own.nonzero()[0])
    ids = text.token_ids.clone()
    ids[first + 5] = 1  # the tiny targets' end of text; never chosen, so only the cut shows
    dump = write_modelopt(tmp_path / "dump", [replace(text, token_ids=ids)] + world.texts[1:] * 99)
    assert world.imported("modelopt", dump, tmp_path / "out") == 0
    entry = read_manifest(tmp_path / "out")["samples"][0]
    assert (entry["output_tokens"], entry["finish"]) == (6, "stop")


def test_boundaries_named_by_hand_are_sorted(world: World, tmp_path: Path) -> None:
    turned = [replace(text, aux=text.aux.flip(1)) for text in world.texts]
    dump = write_modelopt(tmp_path / "dump", turned)
    assert world.imported("modelopt", dump, tmp_path / "out", "--boundaries", 5, 4, 2) == 0
    manifest = read_manifest(tmp_path / "out")
    assert (manifest["boundaries"], manifest["boundaries_from"]) == ([2, 4, 5], "--boundaries")
    sample = read_sample(tmp_path / "out", manifest, manifest["samples"][0])
    assert torch.equal(sample.hidden_states, world.texts[0].aux)


@pytest.mark.parametrize("prenorm", [True, False])
def test_the_files_own_word_on_its_last_state_counts(
    world: World, tmp_path: Path, prenorm: bool
) -> None:
    dump = write_modelopt(tmp_path / "dump", world.texts, prenorm=prenorm)
    assert world.imported("modelopt", dump, tmp_path / "out") == 0
    assert read_manifest(tmp_path / "out")["last_state"] == ("pre_norm" if prenorm else "post_norm")


def test_the_wrong_convention_is_refused_and_the_right_one_named(
    world: World, tmp_path: Path, one_line, capsys
) -> None:
    """vLLM's dumps for Model-Optimizer have the same keys as its own, but a state before the norm."""
    texts = [replace(text, behind=text.before) for text in world.texts]
    dump = write_modelopt(tmp_path / "dump", texts)
    assert world.imported("modelopt", dump, tmp_path / "out") == 2
    assert "is from before the target's final norm, but is said to be from after it" in one_line()
    assert not (tmp_path / "out" / "manifest.json").exists()
    assert world.imported("modelopt", dump, tmp_path / "out", "--last-state", "pre_norm") == 0
    assert "last state before the final norm, and recognised as such" in capsys.readouterr().out


def changed(text: Text, what: str) -> Text:
    """Return a text with one fault."""
    match what:
        case "rows":
            return replace(text, aux=text.aux[1:])
        case "last rows":
            return replace(text, behind=text.behind[1:], before=text.before[1:])
        case "nan":
            aux = text.aux.clone()
            aux[2, 1, 3] = float("nan")
            return replace(text, aux=aux)
        case "inf":
            return replace(
                text, behind=text.behind * float("inf"), before=text.before * float("inf")
            )
        case "vocabulary":
            return replace(text, token_ids=(text.token_ids + 1) % 256)
        case "tokens":
            return replace(text, token_ids=text.token_ids + 200)
        case "mask":
            return replace(text, own=torch.ones_like(text.own))
        case "negative":
            return replace(text, token_ids=text.token_ids - 250)
    raise AssertionError(what)


@pytest.mark.parametrize("format_name", ["specforge", "modelopt"])
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("rows", "rows of states for"),
        ("last rows", "rows of last states for"),
        ("nan", "states that are not finite (NaN or infinity)"),
        ("inf", "last states that are not finite (NaN or infinity)"),
        ("vocabulary", "another vocabulary"),
        ("tokens", "the target has 256 tokens"),
        ("mask", "begins with the first token"),
        ("negative", "negative"),
    ],
)
def test_a_faulty_dump_is_refused_with_the_reason(
    world: World, tmp_path: Path, one_line, format_name: str, fault: str, says: str
) -> None:
    texts = [changed(text, fault) for text in world.texts]
    dump = WRITERS[format_name](tmp_path / "dump", texts)
    assert world.imported(format_name, dump, tmp_path / "out") == 2
    line = one_line()
    assert says in line
    assert "dump" in line


def test_missing_rows_of_speculators_are_refused(world: World, tmp_path: Path, one_line) -> None:
    dump = write_speculators(tmp_path / "dump", world.texts)
    tensors = load_file(dump / "hs_1.safetensors")
    tensors["hidden_states"] = tensors["hidden_states"][:-2].clone()
    save_file(tensors, dump / "hs_1.safetensors")
    assert world.imported("speculators", dump, tmp_path / "out") == 2
    tokens = len(world.texts[1].token_ids)
    assert f"holds {tokens - 2} rows of states for {tokens} tokens" in one_line()


def test_another_target_is_refused(world: World, tmp_path: Path, one_line) -> None:
    other = tiny_llama_target(tmp_path / "other", layers=8, seed=9)
    shutil.copy(world.target / "config.json", other)
    dump = write_specforge(tmp_path / "dump", world.texts)
    assert world.imported("specforge", dump, tmp_path / "out", "--target", other) == 2
    line = one_line()
    assert "another target" in line or "final norm" in line


def test_a_target_of_another_width_is_refused(world: World, tmp_path: Path, one_line) -> None:
    other = tiny_llama_target(tmp_path / "other", layers=8, hidden=80)
    dump = write_specforge(tmp_path / "dump", world.texts)
    assert world.imported("specforge", dump, tmp_path / "out", "--target", other) == 2
    assert "192 wide, no multiple of the target's 80" in one_line()


def test_boundaries_that_the_draft_reads_must_be_there(
    world: World, tmp_path: Path, one_line
) -> None:
    dump = write_specforge(tmp_path / "dump", world.texts)
    out = tmp_path / "out"
    assert world.imported("specforge", dump, out, "--boundaries", 2, 4, 6) == 2
    assert "the draft reads boundaries [2, 4, 5], the dump holds [2, 4, 6]: 5 is missing" in (
        one_line()
    )
    assert world.imported("specforge", dump, out, "--boundaries", 2, 4) == 2
    assert "holds 3 states per token besides the last" in one_line()
    assert world.imported("specforge", dump, out, "--boundaries", 2, 4, 8) == 2
    assert "from 0 to 7" in one_line()


class Trap:
    """Unpickled, this makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("format_name", ["specforge", "modelopt"])
def test_a_booby_trapped_file_is_refused_and_nothing_of_it_is_run(
    world: World, tmp_path: Path, one_line, format_name: str
) -> None:
    dump = WRITERS[format_name](tmp_path / "dump", world.texts)
    for file in dump.rglob("*.ckpt" if format_name == "specforge" else "*.pt"):
        record = torch.load(file, weights_only=True)
        torch.save(record | {"more": Trap(tmp_path / "sprung")}, file)
    torch.load(file, weights_only=False)  # the trap works where it is let
    assert (tmp_path / "sprung").is_dir()
    (tmp_path / "sprung").rmdir()
    assert world.imported(format_name, dump, tmp_path / "out") == 2
    line = one_line()
    assert "no file of tensors alone, nothing of it was run" in line
    assert "mkdir" in line
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"\x80\x02.", b"not a pickle at all", b"PK\x03\x04 cut off", b"\x1f\x8b\x08cut"],
)
@pytest.mark.parametrize("name", ["a.ckpt", "a.ckpt.gz"])
def test_any_other_file_is_refused_in_one_line(
    world: World, tmp_path: Path, one_line, name: str, content: bytes
) -> None:
    (tmp_path / "dump").mkdir()
    (tmp_path / "dump" / name).write_bytes(content)
    assert world.imported("specforge", tmp_path / "dump", tmp_path / "out") == 2
    assert name in one_line()


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ([1, 2], "holds a list, not named tensors"),
        ({"input_ids": torch.arange(4)}, "holds no tensor 'aux_hidden_state', but input_ids"),
        ({"aux_hidden_state": torch.zeros(4, 192)}, "aux_hidden_state is of shape [4, 192]"),
        (
            {"aux_hidden_state": torch.zeros(1, 4, 192, dtype=torch.int32)},
            "aux_hidden_state is of dtype torch.int32",
        ),
    ],
)
def test_a_file_of_another_form_is_refused(
    world: World, tmp_path: Path, one_line, record: object, says: str
) -> None:
    (tmp_path / "dump").mkdir()
    torch.save(record, tmp_path / "dump" / "data_0.ckpt")
    assert world.imported("specforge", tmp_path / "dump", tmp_path / "out") == 2
    assert says in one_line()


def test_speculators_needs_the_dataset_of_the_dump(world: World, tmp_path: Path, one_line) -> None:
    dump = write_speculators(tmp_path / "a", world.texts)
    write_speculators(tmp_path / "b", world.texts[::-1])
    out = tmp_path / "out"
    assert world.imported("speculators", dump, out, "--dataset", tmp_path / "b") == 2
    assert "its tokens are not those of row 0 of the dataset" in one_line()
    (tmp_path / "a" / "state.json").unlink()
    assert world.imported("speculators", dump, out) == 2
    assert "--dataset" in one_line()
    (tmp_path / "b" / "state.json").write_text(json.dumps({"_data_files": [{"filename": "no"}]}))
    assert world.imported("speculators", dump, out, "--dataset", tmp_path / "b") == 2
    assert "is no prepared dataset" in one_line()


def test_a_dump_without_own_words_or_files_is_refused(
    world: World, tmp_path: Path, one_line
) -> None:
    texts = [replace(text, own=torch.zeros_like(text.own)) for text in world.texts]
    dump = write_modelopt(tmp_path / "dump", texts)
    assert world.imported("modelopt", dump, tmp_path / "out") == 2
    assert "no text of its 2 files holds two tokens" in one_line()
    assert world.imported("specforge", dump, tmp_path / "out") == 2
    assert "holds no *.ckpt or *.ckpt.gz file of specforge" in one_line()
    assert world.imported("modelopt", dump, tmp_path / "out", "--limit", 0) == 2
    assert "--limit" in one_line()
