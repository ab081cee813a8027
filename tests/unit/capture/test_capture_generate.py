import torch
from transformers import AutoModelForCausalLM

from draftproof.capture.generate import Limits, answers, end, greedy

PROMPTS = [[5, 9, 30], [40, 41, 42, 43, 44, 45, 46, 47, 48], [7], [100, 3, 90, 12]]


def model_of(pair):
    return AutoModelForCausalLM.from_pretrained(pair.target, dtype=torch.float32).eval()


def limits(stop: tuple[int, ...] = (), new: int = 10, lookahead: int = 3) -> Limits:
    return Limits(max_new_tokens=new, stop_token_ids=frozenset(stop), lookahead=lookahead)


def test_batched_text_is_that_of_generate_one_by_one(pair) -> None:
    model = model_of(pair)
    texts = greedy(model, PROMPTS, limits())
    for prompt, text in zip(PROMPTS, texts, strict=True):
        ids = torch.tensor([prompt])
        whole = model.generate(ids, max_new_tokens=13, do_sample=False, pad_token_id=0)
        assert text == whole[0, len(prompt) :].tolist()


def test_a_stop_token_ends_the_output_and_the_continuation_goes_on(pair) -> None:
    model = model_of(pair)
    (free,) = greedy(model, PROMPTS[:1], limits())
    stop = free[4]
    first = free.index(stop)
    (text,) = greedy(model, PROMPTS[:1], limits(stop=(stop,)))
    assert text == free[: first + 1 + 3]
    (answer,) = answers(model, PROMPTS[:1], [0], limits(stop=(stop,)))
    assert (answer.output_ids, answer.finish) == (free[: first + 1], "stop")
    assert answer.continuation_ids == free[first + 1 : first + 4]


def test_states_are_those_of_hugging_face_at_the_boundaries(pair) -> None:
    model = model_of(pair)
    for answer in answers(model, PROMPTS, [0, 2, 5], limits()):
        ids = torch.tensor([answer.prompt_ids + answer.output_ids])
        with torch.inference_mode():
            states = model(ids, output_hidden_states=True).hidden_states
        expected = torch.stack([states[b][0] for b in (0, 2, 5)], dim=1)
        torch.testing.assert_close(answer.hidden_states, expected)
        assert answer.mismatches == 0
        assert answer.finish == "length"


def test_the_end_is_the_first_stop_token_or_the_limit() -> None:
    assert end([4, 5, 6, 5], limits(stop=(5,), new=3)) == 2
    assert end([4, 6, 6, 5], limits(stop=(5,), new=3)) == 3
    assert end([], limits(new=3)) == 3


def test_text_that_the_whole_pass_does_not_repeat_is_counted(pair) -> None:
    from draftproof.capture.generate import with_states

    model = model_of(pair)
    (text,) = greedy(model, PROMPTS[:1], limits())
    wrong = [*text[:-1], (text[-1] + 1) % 256]
    assert with_states(model, PROMPTS[0], wrong, [0], limits()).mismatches == 1
