"""Sampled captions: token frequencies, ends, and independent histories."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from visattn.functional.captions import sample_captions

LOGITS = torch.tensor([9.0, 0.4, -0.3, 0.1])  # word 3 stops


class Still:
    def reorder_beams(self, parents: Tensor) -> "Still":
        return self

    def select_images(self, index: Tensor) -> "Still":
        return self


def always(state: Any, token: Tensor) -> tuple[Tensor, Any, tuple[Tensor, ...]]:
    return LOGITS.expand(*token.shape, 4), state, ()


def test_uniform_numbers_determine_the_tokens_with_their_probabilities() -> None:
    """Token 1 has the first part of [0, 1), then token 2, then the stop token."""
    first, second = LOGITS[1:].softmax(0).cumsum(0)[:2].tolist()
    edges = [[0.0, first - 1e-4, first + 1e-4], [second - 1e-4, second + 1e-4, 1 - 1e-15]]
    luck = torch.tensor(edges, dtype=torch.float64)
    drawn = sample_captions(
        always, Still(), torch.zeros(2, 3).long(), end_token=3, max_length=1, banned_tokens=(0,),
        uniforms=lambda: luck,
    )  # fmt: skip
    assert drawn.tokens[..., 0].tolist() == [[1, 1, 2], [2, 3, 3]]


def test_caption_ends_at_its_stop_token() -> None:
    torch.manual_seed(1)
    drawn = sample_captions(
        always, Still(), torch.zeros(5, 7).long(), end_token=3, max_length=11, banned_tokens=(0,)
    )
    for tokens, length in zip(drawn.tokens.flatten(0, 1), drawn.lengths.flatten(), strict=True):
        said = tokens[:length].tolist()
        assert 3 not in said[:-1]
        assert said[-1] == 3 or length == 11
        assert set(tokens[length:].tolist()) <= {3}
    assert drawn.tokens.shape[-1] == int(drawn.lengths.max())


@dataclass
class Count:
    """Counts the tokens of each caption by value."""

    said: Tensor

    def reorder_beams(self, parents: Tensor) -> "Count":
        return Count(self.said.gather(1, parents))

    def select_images(self, index: Tensor) -> "Count":
        return Count(self.said[index])


def test_each_caption_continues_from_its_own_tokens() -> None:
    """The model repeats the previous token, so the first token decides."""

    def echo(state: Count, token: Tensor) -> tuple[Tensor, Count, tuple[Tensor, ...]]:
        logits = torch.full((*token.shape, 4), -30.0)
        first = (token == 0).unsqueeze(-1)
        logits = torch.where(first, torch.tensor([-30.0, 0.0, 0.0, -30.0]), logits)
        logits = logits.scatter(-1, token.clamp(min=1).unsqueeze(-1), 0.0)
        return logits, Count(state.said + 1), ()

    torch.manual_seed(0)
    state = Count(torch.zeros(3, 1))
    drawn = sample_captions(echo, state, torch.zeros(3, 5).long(), end_token=3, max_length=4)
    assert (drawn.tokens == drawn.tokens[..., :1]).all()
    assert len(drawn.tokens[..., 0].unique()) == 2
