import pytest
import torch

from draftproof.accuracy import acceptance
from draftproof.accuracy.acceptance import both_matches, matches, prepare
from tests.unit.accuracy.naive import NaiveDraft

STEPS = 4
FLAGS = [
    {},
    {"norm_output": True},
    {"norm_before_fc": True},
    {"eagle_config": {"norm_before_fc": True}, "norm_before_fc": False},
    {"fc_norm": True},
    {"norm_before_residual": True},  # the engine does not read it
    {"rope_is_neox_style": False},
]
KINDS = {"one layer": {}, "two layers": {"layers": 2}, "latent": {"latent": True}}


def naive_chains(draft, target, text) -> torch.Tensor:
    """Token ids [R, STEPS] that the naive draft proposes from rows 3..T-3."""
    states, token_ids = text
    naive = NaiveDraft(draft, target)
    rows = range(3, len(token_ids) - 2)
    return torch.tensor([naive.tokens(states, token_ids, row, STEPS) for row in rows])


def chain_of(draft, text, chains: torch.Tensor) -> torch.Tensor:
    """Ask the package, row by row, whether it drafts these tokens: a label list per row makes every match visible."""
    states, token_ids = text
    found = []
    for number, chain in enumerate(chains):
        row = 3 + number
        labels = torch.cat([token_ids[: row + 2], chain])
        match = matches(draft, states, token_ids, labels, 3, STEPS)
        found.append(match[number])
    return torch.stack(found)


@pytest.mark.parametrize(
    ("kind", "flags"),
    [("one layer", flags) for flags in FLAGS] + [("two layers", {}), ("latent", {})],
    ids=str,
)
def test_every_drafted_token_is_the_naive_ones(make_draft, load, target, text, kind, flags) -> None:
    path = make_draft(flags, **KINDS[kind])
    chains = naive_chains(path, target, text)
    assert len(set(chains.flatten().tolist())) > 10
    assert chain_of(load(path), text, chains).all()
    # The check can fail: other tokens are no match.
    assert not chain_of(load(path), text, (chains + 1) % 256).any()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_in_pieces_give_the_same(make_draft, load, text, monkeypatch, kind) -> None:
    states, token_ids = text
    draft = load(make_draft(**KINDS[kind]))
    labels = torch.cat([token_ids, token_ids])
    whole = matches(draft, states, token_ids, labels, 0, STEPS)
    monkeypatch.setattr(acceptance, "ROWS_AT_ONCE", 5)
    assert torch.equal(matches(draft, states, token_ids, labels, 0, STEPS), whole)


def test_leaving_chains_at_their_first_miss_keeps_the_prefixes(
    make_draft, load, target, text
) -> None:
    states, token_ids = text
    path = make_draft()
    draft = load(path)
    # A text that follows the draft's own chain from row 3 for three tokens has a prefix to keep.
    naive = NaiveDraft(path, target)
    followed = token_ids.clone()
    followed[5:8] = torch.tensor(naive.tokens(states, token_ids, 3, 3))
    whole = matches(draft, states, followed, followed, 3, STEPS)
    short = matches(draft, states, followed, followed, 3, STEPS, all_rows=False)
    assert whole[0, :3].all()
    assert torch.equal(short, whole & (whole.cumprod(1) > 0))


@pytest.mark.parametrize("kind", KINDS)
def test_teacher_forced_steps_are_fed_the_targets_tokens(
    make_draft, load, target, text, kind
) -> None:
    states, token_ids = text
    path = make_draft(**KINDS[kind])
    labels = torch.cat([token_ids, token_ids[:STEPS]])
    rows = prepare(load(path), states, token_ids, labels, 3)
    naive, forced = NaiveDraft(path, target), []
    for row in range(3, len(token_ids) - 2):
        told = labels[row + 2 :][:STEPS].tolist()
        forced.append(naive.tokens(states, token_ids, row, STEPS, told))
    guesses = torch.tensor(forced)
    for number, row in enumerate(range(3, len(token_ids) - 2)):
        # The target says what the draft guesses at step 3, and something else before: only forced chains see it.
        before = labels[row + 2 : row + 4]
        told = torch.cat([labels[: row + 4], guesses[number, 2:3], labels[row + 5 :]])
        free, fed = both_matches(prepare(load(path), states, token_ids, told, 3), STEPS)
        assert fed[number, 2]
        assert fed[number, :2].tolist() == (guesses[number, :2] == before).tolist()
        assert torch.equal(free, matches(load(path), states, token_ids, told, 3, STEPS))
    free, fed = both_matches(rows, STEPS)
    assert torch.equal(free.cumprod(1), fed.cumprod(1))


def test_rows_are_the_output_but_its_last_token(make_draft, load, text) -> None:
    states, token_ids = text
    draft = load(make_draft())
    assert matches(draft, states, token_ids, token_ids, 9, 2).shape == (3, 2)
    assert matches(draft, states, token_ids, token_ids, 12, 2).shape == (0, 2)
    # Beyond the known text nothing matches.
    assert not matches(draft, states, token_ids, token_ids, 11, 4)[0, 1:].any()


def test_known_is_what_the_text_and_its_continuation_hold(make_draft, load, text) -> None:
    states, token_ids = text
    rows = prepare(load(make_draft()), states, token_ids, torch.cat([token_ids, token_ids[:1]]), 10)
    # 14 tokens and one more: from row 11 drafts stand for tokens 13, 14 and (unknown) 15.
    assert rows.start.tolist() == [10, 11]
    told = torch.stack([rows.said(rows.start, step) for step in range(3)], dim=1)
    assert told[1].tolist() == [token_ids[13], token_ids[0], -1]


def test_a_single_boundary_of_the_right_width_skips_fc(make_draft, load, text) -> None:
    path = make_draft()
    states, _ = text
    assert torch.equal(load(path).fuse(states[:, :1]), states[:, 0])


def test_the_targets_head_and_vocabulary_when_draft_vocab_size_is_null(
    make_draft, load, target
) -> None:
    from safetensors.torch import load_file, save_file

    path = make_draft({"draft_vocab_size": None})
    tensors = load_file(path / "model.safetensors")
    for name in ("d2t", "t2d", "lm_head.weight"):
        del tensors[name]
    save_file(tensors, path / "model.safetensors")
    draft = load(path)
    assert torch.equal(draft.head, load_file(target / "model.safetensors")["lm_head.weight"])
    assert torch.equal(draft.to_target, torch.arange(256))


def test_the_drafts_own_embedding_is_not_used(make_draft, load, target) -> None:
    from safetensors.torch import load_file

    draft = load(make_draft(**{"embed_tokens.weight": torch.zeros(256, 64)}))
    assert torch.equal(
        draft.embedding, load_file(target / "model.safetensors")["model.embed_tokens.weight"]
    )


def test_draft_ids_are_mapped_by_offsets(make_draft, load) -> None:
    offsets = torch.full((224,), 7)
    assert torch.equal(load(make_draft(d2t=offsets)).to_target, torch.arange(224) + 7)
