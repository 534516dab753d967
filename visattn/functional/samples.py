"""Captions drawn at random, each as often as the model finds it likely."""

from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from visattn.functional.search import LookT, StateT, Step


class Samples(NamedTuple):
    """Captions drawn for each picture."""

    tokens: Int[Tensor, "b k t"]
    """Words with the stop word; after it, the stop word again."""
    lengths: Int[Tensor, "b k"]
    """Words per caption, the stop word counted; a caption that was cut has none."""


@torch.no_grad()
def draw_samples(
    step: Step[StateT, LookT],
    state: StateT,
    *,
    pictures: int,
    count: int,
    start: int,
    stop: int,
    max_length: int = 20,
    banned: tuple[int, ...] = (),
    device: torch.device | str = "cpu",
) -> Samples:
    """Return `count` captions for each picture, drawn word by word from what the model gives.

    Args:
        step: From a state and the last words to the logits of the next, the new state and a look.
        state: The state before the first word, one hypothesis per picture.
        pictures: How many pictures.
        count: How many captions for each.
        start: The word that is read first.
        stop: The word that ends a caption.
        max_length: Most words, the stop word counted.
        banned: Words never said.
        device: Where the model computes.

    Example:
        >>> class Still:  # says word 1 or stops (2), whatever was said before
        ...     of_beams = of_pictures = lambda self, index: self
        >>> def step(state, token):
        ...     return torch.tensor([9.0, 0.0, 0.0]).expand(*token.shape, 3), state, ()
        >>> drawn = draw_samples(
        ...     step, Still(), pictures=2, count=5, start=0, stop=2, max_length=7, banned=(0,)
        ... )
        >>> drawn.lengths.shape, bool((drawn.tokens > 0).all())
        (torch.Size([2, 5]), True)
    """
    token = torch.full((pictures, count), start, device=device)
    state = state.of_beams(torch.zeros_like(token))
    lengths = torch.zeros_like(token)
    going = torch.ones_like(token, dtype=torch.bool)
    said: list[Tensor] = []
    while going.any() and len(said) < max_length:
        logits, state, _ = step(state, token)
        logits = logits.index_fill(-1, torch.tensor(banned, device=device).long(), -torch.inf)
        drawn = logits.softmax(-1).flatten(0, 1).multinomial(1).view_as(token)
        token = drawn.where(going, stop)
        said.append(token)
        lengths += going
        going = going & (token != stop)
    return Samples(torch.stack(said, -1), lengths)
