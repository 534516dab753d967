"""Token activation maps: interference of earlier tokens is removed, and noise filtered."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from visattn.functional.numerics import at_least_float32

_NONE = 1e-8  # added to the sum of relevances, as in the code of the authors


def remove_interference(
    activations: Float[Tensor, "*t i"],
    context: Float[Tensor, "c i"],
    relevances: Float[Tensor, "*t c"],
) -> Float[Tensor, "*t i"]:
    """Return activations without what earlier tokens explain: estimated causal inference.

    The interference is the mean of the maps of the earlier tokens, weighted by how relevant each is
    for this one. It is subtracted with the scale that leaves the smallest squares. Activations and
    relevances are not negative; a relevance of 0 leaves a token out.

    Example:
        >>> activations = torch.tensor([[2.0, 1.0, 4.0]])
        >>> remove_interference(activations, torch.tensor([[2.0, 1.0, 0.0]]), torch.ones(1, 1))
        tensor([[0., 0., 4.]])

    Source:
        Li et al. 2025, arXiv:2506.23270, estimated causal inference (ECI).
    """
    weights = relevances / (relevances.sum(-1, keepdim=True) + _NONE)
    interference = weights @ context
    squares = interference.square().sum(-1, keepdim=True)
    scale = (activations * interference).sum(-1, keepdim=True) / squares.masked_fill(
        squares == 0, 1
    )
    return (activations - scale * interference).relu()


def rank_gaussian_filter(
    maps: Float[Tensor, "*t y x"], *, kernel_size: int = 3
) -> Float[Tensor, "*t y x"]:
    """Return maps in which each cell is a mean of its window that is weighted by rank.

    The values of a window are sorted; the weights are a Gaussian around the middle rank, whose
    width is the coefficient of variation of the window. Even windows keep their median, so that
    single outliers vanish.

    Args:
        kernel_size: Side of the window, odd.

    Raises:
        ValueError: If the side is even or below 1.

    Example:
        >>> spike = torch.ones(3, 3)
        >>> spike[1, 1] = 2.0
        >>> rank_gaussian_filter(spike)[1, 1]
        tensor(1.)

    Source:
        Li et al. 2025, arXiv:2506.23270, rank Gaussian filter, with the coefficient of variation as
        in the code of the authors. A window of equal values keeps its value, which that code
        divides by 0.
    """
    if kernel_size < 1 or kernel_size % 2 == 0:
        raise ValueError(f"kernel_size must be odd and at least 1, got {kernel_size}")
    pad = kernel_size // 2
    shape = maps.shape
    padded = at_least_float32(maps).reshape(1, -1, *shape[-2:])
    for axis, sides in ((-1, (pad, pad, 0, 0)), (-2, (0, 0, pad, pad))):
        mode = "reflect" if padded.shape[axis] > pad else "replicate"
        padded = F.pad(padded, sides, mode=mode)
    windows = padded.unfold(-2, kernel_size, 1).unfold(-2, kernel_size, 1).flatten(-2)
    ranked = windows.sort(-1).values
    mean = ranked.mean(-1, keepdim=True)
    width = ranked.std(-1, correction=0, keepdim=True) / mean.clamp(min=1e-30)
    ranks = torch.arange(kernel_size**2, device=maps.device) - kernel_size**2 // 2
    # equal values have no width: the middle rank has all weight
    weights = torch.exp(-(ranks**2) / (2 * width.clamp(min=1e-6) ** 2))
    filtered = (weights * ranked).sum(-1) / weights.sum(-1)
    return filtered.masked_fill(mean[..., 0] <= 0, 0.0).reshape(shape)


@dataclass(frozen=True, eq=False)
class TokenStates:
    """Last hidden states of a sequence of image and text, and the tokens that explain each other.

    Args:
        image: States of the image tokens, as the language-model head reads them.
        context: States from which the relevance of each earlier token is read: of a token of the
            prompt its own, of a generated token the one that predicted it.
        context_ids: Ids of the earlier tokens: those of the prompt, then the generated ones.
        num_prompt: How many of them are tokens of the prompt.
    """

    image: Float[Tensor, "i d"]
    context: Float[Tensor, "c d"]
    context_ids: Int[Tensor, " c"]
    num_prompt: int


def token_activation_maps(
    states: TokenStates,
    head: Float[Tensor, "v d"],
    bias: Float[Tensor, " v"] | None = None,
    *,
    left_out: Sequence[int] = (),
) -> Float[Tensor, "t i"]:
    """Return the activation of each image token for each generated token.

    The activation is the positive part of the logit of the token at an image token. What earlier
    tokens explain is removed, each weighted by the positive part of the same logit at its own
    state; earlier tokens of the same id are left out.

    Args:
        states: The states, with every generated token as the last of `context_ids`.
        left_out: Ids that are never earlier tokens, such as special ones.

    Example:
        >>> states = TokenStates(torch.eye(2), torch.ones(2, 2), torch.tensor([0, 1]), 1)
        >>> token_activation_maps(states, torch.tensor([[1.0, 0.0], [2.0, 2.0]]))
        tensor([[0., 2.]])

    Source:
        Li et al. 2025, arXiv:2506.23270. Deviations: the code of the authors explains the first
        generated token by the logit of the last token of the prompt, and the first token of the
        prompt by that of the most probable token; here each has its own.
    """
    ids = states.context_ids
    device = states.image.device
    rows = head[ids.to(head.device)].float().to(device)
    offsets = 0.0 if bias is None else bias[ids.to(bias.device)].float().to(device)
    activations = (states.image.float() @ rows.T + offsets).relu().T
    logits = (states.context.float() @ rows.T + offsets).relu()  # earlier token, explained token
    first = states.num_prompt
    count = len(ids)
    order = torch.arange(count, device=ids.device)
    earlier = order[None, :] < order[first:, None]
    other = ids[None, :] != ids[first:, None]
    barred = torch.tensor(list(left_out), device=ids.device, dtype=ids.dtype)
    used = earlier & other & ~torch.isin(ids, barred)[None, :]
    relevances = torch.where(used.to(logits.device), logits[:, first:].T, 0.0)
    return remove_interference(activations[first:], activations, relevances)
