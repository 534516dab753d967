"""Stochastic depth, patch dropout and layer scale."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.transformer.token_layout import TokenLayout
from visattn.functional.windows import random_token_indices


class DropPath(nn.Module):
    """Stochastic depth: drops a residual branch per sample in training and rescales the others.

    Args:
        drop_prob: Probability of dropping the branch, in [0, 1].

    Raises:
        ValueError: If the probability is not in [0, 1].

    Example:
        >>> import torch
        >>> DropPath(1.0)(torch.ones(2, 1)), DropPath(1.0).eval()(torch.ones(1, 1))
        (tensor([[0.], [0.]]), tensor([[1.]]))

    Source:
        Huang et al. 2016, arXiv:1603.09382, section 3. Deviation: branches are scaled in
        training, as in dropout, and not at inference.
    """

    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        if not 0 <= drop_prob <= 1:
            raise ValueError(f"drop_prob must be in [0, 1], got {drop_prob}")
        self.drop_prob = drop_prob

    def forward(self, x: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
        """Return the branch, zero for dropped samples."""
        if not self.training or self.drop_prob == 0:
            return x
        keep_prob = 1 - self.drop_prob
        mask = x.new_empty((x.shape[0], *(1,) * (x.ndim - 1))).bernoulli_(keep_prob)
        return x * (mask / keep_prob if keep_prob else mask)

    def extra_repr(self) -> str:
        """Return the arguments shown by `repr`."""
        return f"{self.drop_prob:g}"


class PatchDropout(nn.Module):
    """Patch dropout: keeps a random subset of the patch tokens per image in training.

    Prefix tokens are kept. The layout stores the kept indices, so that maps can place them.

    Args:
        drop_prob: Share of the patches that is dropped; at least one patch is kept.

    Raises:
        ValueError: If it is not at least 0 and below 1.

    Example:
        >>> x, layout = PatchDropout(0.5)(torch.zeros(1, 5, 3), TokenLayout((2, 2), ("class",)))
        >>> x.shape, layout.keep_indices.shape
        (torch.Size([1, 3, 3]), torch.Size([1, 2]))

    Source:
        Liu et al. 2022, arXiv:2208.07220, section 3.2. Position embeddings are not recomputed.
    """

    def __init__(self, drop_prob: float) -> None:
        super().__init__()
        if not 0 <= drop_prob < 1:
            raise ValueError(f"drop_prob must be in [0, 1), got {drop_prob}")
        self.drop_prob = drop_prob

    def forward(
        self, x: Float[Tensor, "b n c"], layout: TokenLayout
    ) -> tuple[Float[Tensor, "b m c"], TokenLayout]:
        """Return the kept tokens in their order, and their layout."""
        if not self.training or self.drop_prob == 0:
            return x, layout
        before, patches = layout.num_prefix_tokens, x.shape[1] - layout.num_prefix_tokens
        count = max(1, int(patches * (1 - self.drop_prob)))
        kept = random_token_indices(x.shape[0], patches, count, device=x.device)
        prefix = torch.arange(before, device=x.device).expand(x.shape[0], -1)
        indices = torch.cat((prefix, kept + before), 1)
        layout = layout._replace(
            keep_indices=kept, rotation=_select_rotations(layout.rotation, indices)
        )
        return x.gather(1, indices.unsqueeze(-1).expand(-1, -1, x.shape[2])), layout

    def extra_repr(self) -> str:
        """Return the arguments shown by `repr`."""
        return f"{self.drop_prob:g}"


def _select_rotations(
    rotation: tuple[Tensor, Tensor] | None, indices: Tensor
) -> tuple[Tensor, Tensor] | None:
    """Return the rotary embeddings of the kept tokens of each image."""
    if rotation is None:
        return None
    cosines, sines = (part[0, 0][indices].unsqueeze(1) for part in rotation)
    return cosines, sines


class LayerScale(nn.Module):
    """Layer scale: multiplies each channel by a learned factor.

    Args:
        dim: Token dimension.
        init_value: Initial value of the factors.

    Example:
        >>> LayerScale(2, 0.5)(torch.ones(1, 1, 2))
        tensor([[[0.5000, 0.5000]]], grad_fn=<MulBackward0>)

    Source:
        Touvron et al. 2021, arXiv:2103.17239, equation 4.
    """

    def __init__(self, dim: int, init_value: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((dim,), float(init_value)))

    def forward(self, x: Float[Tensor, "b n c"]) -> Float[Tensor, "b n c"]:
        """Return the scaled branch."""
        return x * self.gamma
