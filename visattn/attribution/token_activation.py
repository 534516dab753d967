"""Token activation maps (TAM) of the words of a multimodal language model."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from visattn.functional.attribution.token_activation import remove_interference


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
        head: Weights of the language-model head.
        bias: Its bias.
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
    first, count = states.num_prompt, len(ids)
    order = torch.arange(count, device=ids.device)
    earlier = order[None, :] < order[first:, None]
    other = ids[None, :] != ids[first:, None]
    barred = torch.tensor(list(left_out), device=ids.device, dtype=ids.dtype)
    used = earlier & other & ~torch.isin(ids, barred)[None, :]
    relevances = torch.where(used.to(logits.device), logits[:, first:].T, 0.0)
    return remove_interference(activations[first:], activations, relevances)
