"""Sampling of captions from the distribution of the model."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from visattn.functional.captioning.beam_search import DecoderStep, StateT, StepOutputT


class SampledCaptions(NamedTuple):
    """Captions sampled for each image."""

    tokens: Int[Tensor, "b k t"]
    """Words including the end token; padded with the end token."""
    lengths: Int[Tensor, "b k"]
    """Words per caption, including the end token; a truncated caption has none."""


@torch.no_grad()
def sample_captions(
    step: DecoderStep[StateT, StepOutputT],
    state: StateT,
    start: Int[Tensor, "b k"],
    *,
    end_token: int,
    max_length: int = 20,
    banned_tokens: tuple[int, ...] = (),
    uniforms: Callable[[], Float[Tensor, "b k"]] | None = None,
) -> SampledCaptions:
    """Return captions of each image, sampled word by word from the model.

    Args:
        step: Maps a state and the previous words to the logits of the next words, the new state
            and attention tensors.
        state: State before the first word, one hypothesis per image.
        start: First input token of each caption: as many per image as there are columns.
        end_token: Token that ends a caption.
        max_length: Maximum number of words, including the end token.
        banned_tokens: Tokens that are never generated.
        uniforms: Returns a uniform number in [0, 1) per caption for each step, from which words
            are sampled; `torch.rand` if None.

    Example:
        >>> class Stateless:  # generates word 1 or the end token 2 at every step
        ...     reorder_beams = select_images = lambda self, index: self
        >>> def step(state, token):
        ...     return torch.tensor([9.0, 0.0, 0.0]).expand(*token.shape, 3), state, ()
        >>> samples = sample_captions(
        ...     step, Stateless(), torch.zeros(2, 5).long(), end_token=2, max_length=7,
        ...     banned_tokens=(0,),
        ... )
        >>> samples.lengths.shape, bool((samples.tokens > 0).all())
        (torch.Size([2, 5]), True)
    """
    token = start
    state = state.reorder_beams(torch.zeros_like(token))
    banned = torch.tensor(banned_tokens, device=start.device).long()
    lengths = torch.zeros_like(token)
    active = torch.ones_like(token, dtype=torch.bool)
    words: list[Tensor] = []
    while active.any() and len(words) < max_length:
        logits, state, _ = step(state, token)
        logits = logits.index_fill(-1, banned, -torch.inf)
        numbers = torch.rand(token.shape, device=start.device) if uniforms is None else uniforms()
        token = sample_categorical(logits.softmax(-1), numbers).where(active, end_token)
        words.append(token)
        lengths += active
        active = active & (token != end_token)
    return SampledCaptions(torch.stack(words, -1), lengths)


def sample_categorical(
    probabilities: Float[Tensor, "*b v"], uniforms: Float[Tensor, "*b"]
) -> Int[Tensor, "*b"]:
    """Sample categories by inverting the cumulative distribution at uniform numbers.

    Args:
        probabilities: Probabilities of words or places; rows need not sum to 1.
        uniforms: A number in [0, 1) for each row.

    Example:
        >>> probabilities = torch.tensor([0.25, 0.0, 0.75]).expand(3, 3)
        >>> sample_categorical(probabilities, torch.tensor([0.0, 0.25, 0.99]))
        tensor([0, 2, 2])
    """
    ends = probabilities.double().cumsum(-1)  # in float64 a number below 1 stays below the end
    targets = uniforms.double().unsqueeze(-1) * ends[..., -1:]
    return torch.searchsorted(ends, targets, right=True).squeeze(-1)
