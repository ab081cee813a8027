import pytest
import torch

from draftproof.accuracy import acceptance, tree
from draftproof.accuracy.acceptance import prepare
from draftproof.accuracy.tree import Candidates, Tree, parse
from draftproof.errors import ConfigError
from tests.unit.accuracy.naive import NaiveDraft, followed

KINDS = {"one layer": {}, "two layers": {"layers": 2}, "latent": {"latent": True}}
TREES = [Tree(3, 4, 8), Tree(4, 2, 8), Tree(5, 4, 16), Tree(1, 3, 4), Tree(2, 3, 13)]
NARROW = [Tree(5, 3, 4), Tree(4, 3, 5)]
ROWS = (3, 7, 11)


def naive_trees(path, target, text) -> dict[int, dict[Tree, list[tuple[int, ...]]]]:
    states, token_ids = text
    naive = NaiveDraft(path, target)
    return {
        row: {t: naive.tree(states, token_ids, row, (t.steps, t.topk, t.tokens)) for t in TREES}
        for row in ROWS
    }


def labels_of(token_ids: torch.Tensor, row: int, continued: tuple[int, ...]) -> torch.Tensor:
    """The text up to the token after the row, then a path, then a token that no draft here proposes."""
    return torch.cat([token_ids[: row + 2], torch.tensor([*continued, 0, 0, 0, 0, 0])])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flags", [{}, {"norm_output": True}], ids=str)
def test_every_path_of_every_tree_is_the_naive_ones(
    make_draft, load, target, text, kind, flags
) -> None:
    """Whatever path of the naive tree the target follows is accepted as far as that tree goes, and no further."""
    path = make_draft(flags, **KINDS[kind])
    states, token_ids = text
    draft, depths = load(path), set()
    for row, naive in naive_trees(path, target, text).items():
        told = {each for paths in naive.values() for each in paths}
        for continued in sorted(told, key=len)[-8:]:
            labels = labels_of(token_ids, row, continued)
            found = tree.accepted(prepare(draft, states, token_ids, labels, 3), TREES)
            for shape, paths in naive.items():
                expected = followed(paths, labels[row + 2 :][: shape.steps].tolist())
                assert found[shape][row - 3] == expected, (row, shape, continued)
                depths.add(expected)
    assert {0, 1, 2, 3} <= depths


def test_trees_together_and_rows_in_pieces_give_the_same(
    make_draft, load, text, monkeypatch
) -> None:
    states, token_ids = text
    rows = prepare(load(make_draft()), states, token_ids, token_ids.repeat(2), 0)
    whole = tree.accepted(rows, TREES)
    monkeypatch.setattr(acceptance, "ROWS_AT_ONCE", 9)
    for shape in TREES:
        assert torch.equal(tree.accepted(rows, [shape])[shape], whole[shape])


def test_a_node_that_later_candidates_push_out_is_not_accepted(
    make_draft, load, target, text
) -> None:
    """A sure draft: the text leaves the tree after its first token, and what is drafted elsewhere scores higher."""
    states, token_ids = text
    generator = torch.Generator().manual_seed(7)
    head = torch.randn(224, 64, generator=generator) * 0.5
    path = make_draft(**{"lm_head.weight": head})
    naive, draft, pushed = NaiveDraft(path, target), load(path), 0
    for row in range(3, 12, 2):
        wide = naive.tree(states, token_ids, row, (1, 3, 4))
        for first in wide:
            labels = labels_of(token_ids, row, first)
            found = tree.accepted(prepare(draft, states, token_ids, labels, 3), NARROW)
            for shape in NARROW:
                paths = naive.tree(states, token_ids, row, (shape.steps, shape.topk, shape.tokens))
                assert found[shape][row - 3] == (first in paths), (row, shape, first)
                pushed += (
                    shape.steps > 1 and wide.index(first) < shape.tokens - 1 and first not in paths
                )
    assert pushed > 3


def test_a_full_tree_accepts_what_its_first_branch_does(make_draft, load, target, text) -> None:
    """With all candidates kept, the chain of the most probable tokens is in the tree."""
    states, token_ids = text
    path = make_draft()
    followed_text = token_ids.clone()
    followed_text[5:8] = torch.tensor(NaiveDraft(path, target).tokens(states, token_ids, 3, 3))
    rows = prepare(load(path), states, followed_text, followed_text, 3)
    everything = Tree(3, 4, 37)
    assert tree.accepted(rows, [everything])[everything][0] == 3


def test_a_node_is_kept_by_its_score_and_its_parent() -> None:
    # topk 2, two steps: candidates 0, 1 and, under them, 2, 3 and 4, 5; the text goes 1, 4.
    def accepted(scores: list[float], tokens: int) -> int:
        found = Candidates(torch.tensor([scores]), torch.tensor([[1, 4]]))
        return int(found.accepted(Tree(2, 2, tokens))[0])

    scores = [0.6, 0.3, 0.5, 0.1, 0.2, 0.1]
    assert [accepted(scores, tokens) for tokens in (2, 3, 4, 5, 7)] == [0, 0, 1, 2, 2]
    # The parent is not kept: nothing leads to its child.
    assert accepted([0.6, 0.1, 0.5, 0.1, 0.4, 0.1], 4) == 0


@pytest.mark.parametrize("text", ["5", "a,b,c", "3,1,4", "0,2,2", "1,4,6", "2,2,1", "3,4"])
def test_what_no_server_drafts_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--tree"):
        parse(text)


def test_the_largest_tree_keeps_every_candidate() -> None:
    assert parse("2,3,13") == Tree(2, 3, 13)
    assert parse("5,4,8").name == "5,4,8"
