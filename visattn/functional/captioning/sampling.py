"""Captions drawn at random, each as often as the model finds it likely."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from visattn.functional.captioning.beam_search import LookT, StateT, Step


class Samples(NamedTuple):
    """Captions drawn for each image."""

    tokens: Int[Tensor, "b k t"]
    """Words with the stop word; after it, the stop word again."""
    lengths: Int[Tensor, "b k"]
    """Words per caption, the stop word counted; a caption that was cut has none."""


@torch.no_grad()
def draw_samples(
    step: Step[StateT, LookT],
    state: StateT,
    *,
    images: int,
    count: int,
    start: int,
    stop: int,
    max_length: int = 20,
    banned: tuple[int, ...] = (),
    device: torch.device | str = "cpu",
    uniforms: Callable[[], Float[Tensor, "b k"]] | None = None,
) -> Samples:
    """Return `count` captions for each image, drawn word by word from what the model gives.

    Args:
        step: From a state and the last words to the logits of the next, the new state and a look.
        state: The state before the first word, one hypothesis per image.
        images: How many images.
        count: How many captions for each.
        start: The word that is read first.
        stop: The word that ends a caption.
        max_length: Most words, the stop word counted.
        banned: Words never said.
        device: Where the model computes.
        uniforms: Gives, word by word, a number even in [0, 1) for each caption, which decides the
            word; drawn if left out.

    Example:
        >>> class Still:  # says word 1 or stops (2), whatever was said before
        ...     of_beams = of_images = lambda self, index: self
        >>> def step(state, token):
        ...     return torch.tensor([9.0, 0.0, 0.0]).expand(*token.shape, 3), state, ()
        >>> drawn = draw_samples(
        ...     step, Still(), images=2, count=5, start=0, stop=2, max_length=7, banned=(0,)
        ... )
        >>> drawn.lengths.shape, bool((drawn.tokens > 0).all())
        (torch.Size([2, 5]), True)
    """
    token = torch.full((images, count), start, device=device)
    state = state.of_beams(torch.zeros_like(token))
    lengths = torch.zeros_like(token)
    going = torch.ones_like(token, dtype=torch.bool)
    said: list[Tensor] = []
    while going.any() and len(said) < max_length:
        logits, state, _ = step(state, token)
        logits = logits.index_fill(-1, torch.tensor(banned, device=device).long(), -torch.inf)
        luck = torch.rand(token.shape, device=device) if uniforms is None else uniforms()
        token = _word_at(logits.softmax(-1), luck).where(going, stop)
        said.append(token)
        lengths += going
        going = going & (token != stop)
    return Samples(torch.stack(said, -1), lengths)


def _word_at(
    probabilities: Float[Tensor, "b k v"], luck: Float[Tensor, "b k"]
) -> Int[Tensor, "b k"]:
    """Return the word in whose share of [0, 1) a number lies, the shares laid side by side."""
    ends = probabilities.double().cumsum(-1)  # in double, a number below 1 stays below the end
    sought = luck.double().unsqueeze(-1) * ends[..., -1:]
    return torch.searchsorted(ends, sought, right=True).squeeze(-1)
