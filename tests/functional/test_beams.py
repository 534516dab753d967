"""Beam search against enumeration and a plain implementation, which with a beam of 1 is greedy."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from visattn.functional.beams import BeamSearchOutput, beam_search

START, STOP = 0, 2
Rules = dict[str, Any]


class Glance(NamedTuple):
    weights: Tensor
    memory: Tensor


@dataclass(frozen=True)
class Memory:
    """The image index, and a number that depends on all previous tokens and their order."""

    image: Tensor
    memory: Tensor

    def reorder_beams(self, parents: Tensor) -> Self:
        return replace(self, memory=self.memory.gather(1, parents))

    def select_images(self, index: Tensor) -> Self:
        return replace(self, image=self.image[index], memory=self.memory[index])


class Toy:
    """A model with random tables per image; counts the rows that it computes."""

    def __init__(self, images: int, words: int, *, seed: int = 0, sharp: float = 2.0) -> None:
        random = torch.Generator().manual_seed(seed)

        def table(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=random, dtype=torch.float64)

        self.table = sharp * table(images, words, words)
        self.lean = sharp * table(words)
        self.code = table(words)
        self.places = table(images, 3)
        self.words, self.images = words, images
        self.steps = self.rows = 0

    def state(self, images: Sequence[int] | None = None) -> Memory:
        chosen = torch.tensor(range(self.images) if images is None else images)
        return Memory(chosen, torch.zeros(len(chosen), 1, dtype=torch.float64))

    def __call__(self, state: Memory, token: Tensor) -> tuple[Tensor, Memory, Glance]:
        self.steps += 1
        self.rows += len(token)
        memory = torch.tanh(0.7 * state.memory + self.code[token])
        logits = self.table[state.image[:, None], token] + memory.unsqueeze(-1) * self.lean
        places = self.places[state.image][:, None] * memory.unsqueeze(-1)
        attention_step = Glance(places.softmax(-1), memory)
        return logits, replace(state, memory=memory), attention_step

    def next(self, image: int, words: Sequence[int]) -> Tensor:
        """Return the log-probabilities of the words that may follow."""
        state, logits = self.state([image]), torch.empty(0)
        for word in (START, *words):
            logits, state, _ = self(state, torch.tensor([[word]]))
        return logits[0, 0].log_softmax(-1)


def rules(
    longest: int, *, shortest: int = 0, penalty: float = 0.0, banned: tuple[int, ...] = (START,)
) -> Rules:
    return {
        "end_token": STOP,
        "max_length": longest,
        "min_length": shortest,
        "length_penalty": penalty,
        "banned_tokens": banned,
    }


def found_by(
    toy: Toy, rules: Rules, *, images: Sequence[int] | None = None, beam: int = 5, best: int = 1
) -> BeamSearchOutput[Glance]:
    state = toy.state(images)
    start = torch.full((len(state.image),), START)
    return beam_search(toy, state, start, beam_size=beam, num_captions=best, **rules)


def captions(result: BeamSearchOutput[Glance], image: int) -> list[tuple[int, ...]]:
    """The tokens of each returned caption."""
    lengths = result.lengths[image].tolist()
    return [
        tuple(row[:length].tolist())
        for row, length in zip(result.tokens[image], lengths, strict=True)
    ]


def plain(toy: Toy, image: int, constraints: Rules, beam: int) -> list[tuple[bool, float, tuple]]:
    """Beam search without optimizations: a single image, no early stop, a constant beam size."""
    live: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    ended: list[tuple[bool, float, tuple[int, ...]]] = []

    def divided(total: float, words: int) -> float:
        return total / ((5 + words) / 6) ** constraints["length_penalty"]

    for said in range(constraints["max_length"] + 1):
        moves = []
        for total, words in live:
            log_probs = toy.next(image, words)
            allowed = [
                word
                for word in range(toy.words)
                if word not in constraints["banned_tokens"]
                and (word != STOP or said >= constraints["min_length"])
            ]
            moves += [(total + float(log_probs[word]), (*words, word)) for word in allowed]
        moves.sort(reverse=True)
        stops = [move for move in moves[:beam] if move[1][-1] == STOP]
        ended += [(True, divided(total, said + 1), words[:-1]) for total, words in stops]
        if said == constraints["max_length"]:
            whole = {words for _, _, words in ended}
            ended += [(False, divided(t, said), words) for t, words in live if words not in whole]
        live = [move for move in moves if move[1][-1] != STOP][:beam]
    return sorted(ended, key=lambda hypothesis: (not hypothesis[0], -hypothesis[1]))


@given(
    seed=st.integers(0, 10**6),
    beam=st.integers(1, 5) | st.just(625),
    best=st.integers(1, 5),
    penalty=st.sampled_from([0.0, 0.6, 3.0]),
    shortest=st.integers(0, 2),
    banned=st.sampled_from([(START,), (START, 1, 3), ()]),
)
@settings(max_examples=50)
def test_beam_search_matches_a_plain_implementation_without_early_stop(
    seed: int, beam: int, best: int, penalty: float, shortest: int, banned: tuple[int, ...]
) -> None:
    toy, best = Toy(2, 5, seed=seed), min(beam, best)
    constraints = rules(5, shortest=shortest, penalty=penalty, banned=banned)
    actual = found_by(toy, constraints, beam=beam, best=best)
    for image in range(2):
        expected = plain(toy, image, constraints, beam)[:best]
        assert captions(actual, image)[: len(expected)] == [words for *_, words in expected]
        assert actual.finished[image, : len(expected)].tolist() == [
            hypothesis[0] for hypothesis in expected
        ]
        scores = torch.tensor([score for _, score, _ in expected])
        torch.testing.assert_close(
            actual.scores[image, : len(expected)], scores, rtol=1e-5, atol=1e-5
        )
        beyond = torch.arange(actual.tokens.shape[-1]) >= actual.lengths[image, :, None]
        assert (actual.tokens[image][beyond] == STOP).all()
        assert (actual.log_probs[image][beyond] == 0).all()


def test_finished_images_leave_the_batch() -> None:
    toy = Toy(11, 7, seed=5)
    found_by(toy, rules(17), beam=3, best=2)
    rows, steps = toy.rows, toy.steps
    alone = []
    for image in range(11):
        toy.steps = 0
        found_by(toy, rules(17), images=[image], beam=3, best=2)
        alone.append(toy.steps)
    assert steps == max(alone) > min(alone)
    assert rows == sum(alone)


class Still:
    def reorder_beams(self, parents: Tensor) -> Self:
        return self

    def select_images(self, index: Tensor) -> Self:
        return self


def scripted_step(*probabilities: Sequence[float]) -> tuple[Callable[..., tuple], list[int]]:
    """A model that ignores its tokens; step t has the t-th row, later steps the last."""
    calls: list[int] = []

    def step(state: Still, token: Tensor) -> tuple[Tensor, Still, Glance]:
        row = torch.tensor(probabilities[min(len(calls), len(probabilities) - 1)])
        calls.append(token.shape[1])
        attention_step = Glance(torch.ones(*token.shape, 1), torch.zeros(token.shape))
        return row.log().expand(*token.shape, -1), state, attention_step

    return step, calls


def scripted(
    step: Callable[..., tuple], rules: Rules, *, beam: int, best: int = 1, images: int = 1
) -> BeamSearchOutput[Glance]:
    start = torch.full((images,), START)
    return beam_search(step, Still(), start, beam_size=beam, num_captions=best, **rules)


@pytest.mark.parametrize(
    ("best", "penalty", "steps"),
    # .9 · .96 ends after two steps and nothing live is above .1; the second caption, .1 · .96,
    # ends in the same step, but "1 1", .9 · .02, might grow into the third: .02 · .96 after three.
    [(1, 0.0, 2), (2, 0.0, 2), (3, 0.0, 3), (1, 40.0, 31)],
)
def test_search_stops_as_soon_as_no_hypothesis_can_improve(
    best: int, penalty: float, steps: int
) -> None:
    step, calls = scripted_step([0.0, 0.9, 0.0, 0.1], [0.0, 0.02, 0.96, 0.02])
    constraints = rules(30, penalty=penalty)
    scripted(step, constraints, beam=4, best=best)
    assert len(calls) == steps


def test_missing_captions_are_empty_with_score_minus_infinity() -> None:
    step, _ = scripted_step([0.1, 0.6, 0.3])
    constraints = rules(2, shortest=1)
    result = scripted(step, constraints, beam=7, best=5, images=3)
    for image in range(3):
        assert captions(result, image) == [(1,), (1, 1), (), (), ()]
        assert result.scores[image, 2:].eq(-torch.inf).all()
        assert result.finished[image].tolist() == [True, True, False, False, False]


def test_half_precision_is_supported_and_no_graph_is_built() -> None:
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        row = torch.tensor([0.05, 0.65, 0.3]).log().to(dtype).requires_grad_()

        def step(state: Still, token: Tensor, row: Tensor = row) -> tuple[Tensor, Still, Glance]:
            attention_step = Glance(torch.ones(*token.shape, 1), torch.zeros(token.shape))
            return row.expand(*token.shape, -1), state, attention_step

        constraints = rules(2, shortest=1)
        result = scripted(step, constraints, beam=2)
        assert captions(result, 0) == [(1,)]
        assert result.scores.dtype == torch.float32
        assert not result.scores.requires_grad


def test_what_cannot_be_searched_is_refused() -> None:
    step, _ = scripted_step([0.0, 0.7, 0.3], [torch.nan, 0.5, 0.5])
    with pytest.raises(ValueError, match="logits of the model are NaN"):
        scripted(step, rules(5), beam=3)
    for lengths, beam, best in (
        (rules(3, shortest=4), 2, 1), (rules(0), 2, 1), (rules(3, shortest=-1), 2, 1),
        (rules(3), 2, 3), (rules(3), 2, 0), (rules(3, penalty=-0.5), 2, 1),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=f"beam search needs 0 <= .* beam_size={beam}"):
            found_by(Toy(1, 5), lengths, beam=beam, best=best)
